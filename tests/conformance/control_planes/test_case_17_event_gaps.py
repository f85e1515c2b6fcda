"""17 · A gap in event numbers is filled or is a reset, a sequence reset is noticed, a replay changes nothing.

(llm-d-router#1737, vllm#45174)
"""

from typing import Any

import pytest

from fleet import FOREIGN_URL, Fleet, eventually, fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.fleet.index import Follower
from shoal.fleet.registry import RawEvents
from shoal.policy.routing import RouterConfig
from shoal.policy.routing.kv import ExactIndex

pytestmark = pytest.mark.skipif(FOREIGN_URL is not None, reason="needs KV events wired to the router")
KV = GatewayConfig(router=RouterConfig(policy="kv"))


def prompt(seed: int, blocks: int = 10) -> list[int]:
    return [seed * 1000 + i for i in range(blocks * 16)]


async def ask(f: Fleet, tokens: list[int]) -> Any:
    return await f.post({"model": "fake", "prompt": tokens, "max_tokens": 1}, "/v1/completions")


def follower_of(f: Fleet) -> Follower:
    assert f.followers is not None
    return f.followers.by_name["e0"]


def index_of(f: Fleet) -> ExactIndex:
    assert f.gateway is not None
    assert isinstance(f.gateway.router.index, ExactIndex)
    return f.gateway.router.index


async def joined(f: Fleet) -> None:
    """Until the subscription is live: a subscriber that joins late gets what it missed by replay."""
    for i in range(50):
        await ask(f, prompt(900 + i, 1))
        if follower_of(f).counts.messages:
            return
        await eventually(lambda: True, "", 0.1)
    raise AssertionError("no event ever arrived")


@pytest.mark.parametrize("maps", [True, False])
async def test_case_17_a_gap_is_filled_by_replay(maps: bool) -> None:
    async with fleet(1, config=KV, events={"maps": maps}) as f:
        await joined(f)
        publisher, follower = f.publishers[0], follower_of(f)
        publisher.lose.add(publisher.sequence)
        await ask(f, prompt(1))
        await ask(f, prompt(2))
        await eventually(lambda: follower.counts.gaps == 1 and follower.counts.replayed >= 1, "the gap was filled")
        await eventually(lambda: len(index_of(f)) >= 20, "both prompts are known")
        assert follower.counts.resets == 0
        assert int((await ask(f, prompt(1))).headers["x-shoal-predicted-hit"]) == 160


async def test_case_17_a_gap_that_cannot_be_filled_is_a_reset() -> None:
    async with fleet(1, config=KV, events={"keep": 1}) as f:
        await ask(f, prompt(0))
        await joined(f)
        await ask(f, prompt(3))
        publisher, follower = f.publishers[0], follower_of(f)
        await eventually(lambda: len(index_of(f)) >= 10, "the prompt is known")
        publisher.lose.update({publisher.sequence, publisher.sequence + 1})
        for seed in (4, 5, 6):
            await ask(f, prompt(seed))
        await eventually(lambda: follower.counts.resets == 1, "it was reset")
        await eventually(lambda: len(index_of(f)) == 10, "only what came after is known")
        assert int((await ask(f, prompt(3))).headers["x-shoal-predicted-hit"]) == 0
        assert int((await ask(f, prompt(6))).headers["x-shoal-predicted-hit"]) == 160


async def test_case_17_numbers_that_start_again_are_another_process() -> None:
    async with fleet(1, config=KV, events={}) as f:
        await joined(f)
        await ask(f, prompt(7))
        await eventually(lambda: len(index_of(f)) >= 10, "the prompt is known")
        f.publishers[0].restart()
        await ask(f, prompt(8))
        await eventually(lambda: follower_of(f).counts.resets == 1, "the restart was noticed")
        await eventually(lambda: len(index_of(f)) == 10, "the old blocks are gone")
        assert int((await ask(f, prompt(7))).headers["x-shoal-predicted-hit"]) == 0


async def test_case_17_a_replay_is_idempotent() -> None:
    async with fleet(1, config=KV, events={}) as f:
        await joined(f)
        await ask(f, prompt(9))
        follower, publisher = follower_of(f), f.publishers[0]
        await eventually(lambda: follower.counts.messages >= publisher.sequence, "all arrived")
        before = len(index_of(f))
        for number, payload in publisher.sent:
            await follower.on_message(RawEvents(number, payload))
        assert len(index_of(f)) == before
        assert int((await ask(f, prompt(9))).headers["x-shoal-predicted-hit"]) == 160
