"""Latencies, goodput, counts and warnings, against figures worked out by hand."""

import pytest
from benchkit import record, result

from shoal.bench.checks import Hardware, HardwareOptions, hardware, warnings
from shoal.policy.outcomes import Outcome
from shoal.specs.errors import SpecError
from shoal.workload.objectives import Objectives
from shoal.workload.records import Phase
from shoal.workload.summary import summarize


def test_latencies_count_from_the_scheduled_send() -> None:
    r = record(scheduled=2.0, late=0.3, ttft=0.5, gap=0.1, tokens=5)
    assert r.ttft == pytest.approx(0.5)
    assert r.schedule_delay == pytest.approx(0.3)
    assert r.e2e == pytest.approx(0.9)
    assert r.tpot == pytest.approx(0.1)
    assert r.gaps == pytest.approx([0.1] * 4)


def test_tpot_divides_by_tokens_not_by_events() -> None:
    # Five events that carry nine tokens between them.
    r = record(ttft=0.5, gap=0.1, tokens=5, output_tokens=9)
    assert r.tpot == pytest.approx(0.4 / 8)
    assert record(tokens=1).tpot is None


def test_goodput_counts_only_requests_that_met_every_objective() -> None:
    records = [
        record(0, ttft=0.1, gap=0.01),
        record(1, ttft=0.3, gap=0.01),
        record(2, ttft=0.1, gap=0.05),
        record(3, outcome=Outcome.BACKPRESSURE),
        record(4, ttft=0.1, gap=0.01, tokens=1),
        record(5, ttft=0.1, gap=0.01, phase=Phase.WARMUP),
        record(6, scheduled=1.95, ttft=0.1, gap=0.01, phase=Phase.WARMUP),
    ]
    s = summarize(result(records, 0.0, 2.0), Objectives(ttft=0.2, tpot=0.02))
    assert s.requests == 5
    assert s.attained.value == pytest.approx(2 / 5)
    # Of the warm-up, the request that ended in the window.
    assert s.goodput.value == pytest.approx(3 / 2.0)
    assert s.goodput.value <= s.completed_rate
    assert {(m.objective, m.requests) for m in s.missed} == {("outcome", 1), ("ttft", 1), ("tpot", 1)}


def test_outcomes_are_counted_by_type_and_failures_have_no_latency() -> None:
    kinds = [
        Outcome.CLIENT_ERROR,
        Outcome.BACKPRESSURE,
        Outcome.REPLICA_FAULT,
        Outcome.TRANSPORT_FAULT,
        Outcome.DEADLINE,
    ]
    records = [record(i, outcome=kind) for i, kind in enumerate(kinds)] + [record(9), record(10)]
    s = summarize(result(records))
    assert {t.name: t.count for t in s.outcomes} == {**{kind.value: 1 for kind in kinds}, "ok": 2}
    assert s.failed == 5
    assert s.ttft is not None
    assert s.ttft.count == 2
    assert any("5 of 7 requests failed" in w for w in warnings(s, records))


def test_throughput_counts_what_arrived_in_the_window_whoever_asked() -> None:
    records = [
        # Tokens at 0.1 … 0.5 (two of them before the window) and 0.9 … 1.3 (two of them after it).
        record(0, scheduled=0.0, ttft=0.1, gap=0.1, phase=Phase.WARMUP),
        record(1, scheduled=0.8, ttft=0.1, gap=0.1),
    ]
    s = summarize(result(records, 0.25, 1.15))
    assert s.output_rate.value == pytest.approx(6 / 0.9)


def test_cached_tokens_are_summed_only_where_the_server_says_them() -> None:
    assert summarize(result([record()])).hit_rate is None
    s = summarize(result([record(0, cached_tokens=4), record(1, cached_tokens=0)]))
    assert s.hit_rate == pytest.approx(4 / 20)


def test_a_run_of_nothing_has_no_figures_and_no_error() -> None:
    s = summarize(result([], 0.0, 0.0, partial=True))
    assert (s.requests, s.ttft, s.goodput.value) == (0, None, 0.0)


def test_a_late_generator_is_reported() -> None:
    late = [record(i, scheduled=i / 10, late=0.05, ttft=0.1) for i in range(20)]
    prompt = [record(i, scheduled=i / 10, late=0.0001, ttft=0.1) for i in range(20)]
    assert any("generator was late" in w for w in warnings(summarize(result(late)), late))
    assert warnings(summarize(result(prompt)), prompt) == ()


def test_contradictions_are_reported() -> None:
    wrong = [record(0, prompt_tokens=12), record(1, cached_tokens=11)]
    found = warnings(summarize(result(wrong)), wrong)
    assert any("counted otherwise than sent (12 for 10 tokens)" in w for w in found)
    assert any("more cached tokens than prompt tokens" in w for w in found)
    other = [record(0, asked_output=9)]
    assert any("1 of 1 answers had another length" in n for n in summarize(result(other)).notes)


def test_impossible_figures_are_reported() -> None:
    machine = Hardware("toy", weight_bytes=1e9, active_parameters=5e8, bandwidth=2e10, flops=1e12)
    assert machine.itl == pytest.approx(0.05)
    assert machine.tokens_per_second == pytest.approx(1000)
    fast = [record(i, gap=0.01) for i in range(5)]
    slow = [record(i, gap=0.06) for i in range(5)]
    assert any("below the floor" in w for w in warnings(summarize(result(fast)), fast, machine))
    assert not any("below the floor" in w for w in warnings(summarize(result(slow)), slow, machine))
    many = [record(i, gap=0.06, prompt_tokens=10_000, asked_prompt=None) for i in range(5)]
    assert any("above the ceiling" in w for w in warnings(summarize(result(many)), many, machine))


def test_a_floor_is_read_from_the_catalogue() -> None:
    found = hardware(HardwareOptions(model="llama-3.1-8b", gpu="h100", devices=2))
    assert found is not None
    # 8.03 B parameters less the input embedding (128256 x 4096), 2 bytes each, over 2 x 3.35 TB/s.
    assert found.itl == pytest.approx((8.03e9 - 128256 * 4096) * 2 / (2 * 3.35e12), rel=0.01)
    assert hardware(HardwareOptions()) is None
    with pytest.raises(SpecError, match="floor_model"):
        hardware(HardwareOptions(gpu="h100"))


def test_objectives_refuse_what_cannot_be() -> None:
    with pytest.raises(SpecError, match=r"objectives\.ttft"):
        Objectives(ttft=0)
    with pytest.raises(SpecError, match=r"objectives\.share"):
        Objectives(share=1.5)
