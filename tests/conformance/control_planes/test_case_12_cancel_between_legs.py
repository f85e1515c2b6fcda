"""12 · A client that leaves between prefill and decode strands no KV (llm-d PR#1138, vllm#46283)."""

import asyncio

import pytest
from engine import Fault

from fleet import FOREIGN_URL, eventually, fleet

pytestmark = pytest.mark.skipif(FOREIGN_URL is not None, reason="needs prefill and decode pools")
PROMPT = "a long question " * 100


async def test_case_12_leaving_during_prefill_ends_it() -> None:
    async with fleet(2, roles=["prefill", "decode"]) as f:
        prefill, decode = f.engines
        prefill.prefill_rate = 10
        task = asyncio.ensure_future(f.post(f.chat(PROMPT)))
        await eventually(lambda: prefill.requests == 1, "the prefill runs")
        task.cancel()
        await eventually(lambda: prefill.disconnects == 1, "the prefill replica saw it leave")
        assert decode.requests == 0
        await eventually(lambda: f.gateway is not None and f.gateway.live == 0, "it ended")
        f.check()


async def test_case_12_leaving_between_the_legs_releases_the_kv() -> None:
    async with fleet(2, roles=["prefill", "decode"]) as f:
        prefill, decode = f.engines
        decode.faults.append(Fault("hang"))
        task = asyncio.ensure_future(f.post(f.chat(PROMPT, stream=True)))
        await eventually(lambda: decode.requests == 1, "the decode leg was sent")
        assert len(prefill.held_kv) == 1
        task.cancel()
        await eventually(lambda: decode.disconnects == 1, "the decode replica saw it leave")
        await eventually(lambda: prefill.held_kv == {}, "the KV was released")
        assert len(prefill.released_kv) == 1
        assert f.gateway is not None
        splitter = f.gateway.splitter
        await eventually(lambda: splitter.counts.live == 0, "all is accounted for")
        assert (splitter.counts.handed, splitter.counts.released) == (1, 1)
        f.check()
