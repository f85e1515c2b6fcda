"""18 · The index never grows beyond its bound, whatever is asked (production-stack#687, dynamo#10774)."""

import pytest

from fleet import fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.policy.routing import ReplicaState, RouterConfig, RouteRequest, build_router
from shoal.policy.routing.contracts import StoredBlocks
from shoal.policy.routing.kv import CombinedIndex, ExactIndex
from shoal.policy.routing.prefix import ApproximateIndex
from shoal.policy.routing.text_tree import TextTree


async def test_case_18_the_gateway_forgets_the_oldest() -> None:
    config = GatewayConfig(router=RouterConfig(index_blocks=50))
    async with fleet(2, config=config) as f:
        for i in range(30):
            assert (await f.post(f.chat(f"{i} " + "x" * 1500, max_tokens=1))).status_code == 200
        if f.gateway is not None:
            assert isinstance(f.gateway.router.index, CombinedIndex)
            assert len(f.gateway.router.index.approximate) <= 2 * 50


def test_case_18_blocks_and_seconds_bound_the_approximate_index() -> None:
    index = ApproximateIndex(blocks_per_replica=100, ttl_seconds=10)
    for i in range(1000):
        blocks = [b"%d-%d" % (i, j) for j in range(7)]
        index.chosen(RouteRequest(str(i), "m", 224, blocks=blocks), "r", now=float(i) / 100)
        assert len(index) <= 100
    index.chosen(RouteRequest("late", "m", 32, blocks=[b"late"]), "r", now=100.0)
    assert len(index) == 1


def test_case_18_an_engine_that_never_removes_is_bounded_too() -> None:
    index = ExactIndex(blocks_per_replica=64)
    for i in range(500):
        index.stored("r", StoredBlocks((i,), None, tuple(range(i, i + 4)), 4))
        assert len(index) <= 64


def test_case_18_the_text_tree_is_bounded() -> None:
    tree = TextTree(limit=10_000)
    for i in range(300):
        tree.insert(f"{i * 7919} " + "y" * 500, "r")
        assert tree.characters <= 10_000


@pytest.mark.parametrize("policy", ["default", "prefix", "cache_aware", "session", "least_load"])
def test_case_18_replicas_that_leave_leave_nothing(policy: str) -> None:
    router = build_router(RouterConfig(policy=policy))
    for i in range(50):
        state = ReplicaState(f"r{i}", frozenset({"m"}))
        router.route(RouteRequest(str(i), "m", 64, blocks=[b"a", b"b"], text="hello", session="s"), [state], 0.0)
        router.forget(f"r{i}")
    if isinstance(router.index, ApproximateIndex):
        assert len(router.index) == 0
    if isinstance(router.index, CombinedIndex):
        assert len(router.index.approximate) == 0
