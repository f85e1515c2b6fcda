"""Two models under one name: what a fallback gets, and that no stream goes on with other weights."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from engine import Fault

from fleet import Fleet, fleet
from shoal.fleet.gateway import GatewayConfig


@asynccontextmanager
async def two_models(*, fallback: int, config: GatewayConfig | None = None) -> AsyncIterator[Fleet]:
    """`e0` and `e1` serve one name with different weights."""
    async with fleet(2, config=config) as f:
        assert f.registry is not None
        handle = f.registry.get("e1").handle
        f.registry.remove("e1")
        f.registry.add(dataclasses.replace(handle, weights="other", fallback=fallback))
        yield f
        f.check()


async def test_a_fallback_serves_only_while_nobody_else_can() -> None:
    async with two_models(fallback=1) as f:
        assert f.registry is not None
        for n in range(6):
            assert (await f.post(f.chat(f"{n}"))).status_code == 200
        assert f.counts() == [6, 0]
        f.registry.set_health("e0", False, "test")
        assert (await f.post(f.chat("down"))).headers["x-shoal-replica"] == "e1"
        f.registry.set_health("e0", True)
        assert (await f.post(f.chat("back"))).headers["x-shoal-replica"] == "e0"


async def test_a_busy_replica_is_waited_for() -> None:
    """Load alone doesn't change the model that clients get."""
    async with two_models(fallback=1) as f:
        assert f.registry is not None
        f.registry.get("e0").state.max_inflight = 1
        f.engines[0].decode_seconds = 0.02
        answers = await asyncio.gather(*(f.post(f.chat(f"{n}")) for n in range(4)))
        assert {a.headers["x-shoal-replica"] for a in answers} == {"e0"}


async def test_before_the_first_byte_a_fallback_is_tried() -> None:
    async with two_models(fallback=1) as f:
        f.engines[0].faults.append(Fault("reset"))
        answer = await f.post(f.chat())
        assert (answer.status_code, answer.headers["x-shoal-replica"]) == (200, "e1")


@pytest.mark.parametrize(("fallback", "across"), [(0, False), (1, False), (1, True)])
async def test_a_stream_is_not_carried_on_with_other_weights(fallback: int, across: bool) -> None:
    """Where nobody has the same weights it ends with an error event, also where another engine might go on."""
    config = GatewayConfig(continue_across_engines=across)
    async with two_models(fallback=fallback, config=config) as f:
        for engine in f.engines:
            engine.faults.append(Fault("reset", after=3))
            engine.fault = Fault("status", status=500)
        streamed = await f.stream(f.chat(max_tokens=40, temperature=0))
        first = streamed.response.headers["x-shoal-replica"]
        assert not streamed.done
        assert streamed.error is not None
        assert f.counts()[1 - int(first[1:])] == 0, "the other model was asked"
        assert ": ;" not in streamed.error["message"]


async def test_a_stream_is_carried_on_with_the_same_weights() -> None:
    weights = {"e0": "a", "e1": "b", "e2": "a"}
    async with fleet(3) as f:
        assert f.registry is not None
        for name, value in weights.items():
            handle = f.registry.get(name).handle
            f.registry.remove(name)
            f.registry.add(dataclasses.replace(handle, weights=value))
        for n in range(6):
            before = f.counts()
            for engine in f.engines:
                engine.faults.clear()
                engine.faults.append(Fault("reset", after=3))
            streamed = await f.stream(f.chat(f"{n}", max_tokens=8, temperature=0))
            assert streamed.done
            asked = [e.name for e, count in zip(f.engines, before, strict=True) if e.requests > count]
            assert len({weights[name] for name in asked}) == 1, asked
        assert min(f.counts()) > 0
