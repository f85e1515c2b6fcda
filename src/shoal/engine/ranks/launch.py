"""What every rank is told and given: backend, shared memory, store, link."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from shoal.engine.errors import EngineError
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.shm_layout import anonymous_segment
from shoal.engine.parallel.shm_native import backend
from shoal.engine.ranks.heartbeat import BeatBoard
from shoal.engine.ranks.link import Setup
from shoal.engine.ranks.open import shared_memory_axes
from shoal.engine.ranks.processes import RankSpec
from shoal.engine.ranks.rendezvous import JOIN_SECONDS, LaunchEnv, await_ranks, open_store
from shoal.specs.layout import Layout

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


def collectives_of(options: EngineOptions) -> str:
    """The backend that ranks use. Raises EngineError where the one asked for cannot work."""
    if options.collectives != "auto":
        if options.collectives == "shm" and backend().library is None:
            raise EngineError(f"collectives='shm': {backend().detail}")
        return options.collectives
    if options.device.startswith("cuda"):
        return "nccl"
    return "gloo" if options.rendezvous == "env" or backend().library is None else "shm"


class RankLauncher:
    """The ranks of a replica, ready to be started.

    Leaving the context closes the descriptors, which ranks that have been started hold themselves by then; on an
    error, the links of ranks that others started too.
    """

    def __init__(
        self, options: EngineOptions, layout: Layout, model_path: Path, *, cores: int, worker: str
    ) -> None:
        """Waits for ranks that a launcher starts. Raises InvalidOption or EngineError, then nothing is open."""
        self._options = options
        self._layout = layout
        self._held: list[int] = []
        self._remote: dict[int, socket.socket] = {}
        self.store: Store | None = None
        """Where ranks of torch.distributed meet; to be kept while they live."""
        try:
            self._open(model_path, cores, worker)
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def _open(self, model_path: Path, cores: int, worker: str) -> None:
        options, layout = self._options, self._layout
        collectives = collectives_of(options)
        launched = LaunchEnv.of() if options.rendezvous == "env" else None
        if launched is not None:
            launched.require(layout)
        local = layout.world if launched is None else launched.local_world
        threads = options.threads or max(1, cores // local)
        board = self._segment("board", BeatBoard.size(layout.world))
        self.board = BeatBoard(board, layout.world)
        segments: list[dict[str, int]] = [{} for _ in range(layout.world)]
        store: str | None = None
        if launched is not None:
            store = launched.store
            self.store = open_store(launched, serve=True)
            self._remote = await_ranks(launched, self.store, time.monotonic() + JOIN_SECONDS)
        elif collectives == "shm":
            self._share_memory(segments)
        elif layout.world > 1:
            store = self._local_store()
        common = Setup(
            rank=0,
            layout=layout,
            options=options,
            model_path=str(model_path),
            threads=threads,
            collectives=collectives,
            board=board,
            beat_seconds=min(0.25, options.rank_timeout / 20),
            store=store,
            oversubscribed=local * threads > cores,
            parent=os.getpid(),
            worker=worker,
        )
        self.ranks = [self._launch(common, rank, segments[rank]) for rank in range(layout.world)]

    def _launch(self, common: Setup, rank: int, segments: dict[str, int]) -> RankSpec:
        name = self._layout.describe(rank)
        setup = msgspec.structs.replace(common, rank=rank, segments=segments)
        if rank in self._remote:
            # What only means something on this host is left out.
            threads = self._options.threads or 0
            setup = msgspec.structs.replace(setup, model_path="", threads=threads, board=None, parent=None)
            return RankSpec(setup, name, sock=self._remote[rank])
        assert common.board is not None
        return RankSpec(setup, name, (common.board, *segments.values()))

    def _share_memory(self, segments: list[dict[str, int]]) -> None:
        for axis, members, size in shared_memory_axes(self._layout):
            fd = self._segment(f"{axis}{members[0]}", size)
            for rank in members:
                segments[rank][axis] = fd

    def _segment(self, label: str, size: int) -> int:
        fd = anonymous_segment(label, size)
        self._held.append(fd)
        return fd

    def _local_store(self) -> str:
        """On the loopback interface, on a port that the system picks."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.store = store
        return f"127.0.0.1:{store.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()
        if kind is not None:
            for sock in self._remote.values():
                sock.close()
