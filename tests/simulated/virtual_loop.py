"""An asyncio event loop in virtual time: its clock jumps to the next timer as soon as nothing is ready.

It has no selector, sockets, threads or processes: connections are those of a `Network`, processes those of a
`ProcessTable`, and what would run in a thread runs in the loop after a delay. Callbacks that are ready at the same
time run in an order drawn from a seed: any interleaving can happen, and each can be repeated.
"""

import asyncio
import heapq
import random
from collections.abc import Callable
from typing import Any, Protocol

START_SECONDS = 1000.0
"""What the clock says at the start: a deadline of 0 means none in some places."""
_THREAD_SECONDS = 0.002


class Deadlock(RuntimeError):
    """Nothing is ready, and no timer will make anything so."""


class Transports(Protocol):
    """What makes connections."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Any, Any]: ...
    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, sock: Any) -> Any: ...


class Processes(Protocol):
    """What starts processes."""

    async def start(self, factory: Callable[[], Any], argv: tuple[str, ...]) -> tuple[Any, Any]: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """Set `network` and `processes` before anything connects or is started."""

    network: Transports
    processes: Processes

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._now = START_SECONDS
        self._draws = random.Random(f"{seed}/order")
        self.stall_rate = 0.0
        """Chance, per callback, that the process stands still before it."""
        self.callbacks = 0
        """Run so far."""
        self.unhandled: list[str] = []
        """What reached the loop's exception handler."""
        self.set_exception_handler(self._on_unhandled)

    def _on_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.unhandled.append(f"{context.get('message')}: {error!r}")

    def time(self) -> float:
        return self._now

    # What BaseEventLoop asks of a loop.

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Deadlock("nothing is ready and no timer is set")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        batch = list(ready)
        ready.clear()
        if len(batch) > 1:
            self._draws.shuffle(batch)
        for handle in batch:
            if not handle._cancelled:
                self.callbacks += 1
                if self.stall_rate and self._draws.random() < self.stall_rate:
                    self._now += self._draws.expovariate(10.0)
                handle._run()

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    # The world outside.

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self._draws.random() * _THREAD_SECONDS, work)
        return future

    def set_default_executor(self, executor: Any) -> None:
        executor.shutdown(wait=False)

    async def shutdown_default_executor(self) -> None: ...

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        assert not options.get("ssl"), "there is no TLS here"
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert not options.get("ssl"), "there is no TLS here"
        return self.network.listen(protocol_factory, host, port, options.get("sock"))

    async def subprocess_exec(self, protocol_factory: Any, *argv: Any, **options: Any) -> Any:
        return await self.processes.start(protocol_factory, argv)
