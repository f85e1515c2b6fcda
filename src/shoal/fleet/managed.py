"""One wanted replica's life: start → prove → serve → crash → back off → start again, until it is stopped.

    ┌──────────── backoff ◄───────── crash
    ▼                                  ▲
starting ──a generated token──► ready ─┤
    │                                  └► draining ─► stopped
    └── crashed too often, or refused its options ──► failed
"""

import asyncio
import contextlib
import logging
import os
import random
import socket
from enum import StrEnum
from pathlib import Path

from shoal.engine.options import default_name
from shoal.fleet.adapters import Dialect, LaunchRequest, ModelCard, ReadinessGate
from shoal.fleet.config import Pool
from shoal.fleet.context import FleetContext
from shoal.fleet.launch import ReplicaLog, ReplicaProcess, free_port_pair
from shoal.fleet.proof import prove
from shoal.fleet.registry import ReplicaHandle
from shoal.fleet.weights import weights_of
from shoal.policy.restarts import RestartPolicy

log = logging.getLogger("shoal.fleet")

REFUSED = 2
"""Exit code of a replica that can never work as it was asked to."""


class ReplicaPhase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    BACKOFF = "backoff"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class _Crashed(Exception):
    def __init__(self, how: str, *, final: bool = False) -> None:
        """`final`: starting it again is of no use."""
        super().__init__(how)
        self.final = final


