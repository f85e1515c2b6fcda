"""The rank-side sampler: logits of a step in, tokens out.

    logits ─ finite? ─┬─ plain greedy rows: one argmax over the batch ──────────────────────────────► token
                      └─ bias ─ penalties ─ grammar and min_tokens masks ─┬─ temperature 0: argmax ─► token
                                                                          └─ weights ─ truncation ─ draw

Rows are treated one by one after the argmax, each with its own parameters: a mixed batch has no shared state that
could be applied to the wrong row, and a row's result cannot depend on its neighbours. The work is numpy's, on the
host: there its argmax, partition and sort are vectorized and several times faster than torch's; logits of another
device are brought over once a step, except when the whole batch is greedy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.engine.sampling.adjust import Adjustments
from shoal.engine.sampling.guided import GuidedFactory, GuidedState
from shoal.engine.sampling.logprobs import token_logprobs
from shoal.engine.sampling.params import SamplingParams
from shoal.engine.sampling.random import uniform
from shoal.engine.sampling.truncation import draw, threshold_of, weights_of
from shoal.policy.batching.plan import SampledSequence, TokenLogprobs

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: dividing by it leaves one token of the float32 distribution anyway."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One sequence's rows in the logits of a step.

    rows   start ………… start + len(prompt_targets) ………………………… stop
           │ prompt rows, one a target │ 1 + len(drafts) sampling rows │

    The prompt rows predict `prompt_targets`. Of the sampling rows, the first follows the newest known token, row i
    follows draft i.
    """

    sequence_id: int
    start: int
    stop: int
    """Exclusive."""
    sample: bool = True
    """False: a chunk that does not reach the newest token; it has prompt rows at most."""
    prompt_targets: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()


@dataclass(slots=True)
class _Sequence:
    """A live sequence's sampler state."""

    params: SamplingParams
    greedy: bool
    seed: int
    adjustments: Adjustments
    output_length: int
    guided: GuidedState | None = None
    plain: bool = field(init=False)
    """Greedy with nothing that changes the logits or reads their values."""

    def __post_init__(self) -> None:
        self.plain = self.greedy and self.guided is None and not self.adjustments.changes_logits

    def observe(self, token: int) -> None:
        self.output_length += 1
        self.adjustments.observe(token)
        if self.guided is not None:
            self.guided.advance(token)


class _Dead(Exception):
    """The sequence cannot go on; the message becomes its error."""


