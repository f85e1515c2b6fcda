"""Leases, hangs, stragglers, KV events: what the fleet knows of its replicas."""

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import msgspec
import pytest
from engine import FakeEngine, Fault
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet import QUICK, eventually, fleet
from shoal.fleet.gateway import Gateway, GatewayConfig
from shoal.fleet.index import BadEvents, decode_batch
from shoal.fleet.index.events import Cleared, Removed
from shoal.fleet.registry import Registry, ReplicaHandle
from shoal.http.client import Endpoint
from shoal.policy.batching import BlockPool, Extras, PrefixHasher, make_extras
from shoal.policy.outcomes import LegFailed
from shoal.policy.routing import Decision, RouteRequest, build_router
from shoal.policy.routing.contracts import StoredBlocks
from shoal.policy.routing.kv import CombinedIndex, ExactIndex
from shoal.policy.routing.prefix import ApproximateIndex


def registry_of(count: int, clock: Any = lambda: 0.0) -> Registry:
    registry = Registry(clock=clock)
    for i in range(count):
        registry.add(ReplicaHandle(name=f"r{i}", url="http://127.0.0.1:1", models=("m",)))
    return registry


def decision(name: str) -> Decision:
    return Decision(name, 0, 0.0, 0.0, "test")


async def test_a_hang_is_found_and_its_streams_move_on() -> None:
    async with fleet(2, monitored=True, health=QUICK) as f:
        assert f.registry is not None
        hung = f.engines[0]
        hung.fault = Fault("hang", after=3)
        streams = [f.stream(f.chat(f"s{i}", max_tokens=10, temperature=0)) for i in range(4)]
        got = await asyncio.gather(*streams)
        assert all(g.done and g.finish == "length" for g in got)
        assert f.registry.get("e0").breaker.opened >= 1
        f.check()


async def test_text_prompts_are_routed_by_what_engines_hold() -> None:
    async with fleet(2, events={}) as f:
        assert f.followers is not None
        body = f.chat("what everybody asks " * 30, max_tokens=1)
        first = await f.post(body)
        holder = first.headers["x-shoal-replica"]
        follower = f.followers.by_name[holder]
        await eventually(lambda: follower.counts.events >= 1, "its blocks were announced")
        again = await f.post(body)
        assert again.headers["x-shoal-replica"] == holder
        assert sum(e.tokenized for e in f.engines) == 1
        # Whole blocks of the engine's own size, and what it then says it reused.
        assert int(again.headers["x-shoal-predicted-hit"]) % 16 == 0
        assert again.headers["x-shoal-predicted-hit"] == again.headers["x-shoal-hit"]


def batch(events: list[Any], *, as_map: bool = False) -> bytes:
    return msgspec.msgpack.encode({"ts": 0.0, "events": events} if as_map else [0.0, events, 0])


