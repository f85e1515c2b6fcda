"""vLLM's offline engine, CPU build: float32 eager, or BENCH_DTYPE compiled. Runs in vLLM's own environment."""

import os
import sys
from collections.abc import Sequence

from lines import Generate, serve


def start() -> tuple[Generate, dict[str, str]]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from importlib.metadata import PackageNotFoundError, version

    from vllm import LLM, SamplingParams

    dtype = os.environ.get("BENCH_DTYPE", "float32")
    llm = LLM(model=sys.argv[1], dtype=dtype, enforce_eager=dtype == "float32", max_model_len=2048, max_num_seqs=64)

    def generate(prompts: Sequence[Sequence[int]], new: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=True)
        results = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
        return sum(len(r.outputs[0].token_ids) for r in results)

    facts = {}
    for name in ("vllm", "vllm-cpu", "torch"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return generate, facts


if __name__ == "__main__":
    serve(start)
