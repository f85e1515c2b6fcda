"""24 · A hot model uses every replica that serves it and doesn't starve the others' models (llm-d-router#709)."""

import asyncio

import pytest

from fleet import FOREIGN_URL, fleet
from shoal.fleet.registry import ReplicaHandle


@pytest.mark.skipif(FOREIGN_URL is not None, reason="needs two models on one replica")
async def test_case_24_a_hot_model_is_spread_and_shares() -> None:
    async with fleet(3, models=["hot", "hot", "hot"], handle={"max_inflight": 4}) as f:
        assert f.registry is not None
        for engine in f.engines:
            engine.decode_seconds = 0.004
        # The third one's process serves `cold` on its own address; one replica, two names.
        cold = await type(f.engines[0])("cold", "cold").start()
        f.registry.add(ReplicaHandle(name="cold", url=cold.url, models=("cold", "hot-fallback"), max_inflight=4))
        try:
            hot = [asyncio.ensure_future(f.post(f.chat(f"{i}", model="hot"))) for i in range(60)]
            chilly = [asyncio.ensure_future(f.post(f.chat(f"{i}", model="cold", max_tokens=2))) for i in range(5)]
            done = await asyncio.gather(*chilly)
            assert {a.status_code for a in done} == {200}
            assert not all(task.done() for task in hot), "cold requests did not wait for the hot ones"
            assert {a.status_code for a in await asyncio.gather(*hot)} == {200}
            counts = f.counts()
            assert max(counts) <= 1.6 * min(counts), counts
            assert cold.requests == 5, "no thrash: the hot model stayed where it is loaded"
        finally:
            await cold.stop()
