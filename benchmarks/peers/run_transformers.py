"""Transformers' `generate`, float32, one static batch."""

import os
import sys
from collections.abc import Sequence

from lines import Generate, serve


def start() -> tuple[Generate, dict[str, str]]:
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

    def generate(prompts: Sequence[Sequence[int]], new: int) -> int:
        ids = torch.tensor([list(p) for p in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=new,
                min_new_tokens=new,
                pad_token_id=0,
            )
        return int(out.shape[0] * (out.shape[1] - ids.shape[1]))

    return generate, {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(start)
