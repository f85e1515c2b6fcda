"""What the real gateway decided, on real sockets, is what the policies decide alone, told the same.

That is how the simulator uses them.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from engine import Fault

from fleet import QUICK_BREAKER, fleet
from shoal.fleet.gateway import GatewayConfig
from shoal.policy.account import ReplicaAccount
from shoal.policy.admission import Admission, Refusal
from shoal.policy.dispatch import Dispatch, Placed
from shoal.policy.leases import Lease
from shoal.policy.replicas import ReplicaAccounts
from shoal.policy.retry import Failure, RetryPolicy
from shoal.policy.routing import NoReplica, RouteRequest, build_router
from shoal.policy.routing.contracts import ReplicaState


def answer_of(answer: Any) -> object:
    """What can be compared of an answer."""
    if isinstance(answer, Placed):
        decision = answer.decision
        return decision.replica, decision.reason, decision.predicted_ttft, decision.predicted_hit
    if isinstance(answer, Refusal):
        return answer.code
    return answer.reason if isinstance(answer, NoReplica) else type(answer).__name__


@dataclass
class Log:
    """Calls in order. Requests and leases are named by when they were first seen."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    requests: list[RouteRequest] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)

    def request(self, request: RouteRequest) -> int:
        for number, known in enumerate(self.requests):
            if known is request:
                return number
        self.requests.append(request)
        return len(self.requests) - 1

    def lease(self, lease: Lease) -> int:
        return next(number for number, known in enumerate(self.leases) if known is lease)


def record(log: Log, patch: pytest.MonkeyPatch) -> None:
    """Have every call of a policy noted, with its answer."""

    def wrap(owner: type, name: str, note: Callable[..., None], before: Callable[..., Any] | None = None) -> None:
        real = getattr(owner, name)

        def noting(self: Any, *args: Any, **named: Any) -> Any:
            earlier = before(*args) if before is not None else None
            answer = real(self, *args, **named)
            note(self, answer, earlier, *args, **named)
            return answer

        patch.setattr(owner, name, noting)

    def placed(
        self: Any, answer: Any, copy: RouteRequest, request: RouteRequest, *, streams: bool, now: float
    ) -> None:
        number = log.request(request)
        if isinstance(answer, Placed):
            log.leases.append(answer.lease)
        log.calls.append(("place", number, copy, streams, now, answer_of(answer)))

    def pumped(self: Any, answer: list[tuple[RouteRequest, Placed]], earlier: None, now: float) -> None:
        log.leases += [placed.lease for _, placed in answer]
        log.calls.append(("pump", now, [(log.request(request), answer_of(placed)) for request, placed in answer]))

    def retried(
        self: Any, answer: Any, earlier: None, failure: Failure, states: Any, now: float, **more: Any
    ) -> None:
        number, further = log.request(failure.request), None if answer is None else log.request(answer)
        excluded = None if answer is None else answer.excluded
        said = failure.replica.name, failure.outcome, failure.attempts
        log.calls.append(("retry", number, said, now, more, further, excluded))

    wrap(Dispatch, "place", placed, lambda request: replace(request))
    wrap(Dispatch, "pump", pumped)
    wrap(Dispatch, "leave", lambda self, a, e, request: log.calls.append(("leave", log.request(request))))
    wrap(RetryPolicy, "on_request", lambda self, a, e, now: log.calls.append(("on_request", now)))
    wrap(RetryPolicy, "retry", retried)
    wrap(RetryPolicy, "resume", retried)
    wrap(Lease, "progress", lambda self, a, e, now: log.calls.append(("progress", log.lease(self), now)))
    wrap(
        Lease,
        "release",
        lambda self, a, e, outcome, now: log.calls.append(
            ("release", log.lease(self), outcome, now, self.tokens, self.counted)
        ),
    )
    wrap(ReplicaAccount, "on_hit", lambda self, a, e, *args: log.calls.append(("on_hit", self.name, args)))


