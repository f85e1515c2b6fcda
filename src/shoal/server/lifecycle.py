"""From a bound socket to a served model, and back: bind → listen → load → ready → drain → closed.

The socket is bound before the model is loaded, so that a port in use costs a second and not a minute; `/health`
answers while the model loads, `/ready` once it has.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from shoal.engine.async_engine import AsyncEngine
from shoal.engine.options import EngineOptions
from shoal.engine.outputs import Observer, RequestTimings, StepStats
from shoal.engine.pooling.engine import PoolingEngine, open_pooling
from shoal.http.serving import FLUSH_SECONDS, on_signals, serve_while
from shoal.http.work_threads import spare_the_collector, use_work_threads
from shoal.server.app import build_app
from shoal.server.options import ServerOptions
from shoal.server.state import ServerState

log = logging.getLogger("shoal.server")


class Observers:
    """Several as one."""

    def __init__(self, all_of_them: Sequence[Observer]) -> None:
        self._all = tuple(all_of_them)

    def on_step(self, stats: StepStats) -> None:
        for observer in self._all:
            observer.on_step(stats)

    def on_finished(self, timings: RequestTimings) -> None:
        for observer in self._all:
            observer.on_finished(timings)


class ReplicaServer:
    """One served model: HTTP server and engine with one life."""

    def __init__(
        self,
        engine_options: EngineOptions,
        options: ServerOptions,
        model_name: str,
        *,
        pages: Callable[["ReplicaServer"], Sequence[BaseRoute]] = lambda replica: (),
        observers: Sequence[Observer] = (),
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    ) -> None:
        """`pages` are served beside the API, `observers` told of steps and requests, `around` wraps the whole."""
        self._engine_options = engine_options
        self._pages = pages
        self._around = around
        self._options = options
        self.state = ServerState(
            options, model_name, created=int(time.time()), adapters=[lora.name for lora in engine_options.loras]
        )
        self.engine: AsyncEngine | None = None
        self.pooling: PoolingEngine | None = None
        """In place of `engine`, of a model that gives vectors or scores."""
        self._observer: Observer = Observers((self.state.metrics, *observers)) if observers else self.state.metrics
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    @property
    def devices(self) -> int:
        """Ranks that compute for it."""
        return self._engine_options.layout.world

    def stop(self) -> None:
        """Drain, then end. Called again: end at once."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def run(
        self, sock: socket.socket, on_ready: Callable[["ReplicaServer"], Awaitable[None]] | None = None
    ) -> None:
        """Serve on `sock` until stopped. Errors of loading the model are raised once the socket is closed again."""
        use_work_threads(asyncio.get_running_loop())
        app = self._around(build_app(self.state, self._pages(self)))
        await serve_while(app, sock, self._live(on_ready), close=self._close, force=self._force.is_set)

    async def _live(self, on_ready: Callable[["ReplicaServer"], Awaitable[None]] | None) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            loading = asyncio.ensure_future(self._load())
            await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                return
            loading.result()
            spare_the_collector()
            log.info("ready: %s", self.state.model_name)
            greeting = asyncio.ensure_future(on_ready(self)) if on_ready is not None else None
            await stopped
            if greeting is not None:
                greeting.cancel()
                await asyncio.gather(greeting, return_exceptions=True)
        finally:
            stopped.cancel()

    async def _load(self) -> None:
        self.pooling = await asyncio.to_thread(open_pooling, self._engine_options)
        if self.pooling is not None:
            self.state.attach_pooling(self.pooling)
            return
        self.engine = await AsyncEngine.start(
            self._engine_options, observer=self._observer, kv_key=self._options.kv_key
        )
        self.state.attach(self.engine)

    async def _close(self) -> None:
        """Let requests in flight end within the deadline, end the rest with a retryable error, free everything."""
        self.state.draining = True
        engine = self.engine or self.pooling
        if engine is None:
            return
        draining = asyncio.ensure_future(engine.drain(self._options.drain_seconds))
        forced = asyncio.ensure_future(self._force.wait())
        await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, forced):
            task.cancel()
        await asyncio.gather(draining, forced, return_exceptions=True)
        self.state.cancel_requests()
        await engine.drain(FLUSH_SECONDS)
        await engine.close()


def signals_stop(replica: ReplicaServer) -> AbstractContextManager[None]:
    """SIGINT and SIGTERM stop `replica`; the second one at once."""
    return on_signals(dict.fromkeys((signal.SIGINT, signal.SIGTERM), replica.stop))
