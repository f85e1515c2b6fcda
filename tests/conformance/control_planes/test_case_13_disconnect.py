"""13 · A client that leaves before the first byte is noticed at once, wherever its request is.

(production-stack PR#1040, smg PR#2136)
"""

import asyncio

import pytest
from engine import Fault

from fleet import FOREIGN_URL, eventually, fleet


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("stage", ["before any answer", "during prefill"])
async def test_case_13_the_engine_learns_that_nobody_waits(streams: bool, stage: str) -> None:
    async with fleet(1) as f:
        engine = f.engines[0]
        if stage == "during prefill":
            engine.prefill_rate = 1
        else:
            engine.fault = Fault("hang")
        task = asyncio.ensure_future(f.post(f.chat("x" * 400, stream=streams)))
        await eventually(lambda: engine.requests == 1, "it was sent on")
        task.cancel()
        await eventually(lambda: engine.disconnects == 1, "the engine saw it leave", 2.0)
        await eventually(lambda: engine.running == engine.waiting == 0, "the engine stopped")
        await eventually(lambda: f.gateway is None or f.gateway.live == 0, "the gateway forgot it")
        f.check()


@pytest.mark.skipif(FOREIGN_URL is not None, reason="needs a limit of one request a replica")
async def test_case_13_leaving_the_queue_at_the_door() -> None:
    async with fleet(1, handle={"max_inflight": 1}) as f:
        assert f.gateway is not None
        gateway, engine = f.gateway, f.engines[0]
        engine.decode_seconds = 0.02
        first = asyncio.ensure_future(f.post(f.chat("first", max_tokens=30)))
        await eventually(lambda: engine.requests == 1, "the first is there")
        waiting = asyncio.ensure_future(f.post(f.chat("second")))
        await eventually(lambda: gateway.admission.queued == 1, "the second waits")
        waiting.cancel()
        await eventually(lambda: gateway.admission.queued == 0, "it left the queue")
        assert (await first).status_code == 200
        assert engine.requests == 1
        f.check()
