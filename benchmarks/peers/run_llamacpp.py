"""llama.cpp through xllamacpp, on the GGUF file as it is (quantized). Runs in its own environment."""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lines import Generate, serve

SLOTS = 64


def start() -> tuple[Generate, dict[str, str]]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * 320
    params.cont_batching = True
    params.cache_prompt = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ["BENCH_THREADS"])
    server = xllamacpp.Server(params)

    def one(prompt: Sequence[int], new: int) -> int:
        asked = {
            "prompt": list(prompt),
            "max_tokens": new,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer = server.handle_completions(asked)
        return int(answer["usage"]["completion_tokens"])

    def generate(prompts: Sequence[Sequence[int]], new: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return sum(pool.map(lambda p: one(p, new), prompts))

    return generate, {"xllamacpp": xllamacpp.__version__, "weights": os.path.basename(sys.argv[1])}


if __name__ == "__main__":
    serve(start)
