"""Collectives of a step against counts that a real engine's counters show."""

from shoal.plan.collectives import step_traffic


def test_counts_of_a_step() -> None:
    found = {t.kind: t for t in step_traffic(64, 6, 10, tp=2, pp=3, ep=2, moe_layers=4, top_k=2, dispatch_bytes=1)}
    assert found["all_reduce"].messages == 12
    assert found["all_reduce"].payload == 10 * 64 * 2
    assert found["point_to_point"].messages == 2
    assert found["dispatch"].bytes == 4 * 10 * 2 * 64 * 1
    assert found["combine"].bytes == 4 * 10 * 2 * 64 * 2
    assert step_traffic(64, 6, 10) == ()


def test_llama_405b_synchronizes_252_times_a_token() -> None:
    (traffic,) = step_traffic(16384, 126, 1, tp=8)
    assert traffic.messages == 252
