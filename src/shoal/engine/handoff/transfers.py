"""Both sides of one replica: what it offers to others, and what it takes over from them.

Taking over never fails a request: whatever is missing, late, damaged or of another kind is computed here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import msgspec

from shoal.engine.core import EngineCore
from shoal.engine.errors import EngineError
from shoal.engine.handoff.exporter import Blocks, Exporter
from shoal.engine.handoff.importer import Piece, fetch
from shoal.engine.handoff.wire import TransferError
from shoal.engine.kv_transfer import KvTransferParams, genuine
from shoal.engine.outputs import EngineStats, RequestOutput
from shoal.engine.request import EngineRequest
from shoal.policy.batching import Extras, PrefixHasher, make_extras

log = logging.getLogger("shoal.engine")

T = TypeVar("T")

_TOTAL_SECONDS = 60.0
"""A transfer that takes longer is given up; what has come until then is used."""
_CORE_SECONDS = 30.0


class KvTransfers:
    """Owned by the event loop of its `AsyncEngine`, which it reaches the core through."""

    def __init__(
        self, blocks: Blocks, block_size: int, key: bytes, tell: Callable[[Callable[[EngineCore], None]], None]
    ) -> None:
        """`tell` has something done in the engine's thread, in the order of the calls."""
        self._blocks = blocks
        self._hasher = PrefixHasher(block_size)
        self._key = key
        self._tell = tell
        self.exporter = Exporter(blocks, lambda place: tell(lambda core: core.release_held(place)), key)
        self.imported = self.failed = 0
        """Blocks taken over; transfers that were not, or not wholly."""

    async def start(self, address: str) -> None:
        """Listen at `tcp://host:port`. EngineError if that is not possible."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        try:
            await self.exporter.start(host, int(port))
        except OSError as error:
            raise EngineError(f"cannot offer KV at {address}: {error.strerror or error}") from None

    def announce(self, output: RequestOutput) -> RequestOutput:
        """An output whose blocks are held, with what the taker has to be told."""
        if output.held is None:
            return output
        return msgspec.structs.replace(output, held=None, kv_transfer=self.exporter.offer(output.held))

    def withdraw(self, output: RequestOutput) -> None:
        """Nobody will be told of this output."""
        if output.kv_transfer is not None:
            self.exporter.withdraw(output.kv_transfer)

    async def take_over(self, request: EngineRequest) -> None:
        """Bring the blocks that a request's parameters name into the cache, as far as that works."""
        params = request.kv_transfer
        if params is None or not params.do_remote_prefill:
            return
        if not genuine(params, self._key):
            self.failed += 1
            log.warning("request %s: KV transfer parameters that nobody of ours has made", request.request_id)
            return
        try:
            async with asyncio.timeout(_TOTAL_SECONDS):
                await self._fetch(request, params)
        except (TransferError, OSError, EOFError, TimeoutError, EngineError) as error:
            self.failed += 1
            log.warning(
                "request %s: its KV could not be taken over, the prompt is computed here: %s",
                request.request_id,
                error or type(error).__name__,
            )

    async def _fetch(self, request: EngineRequest, params: KvTransferParams) -> None:
        extras = make_extras(request.lora, request.cache_salt)
        hashes = self._hasher.hashes(request.prompt, extras)
        known = await self._ask(lambda core: core.known_prefix(hashes))
        pieces = fetch(
            params, layout=self._blocks.layout, block_bytes=self._blocks.block_bytes, hashes=hashes, skip=known
        )
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                stored = await self._ask(partial(_store, request.prompt, extras, hashes, piece))
                if not stored:
                    raise TransferError("no KV memory is free")
                self.imported += piece.count

    async def _ask(self, work: Callable[[EngineCore], T]) -> T:
        """The result of `work` in the engine's thread."""
        answer: Future[T] = Future()

        def run(core: EngineCore) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work(core))
            except Exception as error:
                answer.set_exception(error)

        self._tell(run)
        return await asyncio.wait_for(asyncio.wrap_future(answer), _CORE_SECONDS)

    def counted(self, stats: EngineStats) -> EngineStats:
        """With the figures of this side."""
        exporter = self.exporter
        return msgspec.structs.replace(
            stats,
            kv_offers=exporter.offered,
            kv_offers_taken=exporter.taken,
            kv_offers_expired=exporter.expired,
            kv_imported_blocks=self.imported,
            kv_imports_failed=self.failed,
        )

    async def drain(self, seconds: float) -> None:
        """Until nothing waits to be fetched."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.exporter.idle.wait(), seconds)

    async def close(self) -> None:
        await self.exporter.close()


def _store(prompt: tuple[int, ...], extras: Extras, hashes: list[bytes], piece: Piece, core: EngineCore) -> bool:
    return core.import_blocks(prompt, hashes, piece.first, piece.count, piece.data, extras)
