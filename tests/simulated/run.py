"""One run: the world is made, what the fleet takes from the machine is replaced, and the loop runs to its end."""

import asyncio
import contextlib
import gc
import logging
import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import uvicorn.server

from shoal.fleet import managed, supervisor
from shoal.fleet.adapters import base
from simulated.programs import SimulatedDialect
from simulated.record import Run
from simulated.virtual_loop import START_SECONDS, VirtualLoop
from simulated.world import World


class _Log(logging.Handler):
    """What the fleet logs becomes part of the journal; an exception there is a violation."""

    def __init__(self, world: "World") -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.journal.note("log", f"{record.levelname} {text}")
        if record.exc_info:
            self._world.violate(f"logged: {text}: {record.exc_info[1]!r}")


class _Ordered(dict[Any, None]):
    """A set that is iterated in the order of insertion; stands in for uvicorn's, whose order changes per run."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class _ServerState:
    """Uvicorn's."""

    def __init__(self) -> None:
        self.total_requests = 0
        self.connections, self.tasks = _Ordered(), _Ordered()
        self.default_headers: list[tuple[bytes, bytes]] = []


@contextlib.contextmanager
def _patched(world: World) -> Iterator[None]:
    """What the fleet takes from the machine is the world's."""
    dialects = {**supervisor.DIALECTS, "shoal": SimulatedDialect(world)}
    with (
        mock.patch.object(supervisor, "DIALECTS", dialects),
        mock.patch.object(managed, "socket", SimpleNamespace(create_server=world.network.create_server)),
        mock.patch.object(managed, "free_port_pair", world.network.free_ports),
        # An attached replica's proof has no other bound: one lost answer would take longer than the run.
        mock.patch.object(base, "PROOF_SECONDS", 10.0),
        mock.patch.object(os, "killpg", world.processes.killpg),
        mock.patch.object(uvicorn.server, "time", SimpleNamespace(time=lambda: 1e9 + world.loop.time())),
        mock.patch.object(uvicorn.server, "ServerState", _ServerState),
    ):
        yield


@contextlib.contextmanager
def _logged(world: World) -> Iterator[None]:
    handler = _Log(world)
    loggers = [logging.getLogger(name) for name in ("shoal", "shoal.fleet", "uvicorn.error", "asyncio")]
    before = [(one.level, one.propagate, one.handlers) for one in loggers]
    for one in loggers:
        # Uvicorn tells its process id, which is another in each run.
        one.setLevel(logging.INFO if one.name.startswith("shoal") else logging.WARNING)
        one.propagate, one.handlers = False, [handler]
    try:
        yield
    finally:
        for one, (level, propagate, handlers) in zip(loggers, before, strict=True):
            one.setLevel(level)
            one.propagate, one.handlers = propagate, handlers


def simulate(seed: int) -> Run:
    """Run one seed to its end."""
    run = Run(seed)
    state = random.getstate()
    random.seed(f"{seed}/fleet")
    loop = VirtualLoop(str(seed))
    gc.disable()
    try:
        world = World(loop, run)
        with _patched(world), _logged(world):
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(world.live())
            except Exception as error:
                world.violate(f"the run failed: {error!r}")
            for text in loop.unhandled:
                world.violate(f"unhandled in the loop: {text}")
        run.seconds, run.callbacks = loop.time() - START_SECONDS, loop.callbacks
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        random.setstate(state)
        gc.enable()
    return run