class Sampler:
    """Sampler state of all live sequences of a replica, and the step that chooses tokens."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | None = None,
        guided: GuidedFactory | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """`vocab_size` is the width of the logits; `guided` makes the state of a constrained sequence."""
        self.vocab_size = vocab_size
        self.device = device or torch.device("cpu")
        self._guided = guided
        self._eos = tuple(eos_token_ids)
        self._live: dict[int, _Sequence] = {}
        # Rows to work in: fresh ones of this size come from the kernel, which zeroes them page by page.
        self._logits = np.empty(vocab_size, np.float32)
        self._weights = np.empty(vocab_size, np.float32)

    @property
    def live_sequences(self) -> int:
        """Sequences whose state is held; for leak checks."""
        return len(self._live)

    def add(self, sequence_id: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Begin a sequence, or resume one whose `output` so far is known; replaces state of the same id.

        `params` are validated and have a seed unless greedy (`resolve_seed`). Raises `ValueError` for a missing
        seed and `InvalidParameter` for a grammar that does not compile. A grammar that does not admit `output`
        shows as the `error` of the next sample.
        """
        # A nucleus of no mass is the most likely token alone, one of them where several tie (lmms-eval#1265).
        greedy = params.temperature < GREEDY_BELOW or params.top_p == 0
        if params.seed is None and not greedy:
            raise ValueError("sampling parameters reach the sampler without a seed: call resolve_seed at the edge")
        guided = None
        if params.guided is not None:
            if self._guided is None:
                raise ValueError("guided decoding needs a tokenizer: the sampler was built without one")
            guided = self._guided(params.guided)
            for token in output:
                guided.advance(token)
        self._live[sequence_id] = _Sequence(
            params=params,
            greedy=greedy,
            seed=params.seed or 0,
            adjustments=Adjustments(params, prompt, output, self._eos),
            output_length=len(output),
            guided=guided,
        )

    def remove(self, sequence_id: int) -> None:
        """Forget a sequence; one that is not there is no error (an abort may come twice)."""
        self._live.pop(sequence_id, None)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledSequence]:
        """One result a row, in order. `logits` is [R, vocab_size] float32; it is not changed.

        With drafts, the row after each draft is sampled as if the draft were a token of the output, for as long as
        the sampled tokens agree with the drafts. A token depends only on (seed, index), so the outcome is what
        decoding one token a step would have given. A non-finite row, or a grammar that admits nothing, ends its
        own sequence with `error` set; others are not touched.
        """
        if logits.dim() != 2 or logits.shape[1] != self.vocab_size:
            raise ValueError(f"logits have shape {tuple(logits.shape)}, expected [R, {self.vocab_size}]")
        if all(self._is_argmax(row) for row in rows):
            return self._sample_greedy(logits, rows)
        host: Floats = logits.detach().to("cpu", torch.float32).numpy()
        best = host.argmax(axis=1) if len(host) else np.zeros(0, np.int64)
        # argmax gives the first NaN if there is one, and +inf over any number: the peak tells for the whole row.
        peaks = host[np.arange(len(host)), best]
        finite = np.isfinite(peaks)
        return [self._sample_sequence(host, best, peaks, finite, row) for row in rows]

    def _is_argmax(self, row: SampleRow) -> bool:
        if not row.sample:
            return not row.prompt_targets
        sequence = self._live.get(row.sequence_id)
        return (
            sequence is not None
            and sequence.plain
            and sequence.params.logprobs is None
            and not row.prompt_targets
            and not row.drafts
            and not sequence.adjustments.holds_off_stops(sequence.output_length)
        )

    def _sample_greedy(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledSequence]:
        if logits.device.type == "cpu":
            host: Floats = logits.detach().numpy()
            tokens = host.argmax(axis=1) if len(host) else np.zeros(0, np.int64)
            finite = np.isfinite(host[np.arange(len(host)), tokens])
        else:
            peaks, best = logits.max(dim=1)
            tokens, finite = best.cpu().numpy(), peaks.isfinite().cpu().numpy()
        results = []
        for row in rows:
            if not row.sample:
                results.append(SampledSequence(row.sequence_id, ()))
            elif not finite[row.stop - 1]:
                results.append(_failed(row, _NON_FINITE))
            else:
                token = int(tokens[row.stop - 1])
                self._live[row.sequence_id].observe(token)
                results.append(SampledSequence(row.sequence_id, (token,)))
        return results

    def _sample_sequence(
        self,
        host: Floats,
        best: NDArray[np.int64],
        peaks: Floats,
        finite: NDArray[np.bool_],
        row: SampleRow,
    ) -> SampledSequence:
        if row.start == row.stop:
            return SampledSequence(row.sequence_id, ())
        sequence = self._live.get(row.sequence_id)
        if sequence is None:
            return _failed(row, "the sampler does not know this sequence")
        if not finite[row.start : row.stop].all():
            return _failed(row, _NON_FINITE)
        top = sequence.params.prompt_logprobs or 0
        prompt_logprobs = tuple(
            token_logprobs(host[row.start + i], target, top, self._weights)
            for i, target in enumerate(row.prompt_targets)
        )
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] = []
        error: str | None = None
        first = row.start + len(row.prompt_targets)
        for i in range(len(row.drafts) + 1 if row.sample else 0):
            r = first + i
            try:
                token = (
                    int(best[r]) if self._takes_best(sequence) else self._choose(sequence, host[r], float(peaks[r]))
                )
            except _Dead as dead:
                error = None if tokens else str(dead)
                break
            tokens.append(token)
            sequence.observe(token)
            if sequence.params.logprobs is not None:
                logprobs.append(token_logprobs(host[r], token, sequence.params.logprobs, self._weights))
            if i == len(row.drafts) or token != row.drafts[i] or self._ends(sequence, token):
                break
        failed = error is not None
        return SampledSequence(row.sequence_id, tuple(tokens), tuple(logprobs), prompt_logprobs, error, failed)

    def _choose(self, sequence: _Sequence, raw: Floats, peak: float) -> int:
        """One token from one row, by everything the sequence asks for. `raw` is left as it is."""
        params, adjustments = sequence.params, sequence.adjustments
        logits = raw
        early = adjustments.early_stops if adjustments.holds_off_stops(sequence.output_length) else None
        if adjustments.changes_logits or early is not None or sequence.guided is not None:
            logits = self._logits
            np.copyto(logits, raw)
            adjustments.apply(logits)
            if sequence.guided is not None:
                if (failure := sequence.guided.mask(logits, early)) is not None:
                    raise _Dead(failure)
            elif early is not None:
                logits[early] = -np.inf
            best = int(logits.argmax())
            peak = float(logits[best])
            if not np.isfinite(peak):
                raise _Dead(_NONE_LEFT)
            if sequence.greedy:
                return best
        weights = weights_of(logits, peak, params.temperature, self._weights)
        return draw(weights, threshold_of(weights, params), uniform(sequence.seed, sequence.output_length))

    def _takes_best(self, sequence: _Sequence) -> bool:
        return sequence.plain and not sequence.adjustments.holds_off_stops(sequence.output_length)

    def _ends(self, sequence: _Sequence, token: int) -> bool:
        params = sequence.params
        return token in params.stop_token_ids or (token in self._eos and not params.ignore_eos)


_NONE_LEFT = (
    "no token is left to choose: bias, bad_words, allowed_token_ids, min_tokens and the grammar exclude them all"
)
_NON_FINITE = "the model produced a non-finite logit (NaN or infinity)"


def _failed(row: SampleRow, error: str) -> SampledSequence:
    return SampledSequence(row.sequence_id, (), error=error)
