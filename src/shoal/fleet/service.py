"""The fleet as one program: supervisor, health, gateway and HTTP server with one life.

bind ─► listen ─► start replicas ─► ready ─► (reload, renew)* ─► drain ─► everything ended
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal.fleet.config import FleetConfig
from shoal.fleet.gateway import Gateway
from shoal.fleet.health import HealthMonitor
from shoal.fleet.index import Followers
from shoal.fleet.registry import Registry
from shoal.fleet.sharing import Sharing
from shoal.fleet.supervisor import Supervisor
from shoal.http.serving import on_signals, serve_while
from shoal.http.work_threads import use_work_threads
from shoal.specs.errors import SpecError

log = logging.getLogger("shoal.fleet")

_FOREVER = 86_400.0


class CurrentApp:
    """The application that the server calls: the current gateway. A request stays with the one that it came to."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        await self.app(scope, receive, send)


Equip = Callable[["FleetService", Gateway], ASGIApp]
"""Adds pages and observers to a new gateway; returns what is to be served: the gateway, or something around it."""


class FleetService:
    """Run once. `stop`, `reload` and `renew` may be called at any time from its event loop."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        cores: int,
        equip: Equip | None = None,
        read_config: Callable[[], FleetConfig] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read_config` reads the configuration anew for `reload`. `clock` is the event loop's, in seconds."""
        self.config = config
        self.registry = Registry(config.breaker, clock)
        self.supervisor = Supervisor(self.registry, config, cores=cores)
        self.gateway: Gateway | None = None
        self.reloads = 0
        self._equip: Equip = equip or (lambda service, gateway: gateway)
        self._read_config = read_config
        self.current = CurrentApp()
        self._monitor: HealthMonitor | None = None
        self._followers: Followers | None = None
        self.sharing = Sharing(self.registry)
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._tasks: dict[asyncio.Future[object], None] = {}
        self._retired: dict[Gateway, None] = {}
        """Gateways of earlier configurations that still have requests."""

    def stop(self) -> None:
        """Drain, then end. Called again: end at once."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def run(
        self, sock: socket.socket, on_ready: Callable[["FleetService"], Awaitable[None]] | None = None
    ) -> None:
        """Serve on `sock` until stopped. `FleetError` if a pool can't be brought up; nothing is left then."""
        self._open(self.config)
        listen = self.config.listen
        app: ASGIApp = self.current
        if listen.cors_origins:
            app = CORSMiddleware(app, allow_origins=listen.cors_origins, allow_methods=["*"], allow_headers=["*"])
        use_work_threads(asyncio.get_running_loop())
        await serve_while(
            app,
            sock,
            self._live(on_ready),
            close=self._close,
            force=self._force.is_set,
            certificate=listen.tls_certificate,
            key=listen.tls_key,
        )

    def _open(self, config: FleetConfig) -> None:
        """Serve with this configuration from now on; the gateway before it ends what it has begun."""
        old, same_router = self.gateway, self.gateway is not None and config.router == self.config.router
        # What the router has learned stays where its rules stay.
        router = old.router if old is not None and same_router else None
        gateway = Gateway(self.registry, config.gateway_config(), router=router)
        gateway.start()
        self.gateway, self.config = gateway, config
        self.current.app = self._equip(self, gateway)
        self._background(self.sharing.attach(gateway, config.shared))
        if old is not None:
            self._retired[old] = None
            self._background(self._retire(old))
        if router is None and (index := gateway.router.event_index) is not None:
            if self._followers is not None:
                self._background(self._followers.stop())
            self._followers = Followers(self.registry, index)
            self._followers.start()

    async def _retire(self, gateway: Gateway) -> None:
        await gateway.drain(_FOREVER)
        self._retired.pop(gateway, None)

    def _background(self, work: "Awaitable[object]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def _watch_health(self, config: FleetConfig) -> None:
        if self._monitor is not None:
            self._background(self._monitor.stop())
        self._monitor = HealthMonitor(self.registry, config.health)
        self._monitor.start()

    async def _live(self, on_ready: Callable[["FleetService"], Awaitable[None]] | None) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        starting = greeting = None
        try:
            self._watch_health(self.config)
            self.supervisor.start()
            starting = asyncio.ensure_future(self.supervisor.settled())
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return
            starting.result()
            greeting = asyncio.ensure_future(on_ready(self)) if on_ready is not None else None
            await stopped
        finally:
            for task in (stopped, starting, greeting):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(t for t in (stopped, starting, greeting) if t), return_exceptions=True)

    # Changes while it runs.

    def reload(self) -> None:
        """Read the configuration again and bring the fleet to it; a bad one changes nothing."""
        self._background(self._reload())

    def renew(self) -> None:
        """Start every replica again, one after the other."""
        self._background(self._renew())

    async def _renew(self) -> None:
        log.warning("renewal: %s", (await self.supervisor.renew()).text())

    async def _reload(self) -> None:
        if self._read_config is None:
            log.warning("there is no configuration file to read again")
            return
        try:
            config = await asyncio.to_thread(self._read_config)
        except SpecError as error:
            log.error("the configuration stays as it is: %s", error)
            return
        if self._stop.is_set():
            # A gateway that begins now would be drained by nobody.
            return
        if config.listen != self.config.listen:
            log.warning("listen: a change needs a restart of the fleet")
        if config.health != self.config.health:
            self._watch_health(config)
        if config.breaker != self.config.breaker:
            self.registry.set_breaker(config.breaker)
        self._open(config)
        applied = await self.supervisor.apply(config)
        self.reloads += 1
        log.warning("reload: %s", applied.text())

    # The end.

    async def _close(self) -> None:
        assert self.gateway is not None
        gateways = [self.gateway, *self._retired]
        seconds = self.config.supervisor.drain_seconds
        draining = asyncio.ensure_future(asyncio.wait([asyncio.ensure_future(g.drain(seconds)) for g in gateways]))
        forced = asyncio.ensure_future(self._force.wait())
        await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if not draining.done():
            await asyncio.gather(*(gateway.drain(0) for gateway in gateways))
        await asyncio.gather(draining, forced, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.supervisor.close(force=self._force.is_set)
        await self.sharing.close()
        if self._followers is not None:
            await self._followers.stop()
        if self._monitor is not None:
            await self._monitor.stop()
        self.registry.close()


def signals_steer(service: FleetService) -> AbstractContextManager[None]:
    """SIGINT and SIGTERM stop it (twice: at once), SIGHUP reloads, SIGUSR2 renews."""
    return on_signals(
        {
            signal.SIGINT: service.stop,
            signal.SIGTERM: service.stop,
            signal.SIGHUP: service.reload,
            signal.SIGUSR2: service.renew,
        }
    )
