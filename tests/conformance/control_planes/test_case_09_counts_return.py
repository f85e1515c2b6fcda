"""9 · Whatever ends a request, every count that it raised is lowered once (ray PR#61755)."""

import asyncio

import httpx
import pytest
from engine import Fault

from fleet import eventually, fleet
from shoal.fleet.gateway import GatewayConfig

FAULTS = {
    "none": None,
    "400": Fault("status", status=400),
    "429": Fault("status", status=429),
    "503": Fault("status", status=503),
    "500": Fault("status", status=500),
    "reset": Fault("reset"),
    "garbage": Fault("garbage"),
    "hang": Fault("hang"),
    "late reset": Fault("reset", after=2),
    "late garbage": Fault("garbage", after=2),
    "late hang": Fault("hang", after=2),
    "late end": Fault("end", after=2),
    "late error": Fault("error", after=2),
}


@pytest.mark.parametrize("streams", [False, True])
async def test_case_09_counts_return_to_zero(streams: bool) -> None:
    config = GatewayConfig(first_byte_seconds=0.3, answer_seconds=0.3, stall_seconds=0.3, down_seconds=0.3)
    async with fleet(2, config=config) as f:
        for name, fault in FAULTS.items():
            for engine in f.engines:
                engine.fault = fault
            body = f.chat(name, max_tokens=5, stream=streams)
            answer = await f.post(body)
            assert answer.status_code in (200, 400, 429, 502, 503, 504), name
            if streams and answer.status_code == 200:
                assert (b"[DONE]" in answer.content) != (b'"error"' in answer.content), name
        for engine in f.engines:
            engine.fault, engine.decode_seconds = None, 0.5
        with pytest.raises(httpx.ReadTimeout):
            await f.post(f.chat("impatient", stream=streams, max_tokens=50), timeout=0.1)
        await eventually(lambda: f.gateway is None or f.gateway.live == 0, "the last one has ended")
        f.check()


async def test_case_09_counts_return_when_the_client_resets_mid_stream() -> None:
    async with fleet(1) as f:
        f.engines[0].decode_seconds = 0.01
        async with f.client.stream("POST", "/v1/chat/completions", json=f.chat(max_tokens=500, stream=True)) as r:
            async for _ in r.aiter_bytes():
                break
        await eventually(lambda: f.engines[0].disconnects == 1, "the engine noticed")
        await eventually(lambda: f.engines[0].running == 0, "the engine stopped")
        await asyncio.sleep(0)
        f.check()
