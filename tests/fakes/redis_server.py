"""A real Redis on a Unix socket, for tests of what gateways share."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet import eventually

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="needs redis-server (Debian: apt-get install redis-server)"
)


@contextlib.asynccontextmanager
async def redis_server(folder: Path) -> AsyncIterator[str]:
    """The path of its socket; it is killed at the end, or before by whoever wants it gone."""
    path = folder / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    process = await asyncio.create_subprocess_exec(
        "redis-server", *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(path.exists, "redis listens")
        yield str(path)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
