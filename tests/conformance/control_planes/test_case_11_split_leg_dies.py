"""11 · When one leg of the split dies or hangs, the other doesn't hang with it, and nobody is silent about it.

(sglang PR#29482, aibrix#2289)
"""

import asyncio

import pytest
from engine import Fault

from fleet import FOREIGN_URL, eventually, fleet
from shoal.fleet.gateway import GatewayConfig

pytestmark = pytest.mark.skipif(FOREIGN_URL is not None, reason="needs prefill and decode pools")
CONFIG = GatewayConfig(prefill_seconds=0.3, first_byte_seconds=0.5, answer_seconds=0.5, stall_seconds=0.5)
PROMPT = "a long question " * 100


@pytest.mark.parametrize("streams", [False, True])
async def test_case_11_both_legs_of_a_good_one(streams: bool) -> None:
    async with fleet(2, config=CONFIG, roles=["prefill", "decode"]) as f:
        body = f.chat(PROMPT, stream=streams, temperature=0.5)
        assert (await f.post(body)).status_code == 200
        prefill, decode = (e.seen[0].body for e in f.engines)
        assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
        assert prefill["kv_transfer_params"]["do_remote_decode"]
        assert decode["kv_transfer_params"]["remote_engine_id"] == "e0"
        assert decode["max_tokens"] == 4
        assert f.engines[0].held_kv == {}
        f.check()


@pytest.mark.parametrize("kind", ["hang", "reset", "garbage", "status"])
async def test_case_11_a_dead_prefill_is_replaced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(3, config=CONFIG, roles=["prefill", "prefill", "decode"]) as f:
        f.engines[0].fault = f.engines[1].fault = Fault(kind)
        async with asyncio.timeout(5):
            answer = await f.post(f.chat(PROMPT))
        assert answer.status_code == 200, "the decode replica computed the prompt itself"
        assert "kv_transfer_params" not in f.engines[2].seen[0].body
        assert caplog.text.count("prefill on") == 2, "both failures were said"
        f.check()


@pytest.mark.parametrize("kind", ["hang", "reset", "garbage", "status"])
async def test_case_11_a_dead_decode_frees_the_prefill(kind: str) -> None:
    async with fleet(3, config=CONFIG, roles=["prefill", "decode", "decode"]) as f:
        f.engines[1].faults.append(Fault(kind))
        f.engines[2].faults.append(Fault(kind))
        async with asyncio.timeout(5):
            answer = await f.post(f.chat(PROMPT))
        assert answer.status_code == (504 if kind == "hang" else 200)
        await eventually(lambda: f.engines[0].held_kv == {}, "no KV is stranded")
        await eventually(lambda: f.gateway is not None and f.gateway.splitter.counts.live == 0, "all accounted for")
        f.check()


async def test_case_11_short_prompts_stay_whole() -> None:
    async with fleet(2, config=CONFIG, roles=["prefill", "decode"]) as f:
        assert (await f.post(f.chat("short"))).status_code == 200
        assert f.counts() == [0, 1]
