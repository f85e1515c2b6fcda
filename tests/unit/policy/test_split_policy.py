"""Which prompts are prefilled elsewhere, and what follows when that fails."""

from dataclasses import replace

import pytest

from shoal.policy.outcomes import Outcome
from shoal.policy.routing import RouteRequest
from shoal.policy.routing.contracts import ReplicaState
from shoal.policy.split import HandoffCounts, NextStep, SplitConfig, SplitPolicy, queued_prefills

DECODE = ReplicaState("d", frozenset({"m"}), role="decode")
POLICY = SplitPolicy(SplitConfig(threshold_tokens=256, attempts=2))


@pytest.mark.parametrize(
    ("role", "prompt", "hit", "trust", "wanted"),
    [
        ("decode", 256, 0, 1.0, True),
        ("decode", 255, 0, 1.0, False),
        ("decode", 1000, 800, 1.0, False),
        ("decode", 1000, 800, 0.5, True),
        ("both", 1000, 0, 1.0, False),
    ],
)
def test_only_what_is_worth_a_hand_off_is_split(
    role: str, prompt: int, hit: int, trust: float, wanted: bool
) -> None:
    request = RouteRequest("x", "m", prompt, hits={"d": hit})
    assert POLICY.wants(replace(DECODE, role=role, trust=trust), request) is wanted


def test_the_prefill_leg_forgets_what_concerns_the_decode_leg() -> None:
    request = RouteRequest("x", "m", 1000, 50, excluded=frozenset({"d"}), hits={"d": 9}, weights="w")
    leg = POLICY.prefill_request(request)
    assert (leg.role, leg.excluded, leg.hits, leg.max_tokens) == ("prefill", frozenset(), {}, 1)
    assert (leg.prompt_tokens, leg.weights) == (1000, "w")
    assert request.role == "serve"


@pytest.mark.parametrize(
    ("outcome", "steps"),
    [
        (Outcome.REPLICA_FAULT, ["retry", "whole"]),
        (Outcome.BACKPRESSURE, ["retry", "whole"]),
        (Outcome.DEADLINE, ["retry", "whole"]),
        (Outcome.CLIENT_ERROR, ["fail", "fail"]),
        (Outcome.CANCELLED, ["whole", "whole"]),
    ],
)
def test_a_failed_prefill_costs_no_request(outcome: Outcome, steps: list[NextStep]) -> None:
    assert [POLICY.after_failure(outcome, attempt) for attempt in (1, 2)] == steps


def test_a_queue_is_reported_now_and_then() -> None:
    policy = SplitPolicy()
    busy = ReplicaState("p", frozenset({"m"}), role="prefill", inflight=3, pending_tokens=8000, prefill_rate=4000)
    states = [busy, replace(DECODE, decoding=4, inflight=9)]
    assert policy.report_queue(replace(busy, inflight=2), states, 0.0) is None
    queue = policy.report_queue(busy, states, 0.0)
    assert queue is not None
    assert (queue.prompts, queue.seconds, queue.decoding) == (3, 2.0, 4)
    assert policy.report_queue(busy, states, 29.0) is None
    assert policy.report_queue(busy, states, 31.0) is not None
    assert queued_prefills(states) == 2


def test_hand_offs_are_conserved() -> None:
    counts = HandoffCounts(handed=5, taken=2, released=1, lost=1)
    assert counts.live == 1
