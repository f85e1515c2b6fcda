"""From scores to one replica. Equal scores must not herd: pickers remember whom they picked."""

import math
from collections.abc import Sequence

from shoal.policy.routing.contracts import NO_NEEDS, ReplicaState, RouteRequest
from shoal.policy.routing.draws import Draws

Scored = Sequence[tuple[float, ReplicaState]]
Picked = tuple[float, ReplicaState, str]


class _Memory:
    """When each replica was last picked. Those never picked come first, in an order that the seed decides.

    Several gateways with different seeds so begin at different replicas, though all see the same gauges.
    """

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._last: dict[str, float] = {}
        self._count = 0

    def rank(self, name: str) -> float:
        last = self._last.get(name)
        if last is None:
            last = self._last[name] = self._draws.uniform() - 1.0
        return last

    def note(self, name: str) -> None:
        self._count += 1
        self._last[name] = float(self._count)

    def forget(self, name: str) -> None:
        self._last.pop(name, None)


class Least:
    """The lowest score; among scores equal for all we know, the least loaded, of these the least recent.

    Scores are predictions: within `relative` of the best or `absolute` seconds they are the same.
    """

    needs = NO_NEEDS

    def __init__(self, draws: Draws, relative: float = 0.05, absolute: float = 0.002) -> None:
        self._memory = _Memory(draws)
        self._relative = relative
        self._absolute = absolute

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        best = min(score for score, _ in scored)
        limit = best + max(self._absolute, best * self._relative)
        tied = [item for item in scored if item[0] <= limit]
        score, replica = min(tied, key=lambda item: (item[1].load, self._memory.rank(item[1].name)))
        self._memory.note(replica.name)
        return score, replica, "least" if len(tied) == 1 else f"least loaded, then recent, of {len(tied)} equal"

    def forget(self, replica: str) -> None:
        self._memory.forget(replica)


class Softmax:
    """Sampled: each `temperature` seconds of delay make a replica e times less likely."""

    needs = NO_NEEDS

    def __init__(self, draws: Draws, temperature: float) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature} s; it must be greater than 0")
        self._draws = draws
        self._temperature = temperature

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        best = min(score for score, _ in scored)
        weights = [math.exp((best - score) / self._temperature) for score, _ in scored]
        left = self._draws.uniform() * sum(weights)
        for (score, replica), weight in zip(scored, weights, strict=True):
            left -= weight
            if left < 0:
                return score, replica, f"sampled at {self._temperature:g} s"
        score, replica = scored[-1]
        return score, replica, f"sampled at {self._temperature:g} s"

    def forget(self, replica: str) -> None:
        pass


class RoundRobin:
    """Whoever was picked least recently, whatever the scores."""

    needs = NO_NEEDS

    def __init__(self, draws: Draws) -> None:
        self._memory = _Memory(draws)

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        score, replica = min(scored, key=lambda item: self._memory.rank(item[1].name))
        self._memory.note(replica.name)
        return score, replica, "next in turn"

    def forget(self, replica: str) -> None:
        self._memory.forget(replica)


class Random:
    needs = NO_NEEDS

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        score, replica = scored[self._draws.below(len(scored))]
        return score, replica, "random"

    def forget(self, replica: str) -> None:
        pass


class PowerOfTwo:
    """The better of two drawn at random: nearly as good as the best of all, and never a herd (Mitzenmacher
    2001)."""

    needs = NO_NEEDS

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        if len(scored) == 1:
            return scored[0][0], scored[0][1], "the only one"
        first = self._draws.below(len(scored))
        second = (first + 1 + self._draws.below(len(scored) - 1)) % len(scored)
        score, replica = min(scored[first], scored[second], key=lambda item: item[0])
        return score, replica, "better of two"

    def forget(self, replica: str) -> None:
        pass