def test_events_are_read_in_both_encodings() -> None:
    new = {
        "type": "BlockStored",
        "block_hashes": [b"a", b"b"],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
    }
    new |= {
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": "l",
        "extra_keys": None,
        "some_new_field": 1,
    }
    old = ["BlockStored", [1, 2], 7, [1, 2, 3, 4], 2, None]
    assert decode_batch(batch([new], as_map=True)) == [
        StoredBlocks((b"a", b"b"), None, (1, 2, 3, 4), 2, (("lora", "l"),))
    ]
    assert decode_batch(batch([old])) == [StoredBlocks((1, 2), 7, (1, 2, 3, 4), 2, ())]
    first = {"extra_keys": [["l", "s"], ["l"]]}
    assert _extras_of(new | first) == (("lora", "l"), ("cache_salt", "s"))
    assert _extras_of(new | {"lora_name": None, "extra_keys": [["s"], None]}) == (("cache_salt", "s"),)
    # An image's content is none that a prompt's text leads to.
    assert _extras_of(new | {"extra_keys": [["l", ["image", 3]], ["l"]]})[1][0] == "other"
    both = [{"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}, ["AllBlocksCleared"], ["Unheard", 1]]
    assert decode_batch(batch(both)) == [Removed((1,)), Cleared()]
    assert decode_batch(batch([new | {"medium": "disk"}, new | {"group_idx": 1}])) == []


def _extras_of(event: dict[str, Any]) -> Extras:
    (stored,) = decode_batch(batch([event]))
    assert isinstance(stored, StoredBlocks)
    return stored.extras


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), st.lists).map(msgspec.msgpack.encode),
    )
)
def test_whatever_is_no_batch_is_said_so(payload: bytes) -> None:
    with contextlib.suppress(BadEvents):
        assert isinstance(decode_batch(payload), list)


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8000", "http://"])
def test_a_bad_url_is_said_so(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        Endpoint(url)


async def test_an_idle_connection_that_was_closed_costs_nothing() -> None:
    engine = await FakeEngine("e").start()
    endpoint = Endpoint(engine.url)
    assert (await endpoint.get(b"/health", seconds=5))[0] == 200
    port = engine.port
    await engine.stop()
    engine.port = port
    await engine.start()
    assert (await endpoint.get(b"/health", seconds=5))[0] == 200
    assert engine.connections == 1
    await engine.stop()
    with pytest.raises(LegFailed):
        await endpoint.get(b"/health", seconds=5)
    endpoint.close()


def test_retired_gateways_leave_the_registry() -> None:
    async def scenario() -> None:
        registry = registry_of(1)
        gateway = Gateway(registry, GatewayConfig(), router=build_router())
        await gateway.drain(0)
        retired = weakref.ref(gateway.router)
        del gateway
        gc.collect()
        assert retired() is None, "the registry still calls it"
        registry.close()

    asyncio.run(scenario())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=12),
    st.sampled_from([(None, None), ("a", None), (None, "s"), ("a", "s"), ("s", "s")]),
    st.sampled_from([(None, None), ("a", None), (None, "s"), ("a", "s"), ("s", "a")]),
)
def test_what_an_engine_announces_is_found_by_the_same_prompt_and_salt_only(
    tokens: list[int], stored: tuple[str | None, str | None], asked: tuple[str | None, str | None]
) -> None:
    pool, extras = BlockPool(9, 2, record_events=True), make_extras(*stored)
    chain = PrefixHasher(2).hashes(tokens, extras)
    for place, block in enumerate(pool.allocate(len(chain))):
        parent = chain[place - 1] if place else None
        pool.register(block, chain[place], parent, tokens[2 * place : 2 * place + 2], extras=extras)
    index = ExactIndex()
    for event in decode_batch(msgspec.msgpack.encode([0.0, pool.take_events()])):
        assert isinstance(event, StoredBlocks)
        assert index.stored("r", event)
    request = RouteRequest("1", "m", len(tokens), tokens=tokens, extras=make_extras(*asked))
    expected = len(chain) * 2 if stored == asked else 0
    assert index.hits(request, 0.0).get("r", 0) == expected


def test_events_that_tell_no_salt_say_nothing_of_salted_prompts() -> None:
    index = CombinedIndex(ExactIndex(), ApproximateIndex())
    index.exact.stored("r", StoredBlocks((1,), None, (1, 2), 2))
    plain = RouteRequest("1", "m", 2, tokens=[1, 2], blocks=(b"plain",), block_tokens=2)
    salted = RouteRequest(
        "2", "m", 2, tokens=[1, 2], blocks=(b"salted",), block_tokens=2, extras=make_extras(None, "s")
    )
    index.chosen(salted, "r", 0.0)
    # Long ago: only an index that the events don't overrule still knows it.
    assert index.hits(plain, 60.0) == {"r": 2}
    assert index.hits(salted, 60.0) == {"r": 2}
    index.exact.stored("r", StoredBlocks((2,), None, (3, 4), 2, make_extras(None, "t")))
    assert index.hits(salted, 60.0) == {"r": 0}
