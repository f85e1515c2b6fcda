"""What a request would wait for, in seconds: the queue, its own prompt, decoding neighbours, memory."""

from shoal.policy.routing.contracts import ReplicaState, RouteRequest
from shoal.policy.routing.prefix import PREFILL_EXTERNALITY


class Queue:
    """Prompt tokens ahead of it, at the replica's prefill rate."""

    name = "queue"

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        return replica.pending_tokens / replica.prefill_rate


class Overhead:
    """What a first token takes whatever the prompt: alike for all, but it belongs to a prediction."""

    name = "overhead"

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        return replica.overhead_seconds


class Uncached:
    """Its own prompt, less what the replica holds: `(prompt - hit · trust) / prefill_rate`."""

    name = "prefill"

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        hit = request.hits.get(replica.name, 0) * replica.trust
        # The last token is always computed: its logits are wanted.
        return max(1.0, request.prompt_tokens - hit) / replica.prefill_rate


class Prefill:
    """What computing the rest of its prompt costs it and those it delays (`prefix.PREFILL_EXTERNALITY`).

    What many prompts share is charged in part: to compute a shared prefix on one more replica is an investment of
    all that will use it there. Charged in full to the first, it would never be made, and one replica would get
    everything that begins alike.
    """

    name = "prefill"

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        charged = request.charged
        hit = request.hits.get(replica.name, 0) * replica.trust
        if charged:
            held = min(len(charged) - 1, int(hit / request.block_tokens + 0.5))
            whole = (len(charged) - 1 - held) * request.block_tokens
            cost = charged[held] + (request.prompt_tokens - hit - whole) * (1 + PREFILL_EXTERNALITY)
        else:
            cost = (request.prompt_tokens - hit) * (1 + PREFILL_EXTERNALITY)
        return max(1.0, cost) / replica.prefill_rate


class Decode:
    """What its output takes here beyond an idle, usual replica.

    Every neighbour lengthens each step that both are there for: half of the output, as those who overlap by chance
    do on average.
    """

    name = "decode"

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        return (replica.decode_excess + replica.decode_seconds * replica.load / 2) * request.max_tokens


class KvPressure:
    """What full memory costs: a preempted sequence is computed again, and one that doesn't fit waits.

    From 80 % projected usage on, the risk of a preemption grows linearly to one at 100 %; it costs a prefill.
    Beyond 100 %, the tokens that don't fit wait until as many are freed, at the prefill rate at the soonest.
    """

    name = "kv"
    _FROM = 0.8

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        capacity = replica.kv_capacity_tokens
        if capacity <= 0:
            return 0.0
        needed = request.prompt_tokens - request.hits.get(replica.name, 0) * replica.trust + request.max_tokens
        usage = (replica.kv_used_tokens + needed) / capacity
        if usage <= self._FROM:
            return 0.0
        risk = min(1.0, (usage - self._FROM) / (1 - self._FROM))
        waiting = max(0.0, usage - 1.0) * capacity
        return (risk * request.prompt_tokens + waiting) / replica.prefill_rate


class Requests:
    """Load as a count, for policies that know no tokens: one second a request."""

    name = "requests"

    def seconds(self, request: RouteRequest, replica: ReplicaState, now: float) -> float:
        return float(replica.load)
