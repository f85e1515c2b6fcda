"""Ranks that a launcher starts (torchrun, or anything that sets the same variables), on one host or several.

Every process runs the same command. The one with RANK 0 serves: it schedules, starts rank 0 beside itself and waits
for the others, who find its address in torch.distributed's store and connect. The address comes with a secret of
this run, so that nobody else on the network is taken for a rank.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.engine.errors import EngineError, InvalidOption
from shoal.specs.layout import Layout

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

JOIN_SECONDS = 600.0
"""How long ranks wait for one another to start: nodes of a cluster don't come up at the same time."""
_KEY = "shoal/link"
_SECRET_BYTES = 32
_HELLO = _SECRET_BYTES + 4
"""The secret, and the rank as four bytes, little-endian."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class LaunchEnv:
    """What the launcher told this process."""

    rank: int
    world: int
    host: str
    port: int
    local_world: int
    """Ranks on this host."""
    agent_store: bool
    """The launcher itself holds the store at host:port; otherwise the process of rank 0 does."""

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> LaunchEnv:
        """Raises InvalidOption naming the variables that are missing or wrong."""
        missing = [name for name in _NEEDED if not environ.get(name)]
        if missing:
            raise InvalidOption("rendezvous", "env", f"a launcher that sets {', '.join(missing)}, as torchrun does")
        numbers: dict[str, int] = {}
        for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_WORLD_SIZE"):
            try:
                numbers[name] = int(environ.get(name) or 1)
            except ValueError:
                raise InvalidOption(name, environ[name], "a whole number") from None
        if not 0 <= numbers["RANK"] < numbers["WORLD_SIZE"]:
            raise InvalidOption("RANK", numbers["RANK"], f"0 to WORLD_SIZE - 1 = {numbers['WORLD_SIZE'] - 1}")
        return cls(
            rank=numbers["RANK"],
            world=numbers["WORLD_SIZE"],
            host=environ["MASTER_ADDR"],
            port=numbers["MASTER_PORT"],
            local_world=max(1, numbers["LOCAL_WORLD_SIZE"]),
            agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def store(self) -> str:
        return f"{self.host}:{self.port}"

    def require(self, layout: Layout) -> None:
        """Raise InvalidOption unless the launcher started one process per rank of this layout."""
        if self.world != layout.world:
            accepted = f"dp·pp·cp·tp = {layout.world}, the ranks of this layout"
            raise InvalidOption("WORLD_SIZE", self.world, accepted)


def open_store(launched: LaunchEnv, serve: bool) -> Store:
    """The store of this run; `serve` hosts it here. Raises EngineError when it cannot be reached."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        store: Store = TCPStore(
            launched.host,
            launched.port,
            is_master=serve and not launched.agent_store,
            wait_for_workers=False,
            timeout=timedelta(seconds=JOIN_SECONDS),
        )
    except Exception as error:  # torch raises several unrelated classes here
        raise EngineError(
            f"the store at {launched.store} cannot be {'opened' if serve else 'reached'}: {error}"
        ) from None
    return store


def await_ranks(launched: LaunchEnv, store: Store, deadline: float) -> dict[int, socket.socket]:
    """Publish an address and wait until every other rank has connected; sockets by rank.

    `deadline` is on the monotonic clock. Raises EngineError naming the ranks that did not come.
    """
    secret = secrets.token_bytes(_SECRET_BYTES)
    found: dict[int, socket.socket] = {}
    with socket.create_server((launched.host, 0), backlog=launched.world) as server:
        store.set(_KEY, f"{server.getsockname()[1]} {secret.hex()}")
        try:
            while len(found) < launched.world - 1:
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = [str(r) for r in range(1, launched.world) if r not in found]
                    raise EngineError(f"rank {', '.join(missing)} of {launched.world} did not connect in time")
                server.settimeout(min(left, 1.0))
                with contextlib.suppress(TimeoutError):
                    _greet(server.accept()[0], secret, found, launched.world)
        except BaseException:
            for sock in found.values():
                sock.close()
            raise
    return found


def _greet(sock: socket.socket, secret: bytes, found: dict[int, socket.socket], world: int) -> None:
    """Take a connection in if it knows the secret and a rank that is still missing; else close it."""
    sock.settimeout(5.0)
    hello = b""
    with contextlib.suppress(OSError):
        while len(hello) < _HELLO and (data := sock.recv(_HELLO - len(hello))):
            hello += data
    rank = int.from_bytes(hello[_SECRET_BYTES:], "little")
    known = len(hello) == _HELLO and hmac.compare_digest(hello[:_SECRET_BYTES], secret)
    if known and 0 < rank < world and rank not in found:
        _keep_alive(sock)
        found[rank] = sock
    else:
        sock.close()


def connect_rank(launched: LaunchEnv) -> socket.socket:
    """Find the serving process and connect to it as this rank. Raises EngineError when it cannot be reached."""
    store = open_store(launched, serve=False)
    try:
        port, secret = store.get(_KEY).decode().split()
        sock = socket.create_connection((launched.host, int(port)), timeout=30.0)
        sock.sendall(bytes.fromhex(secret) + launched.rank.to_bytes(4, "little"))
    except Exception as error:  # torch raises several unrelated classes here
        raise EngineError(f"rank 0 at {launched.host} cannot be reached: {error}") from None
    _keep_alive(sock)
    return sock


def _keep_alive(sock: socket.socket) -> None:
    """Notice within seconds that the other host is gone, even if it said nothing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