@dataclass
class Replay:
    """Policies alone, as the simulator makes them."""

    config: GatewayConfig
    states: list[ReplicaState]
    requests: dict[int, RouteRequest] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accounts: ReplicaAccounts[ReplicaAccount] = ReplicaAccounts(QUICK_BREAKER)
        for state in self.states:
            peers = self.accounts.peers(state.pool, min(state.models))
            self.accounts.insert(ReplicaAccount(state, QUICK_BREAKER, peers, 0.0))
        admission = Admission(self.config.admission, self.config.down_seconds)
        self.dispatch = Dispatch(self.accounts, build_router(self.config.router), admission)
        self.retries = RetryPolicy(self.config.retry_config())

    def place(self, number: int, copy: RouteRequest, streams: bool, now: float, said: object) -> None:
        self.requests[number] = copy
        answer = self.dispatch.place(copy, streams=streams, now=now)
        if isinstance(answer, Placed):
            self.leases.append(answer.lease)
        assert answer_of(answer) == said

    def pump(self, now: float, said: list[Any]) -> None:
        answer = self.dispatch.pump(now)
        self.leases += [placed.lease for _, placed in answer]
        numbers = {id(request): number for number, request in self.requests.items()}
        assert [(numbers[id(request)], answer_of(placed)) for request, placed in answer] == said

    def leave(self, number: int) -> None:
        if number in self.requests:
            self.dispatch.leave(self.requests[number])

    def on_request(self, now: float) -> None:
        self.retries.on_request(now)

    def retry(self, number: int, said: Any, now: float, more: Any, further: int | None, excluded: Any) -> None:
        name, outcome, attempts = said
        failure = Failure(self.requests[number], self.accounts.get(name).state, outcome, attempts)
        states = self.accounts.states(now)
        decide = self.retries.resume if more else self.retries.retry
        answer = decide(failure, states, now, **more)
        assert (answer is None) == (further is None)
        if answer is not None and further is not None:
            assert answer.excluded == excluded
            self.requests[further] = answer

    def progress(self, number: int, now: float) -> None:
        self.leases[number].progress(now)

    def release(self, number: int, outcome: Any, now: float, tokens: int, counted: int) -> None:
        lease = self.leases[number]
        assert lease.tokens == tokens
        lease.counted = counted
        lease.release(outcome, now)

    def on_hit(self, name: str, args: Any) -> None:
        self.accounts.get(name).on_hit(*args)


@pytest.mark.parametrize("policy", ["default", "prefix", "power_of_two", "session"])
async def test_the_policies_alone_decide_what_the_gateway_decided(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GatewayConfig()
    config = replace(config, router=replace(config.router, policy=policy, seed=5))
    log, draw = Log(), random.Random(policy)
    record(log, monkeypatch)
    async with fleet(3, config=config, handle={"max_inflight": 2}) as f:
        assert f.registry is not None
        states = [replace(replica.state) for replica in f.registry.replicas]
        for engine in f.engines:
            engine.decode_seconds = 0.002
            engine.faults += [Fault("reset", after=draw.randrange(4)) for _ in range(2)]

        async def ask(number: int) -> None:
            await asyncio.sleep(draw.uniform(0, 0.15))
            text = (
                "You are a helpful clerk. " * draw.choice([0, 8])
                + f"Question {number % 9}: "
                + "why " * draw.randrange(60)
            )
            more = {"temperature": 0, "max_tokens": draw.randint(1, 12)}
            await (f.stream(f.chat(text, **more)) if number % 3 else f.post(f.chat(text, **more)))

        await asyncio.gather(*(ask(number) for number in range(90)))
        f.check()
    monkeypatch.undo()
    kinds = {call[0] for call in log.calls}
    assert {"place", "pump", "retry", "progress", "release", "on_hit"} <= kinds
    assert any(call[0] == "place" and call[-1] == "Queued" for call in log.calls)
    assert len({call[-1][0] for call in log.calls if call[0] == "place" and isinstance(call[-1], tuple)}) == 3
    replay = Replay(config, states)
    for name, *said in log.calls:
        getattr(replay, name)(*said)
    assert replay.accounts.ledger.live() == 0
    assert len(replay.leases) == len(log.leases)
