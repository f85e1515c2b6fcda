"""Shoal's offline engine: float32, or with weights as BENCH_QUANTIZE says and an eight-bit KV cache."""

import os
import sys
from collections.abc import Sequence

from lines import Generate, serve


def start() -> tuple[Generate, dict[str, str]]:
    import torch

    import shoal
    from shoal import LLM, SamplingParams

    threads = int(os.environ["BENCH_THREADS"])
    rounded = os.environ.get("BENCH_QUANTIZE")
    llm = LLM(
        sys.argv[1],
        dtype="float32",
        quantize=rounded,
        kv_dtype="auto" if rounded is None else "int8",
        kv_memory=2**30,
        max_model_len=2048,
        max_num_seqs=64,
        threads=threads,
    )

    def generate(prompts: Sequence[Sequence[int]], new: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        results = llm.generate([list(p) for p in prompts], params, use_tqdm=False)
        return sum(len(r.outputs[0].token_ids) for r in results)

    return generate, {"shoal": shoal.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(start)
