"""A step while it is put together, and then while it is in flight."""

from dataclasses import dataclass, field

from shoal.policy.batching.plan import SampledSequence, ScheduledSequence, StepPlan
from shoal.policy.batching.request import Output, SequenceState


@dataclass(slots=True)
class Share:
    """One sequence's part of a step: positions start … start+rows-1, the last of them drafts."""

    sequence: SequenceState
    start: int
    rows: int
    drafts: tuple[int, ...]
    pending: tuple[bytes, ...]
    """Hashes of the blocks that these rows fill."""

    @property
    def samples(self) -> bool:
        """Whether its rows reach the newest known token. Asked before the step's result is taken in."""
        return self.start + self.rows - len(self.drafts) == self.sequence.length

    def message(self) -> ScheduledSequence:
        """What the ranks are told; everything they were not told before."""
        sequence = self.sequence
        known = sequence.tokens[self.start : self.start + self.rows - len(self.drafts)]
        reset = sequence.sent_blocks == 0
        return ScheduledSequence(
            sequence_id=sequence.id,
            start=self.start,
            tokens=(*known, *self.drafts),
            reset=reset,
            blocks=tuple(sequence.blocks[sequence.sent_blocks :]),
            sample=self.samples,
            drafts=len(self.drafts),
            output=tuple(sequence.tokens[sequence.prompt_length :]) if reset else (),
        )

    def take_in(self, answer: SampledSequence, now: float) -> Output | None:
        """Advance the sequence, which is live, by what this share yielded."""
        sequence = self.sequence
        error = answer.error
        if error is None and self.samples != bool(answer.tokens):
            error = f"the step yielded {len(answer.tokens)} tokens where {int(self.samples)} or more were due"
        if error is None and len(answer.tokens) > len(self.drafts) + 1:
            error = f"the step yielded {len(answer.tokens)} tokens for {len(self.drafts)} drafts"
        if error is not None:
            sequence.finish_reason = "error"
            return sequence.output(error=error, constraint_failed=answer.constraint_failed)
        prompt_logprobs = answer.prompt_logprobs[max(0, sequence.prompt_rows - self.start) :]
        prompt_logprobs = prompt_logprobs[: sequence.prompt_length - 1 - sequence.prompt_rows]
        sequence.prompt_rows += len(prompt_logprobs)
        if not answer.tokens:
            return sequence.output(prompt_logprobs=prompt_logprobs) if prompt_logprobs else None
        # The last token of the answer was sampled, those before it are drafts that were right.
        sequence.computed -= len(self.drafts) - (len(answer.tokens) - 1)
        tokens: list[int] = []
        for token in answer.tokens:
            tokens.append(token)
            sequence.finish_reason = sequence.accept(token)
            if sequence.finish_reason is not None:
                break
        sequence.progressed = now
        sequence.first_token = now if sequence.first_token is None else sequence.first_token
        return sequence.output(
            tokens=tuple(tokens),
            logprobs=answer.logprobs[: len(tokens)],
            prompt_logprobs=prompt_logprobs,
            stop_token=tokens[-1] if sequence.finish_reason == "stop" else None,
        )


@dataclass(slots=True)
class Step:
    """The shares of a step and what is left to deal."""

    budget: int
    """Rows."""
    seats: int
    """Sequences."""
    micro_batch: int
    number: int
    shares: dict[int, Share] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, target) blocks; the sources are held until the step is over."""
    short: bool = False
    """Blocks ran out: nobody is admitted, or preempted and resumed requests would chase each other."""
    blocked: bool = False
    """The first in line was not admitted for want of blocks."""

    @property
    def open(self) -> bool:
        return self.budget > 0 and len(self.shares) < self.seats

    def message(self, dropped: tuple[int, ...]) -> StepPlan:
        """What the ranks are told; `dropped` are sequences that they can forget."""
        return StepPlan(
            step=self.number,
            micro_batch=self.micro_batch,
            sequences=tuple(share.message() for share in self.shares.values()),
            copies=tuple(self.copies),
            finished=dropped,
        )
