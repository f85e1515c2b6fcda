"""A wire with a length: packets between two TUN devices, each handed on a set time after it was read.

    python -m wire.relay FD_A FD_B      commands on stdin, one a line: the delay of one direction in seconds

Kernels without the netem queueing discipline can shape bandwidth (tbf) but not delay, so this process is the delay.
It sees whole IP packets: TCP's own acknowledgements and windows are delayed as on a real wire of that length.
"""

import contextlib
import ctypes
import os
import select
import sys
import time
from collections import deque

_PR_SET_TIMERSLACK = 29
_MAX_PACKET = 65536
_BURST = 64
"""Packets read from one side before the other gets its turn."""


class Direction:
    """Packets on their way from one device to the other."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self._target = target
        self._flying: deque[tuple[float, bytes]] = deque()
        self.delay = 0.0

    def read(self) -> None:
        for _ in range(_BURST):
            try:
                packet = os.read(self.source, _MAX_PACKET)
            except BlockingIOError:
                return
            self._flying.append((time.monotonic() + self.delay, packet))

    def deliver(self) -> float | None:
        """Write what is due; seconds until the next is, None if there is none."""
        while self._flying:
            left = self._flying[0][0] - time.monotonic()
            if left > 0:
                return left
            # A full queue drops the packet, as a switch would.
            with contextlib.suppress(BlockingIOError):
                os.write(self._target, self._flying[0][1])
            self._flying.popleft()
        return None


def relay(a: int, b: int, commands: int) -> None:
    """Until `commands` is closed."""
    ways = (Direction(a, b), Direction(b, a))
    while True:
        waits = [wait for way in ways if (wait := way.deliver()) is not None]
        ready, _, _ = select.select([a, b, commands], [], [], min(waits, default=None))
        for way in ways:
            if way.source in ready:
                way.read()
        if commands in ready:
            said = os.read(commands, 4096).decode()
            if not said:
                return
            for way in ways:
                way.delay = float(said.split()[-1])


def main() -> None:
    a, b = int(sys.argv[1]), int(sys.argv[2])
    os.set_blocking(a, False)
    os.set_blocking(b, False)
    # Timers to the microsecond, and ahead of the ranks in the queue for a core: a wire doesn't compete for one.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(90))
    relay(a, b, sys.stdin.fileno())


if __name__ == "__main__":
    main()
