"""The messages between the one who decides and those who execute.

`StepPlan` is the only thing that crosses from the scheduler to the ranks. It carries everything a rank needs for
one forward pass and nothing a rank could disagree about. Messages are msgspec structs: typed, frozen, and cheap
to send over a socket or shared memory without pickle.

    positions of one sequence     0 ........ start ........... start+len(tokens)
                                  │ in the cache │ computed by this plan │
"""

import msgspec

from shoal.policy.experts import LayerLoad


class ScheduledSequence(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's share of a step."""

    sequence_id: int
    start: int
    """Position of the first token to compute; everything before it is already in the KV cache."""
    tokens: tuple[int, ...]
    """Token ids of positions start … start+len-1. One for plain decode, more for prefill or to verify drafts."""
    reset: bool
    """The rank forgets any earlier block table and sampler state of this id (first time seen, or resumed)."""
    blocks: tuple[int, ...]
    """Blocks appended to the sequence's table (the whole table when `reset`)."""
    sample: bool
    """The last row is the newest known token: sample the next one from it."""
    drafts: int = 0
    """How many of the last tokens are speculative drafts to verify."""
    output: tuple[int, ...] = ()
    """Only with `reset`: the output so far of a sequence that resumes, for penalties, seeds and grammars."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One forward pass of a batch. Rows of all sequences lie one after another, prefill and decode mixed."""

    step: int
    micro_batch: int
    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """(source, target) blocks to copy before anything is written: copy-on-write."""
    finished: tuple[int, ...] = ()
    """Ids whose rank-side state can be dropped (ended, aborted or preempted since the last plan)."""
    lanes: tuple["StepPlan", ...] = ()
    """With data-parallel lanes, what each lane computes in this step, without sequences for an idle one;
    `sequences` is then all of theirs, and block numbers are those of the lane."""

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.sequences)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities at one position: the chosen token first, then the top-k."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    rank: int
    """Rank of the chosen token in the whole vocabulary, 1 = most likely."""


class SampledSequence(msgspec.Struct, frozen=True, array_like=True):
    sequence_id: int
    tokens: tuple[int, ...]
    """New tokens, in order; empty for a prefill chunk that does not reach the end of the prompt."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """For the prompt rows of this step: entry i belongs to position start + i + 1."""
    error: str | None = None
    """The sequence cannot go on (a grammar that admits no token, a non-finite logit): finish it with this."""
    constraint_failed: bool = False
    """With `error`: the request's own constraints (a grammar, token lists) are the reason, not the engine."""


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    step: int
    sequences: tuple[SampledSequence, ...]
    expert_loads: tuple[LayerLoad, ...] = ()
    """Where it was asked for: what went to the experts of each layer since it was last asked."""
