"""Who waits, and who is next: by priority and arrival, until one has waited too long."""

from bisect import bisect_left, insort

from shoal.policy.batching.request import Rank, SequenceState


def _rank(sequence: SequenceState) -> Rank:
    return sequence.rank


def _due(sequence: SequenceState) -> tuple[float, int]:
    return sequence.progressed, sequence.order


class WaitingQueue:
    """Sequences in order of rank. A rank must not change, nor `progressed`, while the sequence waits here.

    A sequence that has had no token for longer than `starvation_bound` seconds is aged: it then ranks before all
    that are not, and among the aged the first to arrive is the first served, so it is overtaken by finitely many.
    """

    def __init__(self, starvation_bound: float) -> None:
        self._bound = starvation_bound
        self._by_rank: list[SequenceState] = []
        self._by_due: list[SequenceState] = []
        """Those not aged yet, the longest waiting first."""

    def __len__(self) -> int:
        return len(self._by_rank)

    def __getitem__(self, position: int) -> SequenceState:
        return self._by_rank[position]

    def push(self, sequence: SequenceState) -> None:
        insort(self._by_rank, sequence, key=_rank)
        if not sequence.aged:
            insort(self._by_due, sequence, key=_due)

    def remove(self, sequence: SequenceState) -> None:
        del self._by_rank[bisect_left(self._by_rank, sequence.rank, key=_rank)]
        if not sequence.aged:
            del self._by_due[bisect_left(self._by_due, _due(sequence), key=_due)]

    def age(self, now: float) -> None:
        """Let those that waited too long by `now` (seconds) outrank the rest."""
        while self._by_due and now - self._by_due[0].progressed > self._bound:
            sequence = self._by_due[0]
            self.remove(sequence)
            sequence.age()
            self.push(sequence)

    @property
    def next_due(self) -> float | None:
        """`progressed` of the one that will be aged first; None: nobody will be."""
        return self._by_due[0].progressed if self._by_due else None
