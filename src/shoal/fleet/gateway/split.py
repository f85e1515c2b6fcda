"""Prefill on one replica, decode on another: one transaction of two legs, in vLLM's NIXL format over HTTP.

    decode lease ─► prefill leg (max_tokens 1) ─► kv_transfer_params ─► decode leg ─► first byte: KV was taken over

`policy.split` decides what is split and what follows when a prefill fails. KV that a prefill replica holds for a
decode leg that will not come is fetched and dropped, so that it isn't stranded until the engine's own timeout.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.fleet.gateway.body import Parsed, with_fields
from shoal.fleet.gateway.leg import Leg
from shoal.fleet.gateway.record import Observers, RequestRecord
from shoal.fleet.gateway.usage import usage_of
from shoal.fleet.registry import Registry, Replica
from shoal.policy.outcomes import LegFailed, Outcome, outcome_of_exception
from shoal.policy.routing import NoReplica, Router, RouteRequest
from shoal.policy.split import HandoffCounts, SplitConfig, SplitPolicy, queued_prefills

log = logging.getLogger("shoal.fleet")

_ANSWER_LIMIT = 16 * 2**20
_RELEASE_SECONDS = 10.0
_CACHED = re.compile(rb'"cached_tokens"\s*:\s*\d+')
_PREFILL_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


_prompts = msgspec.json.Decoder(list[msgspec.Raw])


def is_single(parsed: Parsed) -> bool:
    """Whether it is one prompt with one choice."""
    ask = parsed.ask
    if (ask.n or 1) != 1 or (ask.best_of or 1) != 1:
        return False
    prompt = memoryview(parsed.prompt)
    if parsed.endpoint != "completions" or parsed.tokens is not None or bytes(prompt[:1]) != b"[":
        return True
    if bytes(prompt[1:64]).lstrip()[:1].isdigit():
        # Token ids of one prompt, more than are read here.
        return True
    try:
        return len(_prompts.decode(parsed.prompt)) == 1
    except msgspec.MsgspecError:
        return True


class _Prefilled(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


@dataclass(slots=True)
class Handoff:
    """KV that a prefill replica holds for one request."""

    params: bytes
    """`kv_transfer_params` as the prefill replica gave them."""
    cached: int | None
    """Prompt tokens that it had cached: what the request really saved."""
    prefill: str
    path: bytes
    body: bytes
    settled: bool = False

    def request(self, body: bytes) -> bytes:
        """The decode leg's body."""
        return with_fields(body, b'"kv_transfer_params":' + self.params + b",")

    def corrected(self, data: bytes) -> bytes:
        """An answer's bytes with the prefill leg's `cached_tokens`: to the decode replica all of the prompt is.

        Inside a JSON string a quote is always escaped, so the pattern can't match in a text.
        """
        if b'"cached_tokens"' not in data:
            return data
        return _CACHED.sub(b'"cached_tokens":%d' % (self.cached or 0), data)


