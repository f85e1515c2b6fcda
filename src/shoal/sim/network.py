"""Transfers between replicas: every replica has a link, as wide out as in, and transfers share links fairly.

A transfer's rate is its max-min fair share of the two links that it crosses (Bertsekas and Gallager, Data Networks,
1992, 6.5.2): links are filled evenly, and what a transfer can't use because its other link is narrower goes to the
others. Rates change only when a transfer begins or ends, or a link changes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from shoal.sim.events import NANOSECONDS, Events


@dataclass(slots=True, eq=False)
class Transfer:
    """Bytes on their way."""

    source: str
    target: str
    size: float
    """Bytes."""
    done: Callable[[int], None]
    """Called once, when all have arrived."""
    left: float
    rate: float = 0.0
    """Bytes per second."""
    ends: int | None = None
    """At this rate; None: never."""

    @property
    def moved(self) -> float:
        """Bytes that had arrived when rates last changed."""
        return self.size - self.left


class Network:
    """All links and the transfers over them."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._links: dict[str, float] = {}
        self._factors: dict[str, float] = {}
        self._still: dict[str, None] = {}
        self._transfers: dict[Transfer, None] = {}
        self._since = 0
        """When rates last changed."""
        self._ticket = 0

    def add(self, name: str, bytes_per_second: float) -> None:
        """Give a replica its link."""
        self._links[name] = bytes_per_second

    def slow_down(self, name: str, factor: float, time: int) -> None:
        """A link has 1 / `factor` of its bandwidth from now on; 1: all of it."""
        self._settle(time)
        self._factors[name] = factor
        self._share(time)

    def stand_still(self, name: str, still: bool, time: int) -> None:
        """Nobody reads or writes at a replica's end of its link, or does again."""
        self._settle(time)
        if still:
            self._still[name] = None
        else:
            self._still.pop(name, None)
        self._share(time)

    def begin(self, source: str, target: str, size: float, done: Callable[[int], None], time: int) -> Transfer:
        """Begin to move so many bytes."""
        self._settle(time)
        transfer = Transfer(source, target, size, done, size)
        self._transfers[transfer] = None
        self._share(time)
        return transfer

    def stop(self, transfer: Transfer, time: int) -> float:
        """Break a transfer off; the bytes that have arrived."""
        self._settle(time)
        if self._transfers.pop(transfer, self) is None:
            self._share(time)
        return transfer.moved

    @property
    def transfers(self) -> int:
        """How many are under way."""
        return len(self._transfers)

    def _settle(self, time: int) -> None:
        """Move what has moved since rates last changed."""
        seconds, self._since = (time - self._since) / NANOSECONDS, time
        for transfer in self._transfers:
            transfer.left = max(0.0, transfer.left - transfer.rate * seconds)

    def _bandwidth(self, name: str) -> float:
        return 0.0 if name in self._still else self._links[name] / self._factors.get(name, 1.0)

    def _share(self, time: int) -> None:
        """Set all rates, and expect the next end."""
        open_links: dict[tuple[str, str], tuple[float, list[Transfer]]] = {}
        for transfer in self._transfers:
            for link in (("out", transfer.source), ("in", transfer.target)):
                open_links.setdefault(link, (self._bandwidth(link[1]), []))[1].append(transfer)
        unset = dict.fromkeys(self._transfers)
        while unset:
            # The link that gives each of its transfers least is full: their rates are set.
            narrow = min(open_links, key=lambda link: open_links[link][0] / len(open_links[link][1]))
            bandwidth, mine = open_links.pop(narrow)
            rate = bandwidth / len(mine)
            for transfer in mine:
                self._set(transfer, rate, time)
                del unset[transfer]
                other = ("in", transfer.target) if narrow[0] == "out" else ("out", transfer.source)
                left, theirs = open_links[other]
                theirs.remove(transfer)
                if theirs:
                    open_links[other] = max(0.0, left - rate), theirs
                else:
                    del open_links[other]
        self._ticket += 1
        ends = [transfer.ends for transfer in self._transfers if transfer.ends is not None]
        if ends:
            ticket = self._ticket
            self._events.at(min(ends), lambda at: self._on_end(ticket, at))

    @staticmethod
    def _set(transfer: Transfer, rate: float, time: int) -> None:
        transfer.rate = rate
        if not transfer.left:
            transfer.ends = time
        elif rate:
            transfer.ends = time + math.ceil(transfer.left / rate * NANOSECONDS)
        else:
            transfer.ends = None

    def _on_end(self, ticket: int, time: int) -> None:
        if ticket != self._ticket:
            return
        self._settle(time)
        ended = [t for t in self._transfers if t.ends is not None and t.ends <= time]
        for transfer in ended:
            transfer.left = 0.0
            del self._transfers[transfer]
        self._share(time)
        for transfer in ended:
            transfer.done(time)
