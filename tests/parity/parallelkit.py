"""One model at several layouts: what one rank and Transformers say, and ways to drive an engine against that."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.enginekit import assert_greedy, greedy, prompts_for, save_engine_checkpoint
from parity.forkkit import fork_ranks
from parity.tiny import TinyModel
from shoal import LLM, SamplingParams
from shoal.engine.outputs import RequestOutput

NEW = 12
BLOCK = 4
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
RANDOM = [
    SamplingParams(temperature=0.9, top_p=0.95, max_tokens=NEW, seed=seed, ignore_eos=True) for seed in range(6)
]


@dataclass(frozen=True)
class Expected:
    """A checkpoint, prompts, and what one rank answers; Transformers agrees with every token."""

    path: Path
    model: Any
    prompts: list[list[int]]
    greedy: list[tuple[int, ...]]
    random: list[tuple[int, ...]]


def expected(tiny: TinyModel, directory: Path) -> Expected:
    """14 prompts of mixed lengths, some of which begin alike, and what is right."""
    model = save_engine_checkpoint(tiny, directory)
    whole = prompts_for(tiny, 6, NEW)
    shared = [whole[0][:30] + prompt[30 : 33 + i] for i, prompt in enumerate(whole[1:6])]
    prompts = [*whole, *shared, *(whole[0][: 3 + i] for i in range(3))]
    with LLM(str(directory), threads=1, num_blocks=400, block_size=BLOCK) as llm:
        answers = greedy(llm, prompts, NEW)
        drawn = [r.outputs[0].token_ids for r in llm.generate(prompts[:6], RANDOM, use_tqdm=False)]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_greedy(model, prompt, answer)
    return Expected(directory, model, prompts, answers, drawn)


@dataclass
class Drive:
    """Requests run step by step, with something done between steps."""

    llm: LLM
    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    endings: dict[str, str] = field(default_factory=dict)
    widest: int = 0
    """Most tokens that one step gave a request."""

    def run(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, between: Callable[["Drive", int], None]
    ) -> None:
        core, frontend = self.llm._core, self.llm._frontend
        for index, prompt in enumerate(prompts):
            self.tokens[str(index)] = ()
            core.add(frontend.prepare(prompt, params, str(index)))
        step = 0
        while core.has_work():
            for output in core.step():
                self._take(output)
            between(self, step)
            step += 1

    def _take(self, output: RequestOutput) -> None:
        assert output.request_id not in self.endings, "news of a request that has ended"
        self.tokens[output.request_id] += output.token_ids
        self.widest = max(self.widest, len(output.token_ids))
        if output.finish_reason is not None:
            self.endings[output.request_id] = output.finish_reason


def assert_logprobs(llm: LLM, right: Expected) -> None:
    """Of every prompt position and every answer of four requests: the likeliest eight tokens, from the whole
    vocabulary, within 1e-3 of Transformers'.
    """
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=8, prompt_logprobs=8)
    prompts = right.prompts[4:8]
    for prompt, result in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
        output = result.outputs[0]
        assert result.prompt_logprobs is not None
        assert output.logprobs is not None
        entries = result.prompt_logprobs + output.logprobs
        rows = transformers_logprobs(right.model, [*prompt, *output.token_ids])
        assert len(entries) == len(rows) - 1
        for row, entry in zip(rows, entries, strict=False):
            assert len(entry.token_ids) == 9
            torch.testing.assert_close(torch.tensor(entry.logprobs), row[list(entry.token_ids)], atol=1e-3, rtol=0)
            torch.testing.assert_close(torch.tensor(entry.logprobs[1:]), row.topk(8).values, atol=1e-3, rtol=0)


@contextmanager
def starting(as_users_do: bool) -> Iterator[None]:
    """Ranks of engines that are made here: started as users start them, or forked, for the hundreds of a matrix."""
    with pytest.MonkeyPatch.context() as patch:
        if not as_users_do:
            fork_ranks(patch)
        yield


def label(model: str, layout: Mapping[str, int]) -> str:
    return f"{model}-" + "".join(f"{axis}{degree}" for axis, degree in layout.items())


def transformers_logprobs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[len(ids), vocabulary]: log-probabilities of what follows each position."""
    with torch.inference_mode():
        logits = model(torch.tensor([list(ids)]), use_cache=False).logits[0].float()
    return torch.log_softmax(logits, -1)