class Splitter:
    """The prefill side of requests. Owned by the gateway's event loop."""

    def __init__(
        self, registry: Registry, router: Router, observers: Observers, config: SplitConfig | None = None
    ) -> None:
        self._registry = registry
        self._router = router
        self._observers = observers
        self._policy = SplitPolicy(config)
        self._config = self._policy.config
        self._releases: set[asyncio.Task[None]] = set()
        self.counts = HandoffCounts()

    def wants(self, decode: Replica, route: RouteRequest, parsed: Parsed) -> bool:
        """Whether this request is to be prefilled elsewhere.

        Several prompts, or several choices of one, stay whole: engines hand over the KV of one sequence.
        """
        return self._policy.wants(decode.state, route) and parsed.api.chunked and is_single(parsed)

    async def prefill(
        self,
        parsed: Parsed,
        route: RouteRequest,
        path: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        record: RequestRecord,
    ) -> Handoff | None:
        """The hand-off from a prefill replica; None: the decode replica has to compute the prompt.

        `LegFailed` (client error) where the prefill replica says that the request is wrong.
        """
        asked: dict[str, Any] = msgspec.json.decode(parsed.body)
        for name in ("stream_options", "min_tokens"):
            asked.pop(name, None)
        asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": _PREFILL_PARAMS}
        if parsed.endpoint == "chat":
            asked["max_completion_tokens"] = 1
        body = msgspec.json.encode(asked)
        wanted = self._policy.prefill_request(route)
        for attempt in range(1, self._config.attempts + 1):
            now = self._registry.clock()
            decision = self._router.route(wanted, self._registry.states(now), now)
            if isinstance(decision, NoReplica):
                log.warning("request %s: no prefill replica: %s", record.request_id, decision.reason)
                return None
            self._watch_queue(decision.replica, now)
            lease = self._registry.take(decision, wanted, streams=False, now=now)
            leg = Leg(self._registry.get(decision.replica), decision, lease, route.model)
            try:
                handoff = await self._one(leg, path, body, headers)
                self._end(leg, Outcome.OK, record)
                return handoff
            except BaseException as error:
                outcome = self._end(leg, outcome_of_exception(error), record)
                step = self._policy.after_failure(outcome, attempt)
                if not isinstance(error, LegFailed | TimeoutError) or step == "fail":
                    raise
                log.warning(
                    "request %s: prefill on %s: %s: %s", record.request_id, leg.replica.name, outcome, error
                )
                if step == "whole":
                    return None
                wanted.excluded = wanted.excluded | {leg.replica.name}
        return None

    async def _one(
        self, leg: Leg, path: bytes, body: bytes, headers: Iterable[tuple[bytes, bytes]]
    ) -> Handoff | None:
        async with asyncio.timeout(self._config.prefill_seconds):
            answer = await leg.open(path, body, headers, self._config.prefill_seconds)
            data = await answer.whole(_ANSWER_LIMIT)
        usage = usage_of(data)
        leg.lease.counted = 1
        try:
            params = bytes(msgspec.json.decode(data, type=_Prefilled).kv_transfer_params)
        except msgspec.MsgspecError:
            raise LegFailed(Outcome.REPLICA_FAULT, "the prefill's answer isn't JSON") from None
        if params in (b"", b"null"):
            # The engine hands nothing over (all of it was too short, or it isn't set up to).
            return None
        self.counts.handed += 1
        return Handoff(params, usage.cached if usage is not None else None, leg.replica.name, path, body)

    def _end(self, leg: Leg, outcome: Outcome, record: RequestRecord) -> Outcome:
        leg.end(outcome, self._registry.clock())
        self._observers.on_leg(record, leg.replica.handle.pool, leg.replica.name, outcome)
        if outcome is Outcome.OK:
            record.prefill, record.prefill_seconds = leg.replica.name, leg.lease.last_at - leg.lease.taken_at
        return outcome

    @property
    def queued(self) -> int:
        """Prompts that wait behind another one at a prefill replica."""
        return queued_prefills([replica.state for replica in self._registry.replicas])

    def _watch_queue(self, name: str, now: float) -> None:
        """Log, now and then, where prompts queue for prefill while decode replicas have capacity."""
        replicas = self._registry.replicas
        queue = self._policy.report_queue(
            self._registry.get(name).state, [replica.state for replica in replicas], now
        )
        if queue is not None:
            log.warning(
                "prefill replica %s has %d prompts queued (about %.1f s), %d sequences decode: "
                "more prefill replicas, or a higher gateway.split_threshold_tokens, would shorten TTFT",
                name,
                queue.prompts,
                queue.seconds,
                queue.decoding,
            )

    def quiet_until(self, handoff: Handoff | None) -> float:
        """Until when silence of the decode replica says nothing of its health."""
        return self._policy.quiet_until(handoff is not None, self._registry.clock())

    def took(self, handoff: Handoff) -> None:
        """The decode replica has begun to answer: the KV is with it."""
        if not handoff.settled:
            handoff.settled = True
            self.counts.taken += 1

    def abandon(self, handoff: Handoff, decode: Leg) -> None:
        """No decode leg will take this KV: have it fetched and dropped. Goes on by itself."""
        if handoff.settled:
            return
        handoff.settled = True
        task = asyncio.ensure_future(self._release(handoff, decode))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, handoff: Handoff, decode: Leg) -> None:
        asked: dict[str, Any] = msgspec.json.decode(handoff.body)
        asked["kv_transfer_params"] = msgspec.json.decode(handoff.params)
        with contextlib.suppress(LegFailed, TimeoutError):
            body = decode.names.request(msgspec.json.encode(asked))
            status, _ = await decode.replica.endpoint.post(handoff.path, body, seconds=_RELEASE_SECONDS)
            if status == 200:
                self.counts.released += 1
                return
        self.counts.lost += 1
        log.warning("KV held by %s could not be released; its engine will after its timeout", handoff.prefill)

    async def close(self) -> None:
        """Wait for releases under way."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=_RELEASE_SECONDS)
