"""The taker's side: connect, check, read chunk by chunk, say thanks."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from shoal.engine.handoff.wire import (
    CHUNK_BYTES,
    Chunk,
    Fetch,
    Refusing,
    Sending,
    Taken,
    TransferError,
    Wanted,
    checksum,
    encode,
    receive,
)
from shoal.engine.kv_transfer import KvTransferParams

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 10.0
"""A holder that sends nothing for so long is gone."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some blocks of a prompt."""

    first: int
    """Place of the first one in the prompt, in blocks."""
    count: int
    data: bytes


async def fetch(
    params: KvTransferParams, *, layout: bytes, block_bytes: int, hashes: Sequence[bytes], skip: int
) -> AsyncGenerator[Piece, None]:
    """The blocks of a prompt whose full blocks have `hashes`, without the first `skip`.

    The holder is told that it may release them when the generator comes to its end; closing it before breaks the
    transfer off. Raises `TransferError`, OSError, EOFError or TimeoutError; what was given until then is good.
    """
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(params.remote_host, params.remote_port)
    try:
        writer.write(encode(Fetch(params.remote_request_id or "", layout, skip)))
        async with asyncio.timeout(_READ_SECONDS):
            answer = await receive(reader)
        if isinstance(answer, Refusing):
            raise TransferError(answer.reason)
        if not isinstance(answer, Sending):
            raise TransferError(f"{type(answer).__name__} where blocks were expected")
        if not 0 < answer.blocks <= len(hashes) or answer.last_hash != hashes[answer.blocks - 1]:
            # Other tokens than those of this request: of no use, but the holder may let go of them.
            writer.write(encode(Taken()))
            raise TransferError("the blocks that are held are of another prompt")
        writer.write(encode(Wanted()))
        place = skip
        while place < answer.blocks:
            async with asyncio.timeout(_READ_SECONDS):
                piece = await _piece(reader, place, answer.blocks, block_bytes)
            place += piece.count
            yield piece
        writer.write(encode(Taken()))
        async with asyncio.timeout(_READ_SECONDS):
            await writer.drain()
    finally:
        writer.close()


async def _piece(reader: asyncio.StreamReader, place: int, total: int, block_bytes: int) -> Piece:
    header = await receive(reader)
    most = min(total - place, max(1, CHUNK_BYTES // block_bytes))
    if not isinstance(header, Chunk) or header.first != place or not 0 < header.count <= most:
        raise TransferError(f"{header!r} where at most {most} blocks from {place} on were expected")
    data = await reader.readexactly(header.count * block_bytes)
    if checksum(data) != header.checksum:
        raise TransferError(f"blocks from {place} on came damaged")
    return Piece(place, header.count, data)
