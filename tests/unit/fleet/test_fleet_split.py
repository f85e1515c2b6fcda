"""What is prefilled elsewhere, and how its queue is seen."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fleet import eventually, fleet
from shoal.fleet.gateway import GatewayConfig, RequestRecord
from shoal.policy.outcomes import Outcome


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"best_of": 3},
        {"prompt": ["word " * 400, "other " * 400]},
        {"prompt": [[5] * 400, [6] * 400]},
    ],
    ids=["n", "best_of", "texts", "token ids"],
)
async def test_several_choices_or_prompts_stay_whole(fields: dict[str, Any]) -> None:
    """They were answered 400, about `kv_transfer_params` that nobody had sent."""
    async with fleet(2, config=GatewayConfig(), roles=["prefill", "decode"]) as f:
        body = {"model": "fake", "prompt": "word " * 400, "max_tokens": 2} | fields
        assert f.gateway is not None
        await f.post(body, "/v1/completions")
        assert f.counts() == [0, 1]
        assert "kv_transfer_params" not in f.engines[1].seen[0].body
        one = await f.post(body | {"n": 1, "best_of": 1, "prompt": ["single " * 400]}, "/v1/completions")
        assert one.status_code == 200
        assert f.counts()[0] == 1, "one prompt in a list is one prompt"


async def test_prompts_that_queue_for_prefill_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet(2, config=GatewayConfig(), roles=["prefill", "decode"]) as f:
        assert f.gateway is not None
        records: list[RequestRecord] = []
        pools: list[tuple[str, str]] = []

        class Watch:
            def on_decision(self, *args: Any) -> None: ...
            def on_distrust(self, *args: Any) -> None: ...

            def on_leg(self, record: RequestRecord, pool: str, replica: str, outcome: Outcome) -> None:
                pools.append((pool, replica))

            def on_finished(self, record: RequestRecord) -> None:
                records.append(record)

        f.gateway.observers.all.append(Watch())
        assert f.registry is not None
        for name, pool in (("e0", "fill"), ("e1", "say")):
            replica = f.registry.get(name)
            replica.handle = replace(replica.handle, pool=pool)
        f.engines[0].prefill_rate = 5000
        splitter = f.gateway.splitter
        posts = [asyncio.ensure_future(f.post(f.chat(f"{i} " + "word " * 400))) for i in range(6)]
        await eventually(lambda: splitter.queued >= 3, "they queue")
        for answer in await asyncio.gather(*posts):
            assert answer.status_code == 200
        assert caplog.text.count("prompts queued") == 1
        assert "split_threshold_tokens" in caplog.text
        waits = sorted(r.prefill_seconds for r in records if r.prefill_seconds is not None)
        assert len(waits) == 6
        assert waits[-1] > 3 * waits[0]
        assert {r.prefill for r in records} == {"e0"}
        assert set(pools) == {("fill", "e0"), ("say", "e1")}, "each leg counts in its own pool"
        assert splitter.queued == 0
        f.check()


async def test_what_a_prefill_had_cached_says_nothing_of_the_decode_replica() -> None:
    """Its predicted hits were held against what the prefill replica had: it lost all trust by conversations."""
    async with fleet(2, config=GatewayConfig(), roles=["prefill", "decode"]) as f:
        assert f.registry is not None
        decode = f.registry.get("e1")
        system = "system " * 300
        for turn in range(12):
            answer = await f.post(f.chat(system + f"{turn} " + "word " * 400))
            assert answer.status_code == 200
            f.engines[0].cache.clear()
        assert f.counts()[0] == 12
        assert decode.trust.value == 1.0
