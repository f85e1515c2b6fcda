"""Policies as pure functions: what they weigh, how they break ties, how they explain themselves."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.policy.routing import (
    POLICIES,
    Decision,
    NoReplica,
    ReplicaState,
    RouterConfig,
    RouteRequest,
    build_router,
)
from shoal.policy.routing.contracts import StoredBlocks
from shoal.policy.routing.draws import Draws
from shoal.policy.routing.pickers import PowerOfTwo, Softmax
from shoal.policy.routing.prefix import ApproximateIndex, Sharing
from shoal.policy.routing.session import SessionAffinity
from shoal.policy.routing.text_tree import TextTree
from shoal.policy.routing.trust import DEGRADED, Trust

MODEL = frozenset({"m"})


def replica(name: str, **fields: object) -> ReplicaState:
    return ReplicaState(name, MODEL, **fields)  # type: ignore[arg-type]


def request(prompt: int = 1000, **fields: object) -> RouteRequest:
    return RouteRequest("r", "m", prompt, **fields)  # type: ignore[arg-type]


def chosen(policy: str, replicas: list[ReplicaState], asked: RouteRequest | None = None) -> Decision:
    decision = build_router(RouterConfig(policy=policy)).route(asked or request(), replicas, 0.0)
    assert isinstance(decision, Decision)
    return decision


def test_the_default_adds_up_seconds() -> None:
    busy = replica("busy", pending_tokens=8000, prefill_rate=4000)
    slow = replica("slow", prefill_rate=500)
    decision = chosen("default", [busy, slow])
    # busy: 2 s of queue and 0.25 s of prompt; slow: 2 s of prompt. Prompts count for those they delay, too.
    assert decision.replica == "busy"
    assert decision.predicted_ttft == pytest.approx(2.25)
    assert "queue 2.000 + prefill 0.750" in decision.reason
    busy.pending_tokens = 24_000
    assert chosen("default", [busy, slow]).replica == "slow"


def test_a_hit_wins_until_the_queue_costs_more() -> None:
    router = build_router(RouterConfig(policy="prefix"))
    blocks = [b"%d" % i for i in range(30)]
    holder, other = replica("holder"), replica("other")
    asked = request(960, blocks=blocks, block_tokens=32.0)
    assert isinstance(router.route(asked, [holder], 0.0), Decision)
    decision = router.route(asked, [holder, other], 1.0)
    assert isinstance(decision, Decision)
    assert (decision.replica, decision.predicted_hit) == ("holder", 960)
    holder.pending_tokens = 2000.0
    decision = router.route(asked, [holder, other], 2.0)
    assert isinstance(decision, Decision)
    assert decision.replica == "holder", "two thirds of the price of computing it again are paid by others"
    holder.pending_tokens = 4000.0
    decision = router.route(asked, [holder, other], 2.0)
    assert isinstance(decision, Decision)
    assert decision.replica == "other"


def test_distrust_scales_the_hit() -> None:
    router = build_router(RouterConfig(policy="prefix"))
    asked = request(960, blocks=[b"%d" % i for i in range(30)])
    holder, other = replica("holder"), replica("other", pending_tokens=400.0)
    router.route(asked, [holder], 0.0)
    holder.pending_tokens = 800.0
    assert router.route(asked, [holder, other], 1.0).replica == "holder"  # type: ignore[union-attr]
    holder.trust = 0.1
    assert router.route(asked, [holder, other], 1.0).replica == "other"  # type: ignore[union-attr]


def test_memory_pressure_counts() -> None:
    full = replica("full", kv_capacity_tokens=10_000.0, kv_used_tokens=9_500.0)
    half = replica("half", kv_capacity_tokens=10_000.0, kv_used_tokens=5_000.0, pending_tokens=100.0)
    assert chosen("default", [full, half]).replica == "half"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nobody_is_a_reason(policy: str) -> None:
    router = build_router(RouterConfig(policy=policy))
    cases = {
        "model": [ReplicaState("a", frozenset({"other"}))],
        "busy": [replica("a", inflight=4, max_inflight=4)],
        "down": [replica("a", healthy=False), replica("b", draining=True), replica("c", breaker_closed=False)],
    }
    for kind, replicas in cases.items():
        answer = router.route(request(), replicas, 0.0)
        assert isinstance(answer, NoReplica)
        assert answer.kind == kind
    assert isinstance(router.route(request(excluded=frozenset({"a"})), [replica("a")], 0.0), NoReplica)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_only_the_able_are_picked(policy: str) -> None:
    able = replica("able")
    unable = [replica("x", healthy=False), replica("y", ejected=True), replica("z", role="prefill")]
    for i in range(10):
        assert chosen(policy, [*unable, able], request(session=str(i), text="t" * i)).replica == "able"


@pytest.mark.parametrize("policy", ["default", "least_load", "round_robin", "prefix", "kv", "session"])
def test_equals_take_turns(policy: str) -> None:
    router = build_router(RouterConfig(policy=policy))
    replicas = [replica(f"r{i}") for i in range(5)]
    for _ in range(3):
        # Prompts that share nothing.
        turn = {router.route(request(), replicas, 0.0).replica for _ in range(5)}  # type: ignore[union-attr]
        assert len(turn) == 5


def test_the_same_seed_repeats_a_run_and_another_starts_elsewhere() -> None:
    replicas = [replica(f"r{i}") for i in range(8)]

    def order(seed: int) -> list[str]:
        router = build_router(RouterConfig(seed=seed))
        return [router.route(request(), replicas, 0.0).replica for _ in range(8)]  # type: ignore[union-attr]

    assert order(1) == order(1)
    assert len({order(seed)[0] for seed in range(20)}) > 3


def test_temperature_samples_by_delay() -> None:
    picker = Softmax(Draws(0), temperature=0.1)
    scored = [(0.0, replica("near")), (0.1, replica("far")), (5.0, replica("never"))]
    counts = {"near": 0, "far": 0, "never": 0}
    for _ in range(2000):
        counts[picker.pick(request(), scored, 0.0)[1].name] += 1
    # e to one.
    assert 0.68 < counts["near"] / 2000 < 0.78
    assert counts["never"] == 0


def test_power_of_two_never_takes_the_worst() -> None:
    picker = PowerOfTwo(Draws(3))
    scored = [(float(i), replica(str(i))) for i in range(4)]
    picked = {picker.pick(request(), scored, 0.0)[1].name for _ in range(200)}
    assert picked == {"0", "1", "2"}


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(0, 2**32), st.integers(20, 120))
def test_sessions_stay_and_loads_stay_bounded(count: int, seed: int, sessions: int) -> None:
    picker = SessionAffinity(Draws(seed), bound=1.25)
    replicas = [replica(f"r{i}") for i in range(count)]
    for i in range(sessions):
        scored = [(float(r.load), r) for r in replicas]
        _, picked, _ = picker.pick(request(session=f"{seed}-{i}"), scored, 0.0)
        picked.inflight += 1
        mean = (i + 1) / count
        assert max(r.inflight for r in replicas) <= max(2, 1.25 * mean + 1)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("pool", ["default", "mix-a", "r", "shoal-qwen"])
def test_sessions_spread_evenly_whatever_the_names(pool: str, count: int) -> None:
    """Points on a ring gave 61:39 over two."""
    picker = SessionAffinity(Draws(0))
    scored = [(0.0, replica(f"{pool}-{i}")) for i in range(count)]
    sessions = 2000
    shares = Counter(picker.pick(request(session=f"chat-{i}"), scored, 0.0)[1].name for i in range(sessions))
    mean = sessions / count
    assert all(abs(shares[r.name] - mean) < 4 * mean**0.5 for _, r in scored), shares


def test_a_session_moves_only_if_its_replica_goes() -> None:
    picker = SessionAffinity(Draws(0))
    replicas = [replica(f"r{i}") for i in range(6)]

    def home(session: str, among: list[ReplicaState]) -> str:
        return picker.pick(request(session=session), [(0.0, r) for r in among], 0.0)[1].name

    homes = {str(i): home(str(i), replicas) for i in range(100)}
    left = replicas[1:]
    moved = [s for s, name in homes.items() if home(s, left) != name]
    assert {homes[s] for s in moved} == {"r0"}


def test_shared_prefixes_are_told_from_conversations() -> None:
    sharing = Sharing(1000)
    system = [b"s%d" % i for i in range(10)]
    for i in range(6):
        sharing.add(system, b"tail%d" % i)
    charged = sharing.charged(system, 32.0)
    # Six go on from its end; one of them may be the end of an earlier turn.
    assert charged[0] == pytest.approx(10 * 32 / 5**0.5)
    talk: list[bytes] = []
    for turn in range(6):
        talk = [*talk, b"t%d" % (2 * turn), b"t%d" % (2 * turn + 1)]
        sharing.add(talk, b"end%d" % turn)
    assert sharing.charged(talk, 32.0) == ()


def test_an_old_entry_is_no_hit() -> None:
    index = ApproximateIndex(ttl_seconds=10)
    asked = request(64, blocks=[b"a", b"b"])
    index.chosen(asked, "r", 0.0)
    assert index.hits(asked, 9.0) == {"r": 64}
    assert index.hits(asked, 11.0) == {}


def test_trust_follows_what_comes_true() -> None:
    trust = Trust()
    lost = [trust.observe(100, 0) for _ in range(10)]
    assert lost.count(True) == 1, "said once"
    assert trust.value < DEGRADED
    for _ in range(15):
        trust.observe(100, 100)
    assert trust.value > DEGRADED
    before = trust.value
    trust.observe(0, 500)
    assert trust.value == before


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=30), st.text("ab", max_size=12))
def test_the_text_tree_finds_the_longest_match(prompts: list[str], asked: str) -> None:
    tree = TextTree()
    for i, prompt in enumerate(prompts):
        tree.insert(prompt, f"r{i}")

    def shared(a: str, b: str) -> int:
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    _, length = tree.match(asked, [f"r{i}" for i in range(len(prompts))])
    assert length == max(shared(asked, prompt) for prompt in prompts)


@pytest.mark.parametrize(
    ("policy", "needs"),
    [
        ("round_robin", set()),
        ("cache_aware", {"text"}),
        ("prefix", {"blocks"}),
        ("kv", {"blocks", "tokens"}),
        ("default", {"blocks", "tokens"}),
    ],
)
def test_a_policy_declares_what_it_reads_of_a_request(policy: str, needs: set[str]) -> None:
    assert build_router(RouterConfig(policy=policy)).needs == needs


def test_a_prediction_looks_beyond_full_slots_but_not_beyond_any_other_filter() -> None:
    router = build_router()
    full, down = (
        ReplicaState("a", frozenset({"m"}), inflight=1, max_inflight=1),
        ReplicaState("b", frozenset({"m"})),
    )
    down.healthy = False
    asked = RouteRequest("x", "m", 100)
    assert isinstance(router.route(asked, [full, down], 0.0), NoReplica)
    assert router.predict(asked, [full, down], 0.0) is not None
    assert router.predict(asked, [down], 0.0) is None


def test_a_busy_replica_is_waited_for_though_a_fallback_is_free() -> None:
    busy = ReplicaState("a", frozenset({"m"}), inflight=1, max_inflight=1)
    fallback = ReplicaState("b", frozenset({"m"}), fallback=1)
    answer = build_router().route(RouteRequest("x", "m", 100), [busy, fallback], 0.0)
    assert isinstance(answer, NoReplica)
    assert answer.kind == "busy"


def test_token_ids_are_asked_of_a_replica_that_announces_what_it_holds() -> None:
    router = build_router()
    states = [replica("silent"), replica("ill", healthy=False), replica("speaks")]
    asked = request(64)
    assert router.token_source(asked, states) is None
    events = router.event_index
    assert events is not None
    for name in ("ill", "speaks"):
        events.stored(name, StoredBlocks((1,), None, (1, 2, 3, 4), 4))
    assert router.token_source(asked, states) == "speaks"
    assert router.token_source(asked, states[2:]) is None, "there is nothing to choose"
    for other in (request(63), request(200_001), request(64, tokens=[1] * 64)):
        assert router.token_source(other, states) is None
    approximate = build_router(RouterConfig(policy="prefix"))
    assert approximate.event_index is None
    assert approximate.token_source(asked, states) is None
