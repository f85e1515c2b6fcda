"""The holder's side: blocks wait for their taker under a lease, and are released exactly once.

A taker that has them says so; one that never comes costs `lease_seconds` of memory; one that breaks off may come
again until then. Blocks that are being sent are not released by the clock.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.engine.handoff.wire import (
    CHUNK_BYTES,
    Chunk,
    Fetch,
    Message,
    Refusing,
    Sending,
    Taken,
    TransferError,
    Wanted,
    checksum,
    encode,
    receive,
)
from shoal.engine.kv_transfer import KvTransferParams, signed
from shoal.policy.batching import HeldPrefix

log = logging.getLogger("shoal.engine")

_PEER_SECONDS = 10.0
"""A taker that says or takes nothing for so long is gone."""
_CONNECTIONS = 64


class Blocks(Protocol):
    """KV memory by blocks; `engine.kv.blocks.KvBlocks` is it."""

    layout: bytes
    block_bytes: int

    def read(self, blocks: Sequence[int]) -> bytes:
        """Safe in any thread for blocks that nobody writes."""

    def write(self, blocks: Sequence[int], data: bytes) -> None: ...


@dataclass(slots=True, eq=False)
class _Offer:
    held: HeldPrefix
    lease: asyncio.TimerHandle
    sending: int = 0
    overdue: bool = False


class Exporter:
    """Owned by the event loop it was started in."""

    def __init__(
        self, blocks: Blocks, release: Callable[[int], None], key: bytes, lease_seconds: float = 30.0
    ) -> None:
        """`release` is given the sequence id of a `HeldPrefix`, once."""
        self._blocks = blocks
        self._release = release
        self._key = key
        self._lease_seconds = lease_seconds
        self._offers: dict[str, _Offer] = {}
        self._engine_id = secrets.token_hex(8)
        self._server: asyncio.Server | None = None
        self._host, self._port = "", 0
        self._connections: set[asyncio.Task[None]] = set()
        self.offered = self.taken = self.expired = self.withdrawn = 0
        self.idle = asyncio.Event()
        """Nothing waits to be fetched."""
        self.idle.set()

    async def start(self, host: str, port: int) -> None:
        """Listen; OSError if that is not possible. Port 0: any free one."""
        self._server = await asyncio.start_server(self._accept, host, port)
        self._host, self._port = host, int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    def offer(self, held: HeldPrefix) -> KvTransferParams:
        """Begin the lease; what the taker has to be told."""
        name = secrets.token_hex(16)
        lease = asyncio.get_running_loop().call_later(self._lease_seconds, self._expire, name)
        self._offers[name] = _Offer(held, lease)
        self.offered += 1
        self.idle.clear()
        params = KvTransferParams(
            do_remote_prefill=True,
            remote_engine_id=self._engine_id,
            remote_request_id=name,
            remote_block_ids=list(held.blocks),
            remote_host=self._host,
            remote_port=self._port,
        )
        return signed(params, self._key)

    def withdraw(self, params: KvTransferParams) -> None:
        """Nobody was told of it: release at once."""
        if self._end(params.remote_request_id or ""):
            self.withdrawn += 1

    def _expire(self, name: str) -> None:
        offer = self._offers.get(name)
        if offer is None:
            return
        if offer.sending:
            offer.overdue = True
        elif self._end(name):
            self.expired += 1
            log.warning("KV of %d blocks was not fetched in %g s", len(offer.held.blocks), self._lease_seconds)

    def _end(self, name: str) -> bool:
        offer = self._offers.pop(name, None)
        if offer is None:
            return False
        offer.lease.cancel()
        self._release(offer.held.sequence_id)
        if not self._offers:
            self.idle.set()
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= _CONNECTIONS:
                await self._serve(reader, writer)
        except (TransferError, OSError, EOFError, TimeoutError) as error:
            log.warning("a transfer of KV broke off: %s", error or type(error).__name__)
        except asyncio.CancelledError:
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fetch = await _expect(reader)
        if not isinstance(fetch, Fetch):
            raise TransferError(f"{type(fetch).__name__} where a fetch was expected")
        offer = self._offers.get(fetch.request_id)
        if offer is None:
            await _send(writer, encode(Refusing("nothing is held under this id (any more)")))
            return
        if fetch.layout != self._blocks.layout:
            # It never can take them: no reason to keep them.
            self._end(fetch.request_id)
            await _send(writer, encode(Refusing("another layout of blocks: model, types or block size differ")))
            return
        offer.sending += 1
        try:
            await self._transfer(offer.held, max(0, fetch.skip), reader, writer)
            if self._end(fetch.request_id):
                self.taken += 1
        finally:
            offer.sending -= 1
            if offer.overdue:
                self._expire(fetch.request_id)

    async def _transfer(
        self, held: HeldPrefix, skip: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Returns once the taker has said that it needs them no more."""
        total = len(held.blocks)
        await _send(writer, encode(Sending(total, held.hashes[-1])))
        answer = await _expect(reader)
        if isinstance(answer, Taken):
            return
        if not isinstance(answer, Wanted):
            raise TransferError(f"{type(answer).__name__} where blocks are wanted or not")
        step = max(1, CHUNK_BYTES // self._blocks.block_bytes)
        for first in range(skip, total, step):
            part = held.blocks[first : first + step]
            data = await asyncio.to_thread(self._blocks.read, part)
            await _send(writer, encode(Chunk(first, len(part), checksum(data))))
            await _send(writer, data)
        if not isinstance(await _expect(reader), Taken):
            raise TransferError("the taker did not say that it has them")

    async def close(self) -> None:
        """Stop listening, break off what is under way, release everything."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for name in list(self._offers):
            self._end(name)


async def _expect(reader: asyncio.StreamReader) -> Message:
    async with asyncio.timeout(_PEER_SECONDS):
        return await receive(reader)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_PEER_SECONDS):
        await writer.drain()
