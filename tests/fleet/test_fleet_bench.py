"""`shoal bench` against a gateway: prompts of exact length, a finish by itself, replicas named."""

from fleet_kit import Served

from shoal.bench.run import Runner
from shoal.bench.target import Target, TargetOptions
from shoal.workload.lengths import parse_lengths
from shoal.workload.load import Shape, at_times, made_up
from shoal.workload.run import RunOptions
from shoal.workload.summary import summarize

SHAPE = Shape(parse_lengths("uniform:24:60", "input"), parse_lengths("6", "output"))


async def test_bench_sends_exact_prompts_through_a_gateway(pair: Served) -> None:
    async with await Target.open(TargetOptions(pair.url)) as target:
        assert target.takes_ids
        load = at_times(made_up(SHAPE, 12, 0), "poisson", 30, 0)
        done = await Runner(target, RunOptions(salt="gateway")).run(load)
    assert [r.error for r in done.records if not r.ok] == []
    assert all(r.prompt_tokens == r.asked_prompt for r in done.records)
    assert {t.name for t in summarize(done).replicas} == {"tiny-0", "tiny-1"}


async def test_bench_chats_through_a_gateway(pair: Served) -> None:
    async with await Target.open(TargetOptions(pair.url, api="chat")) as target:
        done = await Runner(target, RunOptions()).run(at_times(made_up(SHAPE, 3, 0), "burst", 1, 0))
    assert [r.error for r in done.records if not r.ok] == []
