"""15 · After a cache reset the router no longer prefers the emptied replica (aibrix#2287)."""

import pytest

from fleet import FOREIGN_URL, eventually, fleet

PROMPT = [i % 900 + 100 for i in range(640)]

pytestmark = pytest.mark.skipif(FOREIGN_URL is not None, reason="needs KV events wired to the router")


async def test_case_15_a_cleared_cache_is_forgotten() -> None:
    async with fleet(2, events={}) as f:
        body = {"model": "fake", "prompt": PROMPT, "max_tokens": 1}
        first = await f.post(body, "/v1/completions")
        holder = first.headers["x-shoal-replica"]
        again = await f.post(body, "/v1/completions")
        assert again.headers["x-shoal-replica"] == holder
        assert int(again.headers["x-shoal-predicted-hit"]) == 640
        place = int(holder[1:])
        assert f.followers is not None
        follower = f.followers.by_name[holder]
        await eventually(lambda: follower.counts.events >= 1, "its blocks were announced")
        before = follower.counts.events
        f.publishers[place].cleared()
        await eventually(lambda: follower.counts.events > before, "the reset was announced")
        after = await f.post(body, "/v1/completions")
        assert int(after.headers["x-shoal-predicted-hit"]) == 0


async def test_case_15_a_restart_is_a_reset_too() -> None:
    async with fleet(2, monitored=True) as f:
        body = f.chat("the same long question " * 40, max_tokens=20)
        first = await f.post(body)
        engine = f.engines[int(first.headers["x-shoal-replica"][1:])]
        assert int((await f.post(body)).headers["x-shoal-predicted-hit"]) > 0
        assert f.registry is not None
        replica = f.registry.get(engine.name)
        await eventually(lambda: (replica.stats.generated_tokens or 0) >= 20, "its counters were read")
        engine.reset_cache()
        engine.generated = 0
        await eventually(lambda: replica.stats.generated_tokens == 0, "its counters went back")
        assert int((await f.post(body)).headers["x-shoal-predicted-hit"]) == 0
