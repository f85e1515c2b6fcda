"""The transfer of blocks over TCP: typed headers, raw bytes, sizes that both sides know before they read.

    taker                                             holder
    Fetch(request, layout, skip) ───────────────────►
                                 ◄─────────────────── Sending(blocks) | Refusing(reason)
    Wanted() ───────────────────────────────────────►
                                 ◄─────────────────── Chunk(first, count, checksum), count · block bytes, …
    Taken() ────────────────────────────────────────► the blocks are released

`Taken` instead of `Wanted` says that they are of no use: said into a stream of chunks that nobody reads, it would
be lost with the connection.

A header is a 32-bit length and msgpack, at most `HEADER_LIMIT` bytes; a chunk is as long as its count says.
"""

import asyncio
import struct
import zlib

import msgspec

HEADER_LIMIT = 4096
CHUNK_BYTES = 4 * 2**20
"""Aimed at: long enough for the network, short enough not to hold up the engine's steps when written."""
_LENGTH = struct.Struct("!I")


class Fetch(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    layout: bytes
    """Digest of everything that must be equal for one replica's blocks to be another's."""
    skip: int
    """Leading blocks that the taker has; all or more of them: release, and send nothing."""


class Sending(msgspec.Struct, frozen=True, tag=True):
    blocks: int
    last_hash: bytes
    """Prefix hash of the last block: names the tokens of all."""


class Refusing(msgspec.Struct, frozen=True, tag=True):
    reason: str


class Chunk(msgspec.Struct, frozen=True, tag=True):
    first: int
    count: int
    checksum: int
    """CRC-32 of the bytes that follow."""


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """Send them."""


class Taken(msgspec.Struct, frozen=True, tag=True):
    """The taker needs the blocks no more."""


Message = Fetch | Sending | Refusing | Wanted | Chunk | Taken
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class TransferError(Exception):
    """The transfer can't go on; the message says why."""


def encode(message: Message) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next header. `TransferError` for one that is none; EOFError or OSError when the connection ends."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > HEADER_LIMIT:
        raise TransferError(f"a header of {length} bytes; at most {HEADER_LIMIT} are accepted")
    try:
        return _decoder.decode(await reader.readexactly(length))
    except msgspec.MsgspecError as error:
        raise TransferError(f"a header that is none: {error}") from None


def checksum(data: "bytes | bytearray | memoryview") -> int:
    return zlib.crc32(data)
