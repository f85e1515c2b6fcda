"""A step while it is put together, and then while it is in flight."""

from dataclasses import dataclass, field

from shoal.policy.batching.plan import ScheduledSequence
from shoal.policy.batching.request import SequenceState


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


@dataclass(slots=True)
class Step:
    """The shares of a step and what is left to deal."""

    budget: int
    """Rows."""
    seats: int
    """Sequences."""
    micro_batch: int
    shares: dict[int, Share] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source, target) blocks; the sources are held until the step is over."""
    short: bool = False
    """Blocks ran out: nobody is admitted, or preempted and resumed requests would chase each other."""

    @property
    def open(self) -> bool:
        return self.budget > 0 and len(self.shares) < self.seats
