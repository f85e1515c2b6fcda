"""The whole engine on tiny checkpoints, and Transformers' verdict on what it wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from parity.tiny import VOCAB, TinyModel, save_tiny
from shoal import LLM, SamplingParams


def save_engine_checkpoint(tiny: TinyModel, directory: Path) -> Any:
    """Write a checkpoint that `LLM` can open, with a one-word-a-token vocabulary; returns Transformers' model."""
    model = tiny.model()
    save_tiny(model, directory)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(directory / "tokenizer.json"))
    return model


def prompts_for(tiny: TinyModel, count: int, new_tokens: int) -> list[list[int]]:
    """Prompts whose answers all end at the length at which the model's RoPE variant is defined the same way."""
    generator = torch.Generator().manual_seed(1)
    length = tiny.longest - new_tokens
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for _ in range(count)]


def greedy(llm: LLM, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    return [result.outputs[0].token_ids for result in llm.generate(list(prompts), params, use_tqdm=False)]


def assert_greedy(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Transformers, shown the prompt and the answer, would have chosen every token of it.

    By induction that is its own greedy output, token for token, at the price of one forward pass.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0].float()
    rows = logits[len(prompt) - 1 : -1]
    choice = rows.argmax(dim=1).tolist()
    if choice != list(answer):
        at = next(i for i, (a, b) in enumerate(zip(choice, answer, strict=True)) if a != b)
        gap = float(rows[at, choice[at]] - rows[at, answer[at]])
        raise AssertionError(
            f"token {at}: Transformers chooses {choice[at]}, we wrote {answer[at]} ({gap:.2g} below)"
        )
