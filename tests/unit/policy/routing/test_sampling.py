"""Of many replicas, the default policy scores those that hold the prompt and some at random."""

from shoal.policy.routing import Decision, ReplicaState, RouterConfig, RouteRequest, build_router


def replicas(count: int) -> list[ReplicaState]:
    return [ReplicaState(name=f"r{i}", models=frozenset({"m"})) for i in range(count)]


def request(number: int, blocks: tuple[bytes, ...]) -> RouteRequest:
    return RouteRequest(str(number), "m", 32 * len(blocks), blocks=blocks)


def test_whoever_holds_the_prompt_is_found_among_many() -> None:
    router, states = build_router(RouterConfig(most_scored=8)), replicas(500)
    first = {}
    for number in range(40):
        blocks = tuple(b"%d/%d" % (number, i) for i in range(20))
        answer = router.route(request(number, blocks), states, 0.0)
        assert isinstance(answer, Decision)
        first[number] = answer.replica
    for number in range(40):
        blocks = tuple(b"%d/%d" % (number, i) for i in range(21))
        answer = router.route(request(number, blocks), states, 1.0)
        assert isinstance(answer, Decision)
        assert answer.replica == first[number]
        assert "(500 able)" in answer.reason


def test_loads_of_many_stay_even() -> None:
    router, states = build_router(RouterConfig(most_scored=16)), replicas(200)
    named = {state.name: state for state in states}
    for number in range(4000):
        answer = router.route(request(number, (b"%d" % number,)), states, 0.0)
        assert isinstance(answer, Decision)
        named[answer.replica].inflight += 1
    loads = [state.inflight for state in states]
    assert max(loads) <= 24
    assert min(loads) >= 16


def test_the_busy_one_that_holds_it_is_passed_over() -> None:
    router, states = build_router(RouterConfig(most_scored=4)), replicas(100)
    blocks = tuple(b"%d" % i for i in range(10))
    answer = router.route(request(0, blocks), states, 0.0)
    assert isinstance(answer, Decision)
    busy = next(state for state in states if state.name == answer.replica)
    busy.pending_tokens = 1e6
    other = router.route(request(1, blocks), states, 1.0)
    assert isinstance(other, Decision)
    assert other.replica != busy.name
