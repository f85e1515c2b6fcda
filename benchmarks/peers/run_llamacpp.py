"""llama.cpp through xllamacpp, on the GGUF file as it is (quantized). Runs in its own environment."""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lines import Generate, serve
from llamacpp_params import parameters


def start() -> tuple[Generate, dict[str, str]]:
    import xllamacpp

    server = xllamacpp.Server(parameters())

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