class ManagedReplica:
    """One wanted replica. Begun once; `stop` drains it first, `end` doesn't."""

    def __init__(
        self, pool: Pool, place: int, dialect: Dialect, context: FleetContext, url: str | None = None
    ) -> None:
        """`url`: where it runs; None: it is started here."""
        self.pool = pool
        self.place = place
        self.name = f"{pool.name}-{place}"
        self.state = ReplicaPhase.STARTING
        self.url = url
        self.attached = url is not None
        self.restarts = 0
        self.problem = ""
        """What went wrong last."""
        self._told = ""
        """The problem that was logged last."""
        self._clock = context.registry.clock
        self.since = self._clock()
        """When it came into its state."""
        self.settled = asyncio.Event()
        """Ready for the first time, or given up, or stopped."""
        self._dialect = dialect
        self._context = context
        self._log = ReplicaLog(context.log_dir / f"{self.name}.log", context.settings.log_bytes)
        self._gate: ReadinessGate | None = None
        self._process: ReplicaProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._restarts = RestartPolicy(context.settings, attached=self.attached)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def age(self) -> float:
        """Seconds in its state."""
        return self._clock() - self.since

    @property
    def log_path(self) -> Path | None:
        return None if self.attached else self._log.path

    def log_tail(self) -> str:
        """Return what its process wrote last, as the end of a sentence; empty if it wrote nothing."""
        tail = self._log.tail()
        return f"; it said last:\n{tail}" if tail else ""

    def _enter(self, state: ReplicaPhase) -> None:
        self.state, self.since = state, self._clock()
        if state in (ReplicaPhase.READY, ReplicaPhase.FAILED, ReplicaPhase.STOPPED):
            self.settled.set()

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        try:
            while True:
                try:
                    await self._serve()
                except _Crashed as crash:
                    delay = self._on_crash(crash)
                except Exception as error:
                    log.exception("replica %s", self.name)
                    delay = self._on_crash(_Crashed(f"could not be started: {error}"))
                finally:
                    await self._kill()
                if delay is None:
                    return
                await asyncio.sleep(delay)
                self.restarts += 1
        finally:
            await self._kill()

    def _on_crash(self, crash: _Crashed) -> float | None:
        """Return the seconds until it is started again; None: it is given up."""
        served = self.age if self.state is ReplicaPhase.READY else 0.0
        delay = self._restarts.on_crash(served, random.random(), final=crash.final)
        self.problem = str(crash)
        if delay is None:
            log.error("replica %s %s; it is given up%s", self.name, crash, self.log_tail())
            self._enter(ReplicaPhase.FAILED)
        else:
            log.warning("replica %s %s; it is started again%s", self.name, crash, self.log_tail())
            self._enter(ReplicaPhase.BACKOFF)
        return delay

    # One process.

    async def _serve(self) -> None:
        """From its start to its end, which is always a `_Crashed` (or being cancelled)."""
        self._enter(ReplicaPhase.STARTING)
        exited: asyncio.Future[object]
        if self.attached:
            self._register(*self._attached_access())
            exited = asyncio.ensure_future(asyncio.Event().wait())
        else:
            exited = asyncio.ensure_future(self._exit(await self._start()))
        proven = asyncio.ensure_future(self._prove())
        try:
            deadline = None if self.attached else self._context.settings.start_seconds
            await asyncio.wait({exited, proven}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                exited.result()
            if not proven.done():
                raise _Crashed(f"generated no token within {deadline:g} s of its start")
            proven.result()
            self._enter(ReplicaPhase.READY)
            watched = asyncio.ensure_future(self._watch())
            try:
                await asyncio.wait({exited, watched}, return_when=asyncio.FIRST_COMPLETED)
                (exited if exited.done() else watched).result()
            finally:
                watched.cancel()
        finally:
            exited.cancel()
            proven.cancel()
            await asyncio.gather(exited, proven, return_exceptions=True)
            self._down()

    async def _start(self) -> ReplicaProcess:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        try:
            port = listener.getsockname()[1]
            events = free_port_pair() if self.pool.kv_events else None
            order = LaunchRequest(
                name=self.name,
                pool=self.pool,
                port=port,
                listener=listener,
                threads=self.pool.threads or self._context.threads,
                kv_share=self._context.kv_share,
                api_key=self._context.secret,
                events_port=events,
                tracing=self._context.tracing,
                kv_key=self._context.kv_key,
            )
            command = self._dialect.command(order)
            self.url = f"http://127.0.0.1:{port}"
            address = self._dialect.traits.events_address.format(port=events) if events else None
            self._register(self._context.secret, address)
            process = self._process = ReplicaProcess(command, self._log)
            try:
                await process.start()
            except OSError as error:
                raise _Crashed(f"could not be started: {error.strerror or error}") from error
            return process
        finally:
            listener.close()

    async def _exit(self, process: ReplicaProcess) -> None:
        code = await process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        raise _Crashed(how, final=code == REFUSED and self.state is ReplicaPhase.STARTING)

    def _attached_access(self) -> tuple[str | None, str | None]:
        key = os.environ.get(self.pool.api_key_env) if self.pool.api_key_env else None
        urls = [url.rstrip("/") for url in self.pool.urls]
        assert self.url is not None
        place = urls.index(self.url)
        return key, self.pool.kv_events_urls[place] if self.pool.kv_events_urls else None

    def _register(self, api_key: str | None, events: str | None) -> None:
        """In the registry, not yet healthy: known, so that requests for its model wait and are not refused."""
        self._forget()
        assert self.url is not None
        adapter = self._dialect.adapter(self.url, api_key=api_key, events=events)
        self._gate = ReadinessGate(adapter)
        self._context.registry.add(self._handle(api_key, None), healthy=False)

    def _handle(self, api_key: str | None, card: ModelCard | None) -> ReplicaHandle:
        """`card`: what the engine calls its model, once it has said so."""
        traits, pool = self._dialect.traits, self.pool
        assert self.url is not None
        weights = weights_of(pool).key(pool.engine)
        if self.attached and card is not None and pool.weights is None:
            weights += "|" + default_name(card.root or card.id)
        return ReplicaHandle(
            name=self.name,
            url=self.url,
            models=pool.served_names,
            adapters=pool.adapter_names,
            engine_model=card.id if card is not None else None,
            pool=pool.name,
            role=pool.role,
            adapter=self._gate,
            api_key=api_key,
            max_inflight=pool.max_inflight,
            max_model_len=card.length if card is not None else 0,
            max_prompt_bytes=card.max_prompt_bytes or 0 if card is not None else 0,
            usage_in_stream=traits.usage_in_stream,
            returns_token_ids=traits.returns_token_ids,
            resumes=traits.resumes,
            any_request_id=traits.any_request_id,
            weights=weights,
            own=not self.attached,
            fallback=pool.fallback_order,
        )

    @property
    def _engine_names(self) -> tuple[str, ...]:
        """Names that its engine may know the model by."""
        pool = self.pool
        return (pool.model, *pool.models) if self.attached else pool.models[:1]

    async def _prove(self) -> None:
        """Until it has generated a token; then it is served."""
        card = await prove(lambda: self._gate, self._engine_names, self._on_problem)
        registry = self._context.registry
        handle = registry.get(self.name).handle
        proven = self._handle(handle.api_key, card)
        gate = self._gate
        assert gate is not None
        gate.open = True
        if proven != handle or not registry.get(self.name).state.healthy:
            registry.remove(self.name)
            registry.add(proven)
        self.problem = ""
        # Whoever was told that something is wrong wants to know that it no longer is.
        log.log(logging.WARNING if self._told else logging.INFO, "replica %s is ready at %s", self.name, self.url)
        self._told = ""

    def _on_problem(self, problem: str) -> None:
        """Nobody but us sees what is wrong with an attached replica: say it whenever it changes."""
        self.problem = problem
        if self.attached and problem != self._told:
            self._told = problem
            log.warning("replica %s at %s %s", self.name, self.url, problem)

    async def _watch(self) -> None:
        """Returns never; raises once it has been unhealthy for too long."""
        settings = self._context.settings
        while True:
            await asyncio.sleep(min(1.0, settings.unhealthy_seconds / 4))
            healthy = self._context.registry.get(self.name).state.healthy
            step = self._restarts.on_health(healthy, self._clock())
            if step == "prove":
                await self._prove()
            elif step == "kill":
                raise _Crashed(f"was unhealthy for {settings.unhealthy_seconds:g} s")

    def _down(self) -> None:
        """Its process is gone or going: end its legs at once, so that they are tried elsewhere."""
        if self._gate is not None:
            self._gate.open = False
        if self.name in self._context.registry and self.state is not ReplicaPhase.STOPPED:
            self._context.registry.set_health(self.name, False, "its process ended")

    def _forget(self) -> None:
        if self.name in self._context.registry:
            self._context.registry.remove(self.name)
        if self._gate is not None:
            self._gate.open = False
            self._gate.adapter.close()
            self._gate = None

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end(grace=0)

    # The end.

    async def stop(self) -> None:
        """No new requests, time for those in flight, then the end."""
        registry = self._context.registry
        if self.name in registry and self.state is ReplicaPhase.READY:
            self._enter(ReplicaPhase.DRAINING)
            registry.drain(self.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._context.settings.drain_seconds):
                    await self._idle()
        await self.end()

    async def _idle(self) -> None:
        """Until no lease is held here. Looked at, because nobody is told of releases."""
        registry = self._context.registry
        while self.name in registry and registry.ledger.live(self.name):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def end(self, *, force: bool = False) -> None:
        """The end, at whatever stage. Legs that are still there are tried elsewhere."""
        # Taken from the task, which would kill it at once.
        process, self._process = self._process, None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._forget()
        try:
            if process is not None:
                await process.end(0.0 if force else self._context.settings.stop_seconds)
        finally:
            self._enter(ReplicaPhase.STOPPED)
