"""One request from its body to its last byte.

acquire a lease ─► open a leg ─► relay ─► end the leg with its outcome
     ▲                            │
     └── another replica ◄────────┘  a fault: again from the start before the client's first byte,
                                     from where it broke off after it, where that is exact
"""

import logging
import math

from shoal.fleet.gateway.body import asking_for_usage, with_fields
from shoal.fleet.gateway.context import AdmittedRequest, Services
from shoal.fleet.gateway.formats import failure_of
from shoal.fleet.gateway.journal import Journal, modes_for
from shoal.fleet.gateway.leg import Leg, Refused, learn
from shoal.fleet.gateway.reading import StreamReader
from shoal.fleet.gateway.replies import answer_headers, closed, failed, refusal_of
from shoal.fleet.gateway.reply import Reply
from shoal.fleet.gateway.split import Handoff
from shoal.fleet.gateway.sse import without_token_ids, without_usage
from shoal.fleet.gateway.stored import Owner
from shoal.fleet.gateway.usage import NOTHING_USED, TokenMeter, output_estimate, response_id_of, usage_of
from shoal.http.client import HttpResponse
from shoal.http.errors import ApiError, ErrorBody
from shoal.http.sse import SseSplitter
from shoal.policy.outcomes import LegFailed, Outcome, outcome_of_exception
from shoal.policy.retry import Failure
from shoal.policy.routing import RouteRequest

log = logging.getLogger("shoal.fleet")

_END_SECONDS = 1.0
"""Between a stream's last event and the end of its HTTP message, at most: its client waits for nothing else."""


class Exchange:
    """Runs once."""

    def __init__(self, services: Services, admitted: AdmittedRequest) -> None:
        self._services, self._admitted = services, admitted
        self._registry, self._config, self._clock = services.registry, services.config, services.registry.clock
        self.record, self._parsed, self._route = admitted.record, admitted.parsed, admitted.route
        self._handoff: Handoff | None = None
        self._form = admitted.parsed.api.form
        self._path = admitted.record.path.encode()
        self.reply = Reply(admitted.send, self.record, self._clock, self._form)
        route = self._route
        self.charge = route.prompt_tokens + route.max_tokens
        """Tokens expected of it, for rate limits."""
        self.meter = TokenMeter(route.prompt_tokens, route.max_tokens)
        self.used = NOTHING_USED
        """What it has cost; exact when `run` has ended."""
        self._said = False
        """The client has seen something of an answer: from here on it can be continued, but not begun again."""
        self._journal: Journal | None = None
        self._continuing = False
        self._tries = 0
        self._strip_usage = False

    async def run(self) -> None:
        """Answer the client. `ApiError` where nothing was sent yet; what breaks later ends in an error event."""
        self._services.retries.on_request(self._clock())
        try:
            while not await self._try():
                pass
        except ApiError as error:
            if not self._said:
                self.meter.refuse()
            self.reply.hush()
            if not self.reply.started:
                raise
            await self.reply.fail(error.body)
        finally:
            if self._journal is not None and self._journal.prompt:
                self.meter.prompt = len(self._journal.prompt)
            used = self.used = self.meter.used
            self.record.prompt_tokens, self.record.completion_tokens = used.prompt_tokens, used.output

    async def _try(self) -> bool:
        """One leg; whether the request has ended with it."""
        leg = await self._acquire()
        try:
            await self._carry(leg)
            self._end(leg, Outcome.OK)
            return True
        except BaseException as error:
            self._end(leg, outcome_of_exception(error))
            if isinstance(error, Refused) and not self._said:
                await self._pass_refusal(leg, error)
                return True
            if not isinstance(error, LegFailed | TimeoutError):
                raise
            return await self._is_last(leg, error)

    # Where to.

    async def _acquire(self) -> Leg:
        self._tries += 1
        placed = await self._services.dispatcher.acquire(self._route, streams=self._parsed.streams)
        decision, lease = placed.decision, placed.lease
        replica = self._registry.get(decision.replica)
        record = self.record
        record.attempts += 1
        record.replica, record.reason, record.pool = replica.name, decision.reason, replica.handle.pool
        record.predicted_hit, record.predicted_ttft = decision.predicted_hit, decision.predicted_ttft
        record.leased = lease.taken_at
        leg = Leg(replica, decision, lease, self._route.model)
        self._services.observers.on_decision(record, decision)
        return leg

    async def _is_last(self, leg: Leg, error: LegFailed | TimeoutError) -> bool:
        """Whether the request has ended with this failure; False: another replica is to be tried."""
        outcome = outcome_of_exception(error)
        log.info("request %s on %s: %s: %s", self.record.request_id, leg.replica.name, outcome, error)
        if self._said:
            return await self._break_off(leg, error, outcome)
        now = self._clock()
        failure = Failure(self._route, leg.replica.state, outcome, self._tries)
        further = self._services.retries.retry(failure, self._registry.states(now), now)
        if further is None:
            raise failed(error, outcome)
        self._route = further
        return False

    async def _break_off(self, leg: Leg, error: LegFailed | TimeoutError, outcome: Outcome) -> bool:
        journal, why = self._journal, "it can't be continued elsewhere"
        if journal is not None:
            if (ending := journal.ending(usage=self._parsed.wants_usage)) is not None:
                await self.reply.write(ending)
                await self.reply.finish()
                return True
            if (rest := self._rest(leg, outcome, journal)) is not None:
                self._route = rest
                journal.begin_leg()
                self._continuing = True
                self.record.continued += 1
                return False
            why = "nobody could continue it"
        message = f"the stream broke off: {str(error) or 'it stalled'}; {why}"
        await self.reply.fail(ErrorBody(message, "server_error", code="stream_broken"))
        return True

    def _rest(self, leg: Leg, outcome: Outcome, journal: Journal) -> RouteRequest | None:
        now, registry = self._clock(), self._registry
        return self._services.retries.resume(
            Failure(self._route, leg.replica.state, outcome, self._tries),
            registry.states(now),
            now,
            unable=frozenset(r.name for r in registry.replicas if journal.mode_on(r.handle) is None),
            sent_tokens=journal.safe,
        )

    # One leg.

    def _end(self, leg: Leg, outcome: Outcome) -> None:
        leg.end(outcome, self._clock())
        self.record.outcome = outcome
        self._services.observers.on_leg(self.record, leg.replica.handle.pool, leg.replica.name, outcome)

    async def _carry(self, leg: Leg) -> None:
        path, body = self._request_for(leg)
        try:
            if (
                self._parsed.api.chunked
                and not self._continuing
                and self._services.splitter.wants(leg.replica, self._route, self._parsed)
            ):
                splitter = self._services.splitter
                leg.lease.quiet_until = math.inf
                self._handoff = await splitter.prefill(
                    self._parsed, self._route, path, self._admitted.forwarded, self.record
                )
                leg.lease.quiet_until = splitter.quiet_until(self._handoff)
                if self._handoff is not None:
                    body = self._handoff.request(body)
            await self._answer(leg, path, body)
        finally:
            handoff, self._handoff = self._handoff, None
            if handoff is not None:
                self._services.splitter.abandon(handoff, leg)

    async def _answer(self, leg: Leg, path: bytes, body: bytes) -> None:
        config = self._config
        seconds = config.first_byte_seconds if self._parsed.streams else config.answer_seconds
        answer = await leg.open(path, body, self._admitted.forwarded, seconds)
        if answer.header(b"content-type").startswith(b"text/event-stream"):
            await self._stream(leg, answer)
        else:
            await self._whole(leg, answer)
        if self.meter.usage is not None:
            # Of a split request it says what the prefill replica had cached: no measure of what was predicted here.
            whole = self._handoff is None
            learn(self.record, leg, self.meter.usage, self._services.observers if whole else None)

    def _request_for(self, leg: Leg) -> tuple[bytes, bytes]:
        parsed, handle = self._parsed, leg.replica.handle
        if self._continuing:
            assert self._journal is not None
            request = self._journal.request(handle)
            if request is None:
                raise LegFailed(Outcome.CANCELLED, f"replica {handle.name} can't continue this stream")
            self.meter.begin_leg(self._journal.safe, replayed=self._journal.mode == "replay")
            return request
        self.meter.begin_leg()
        added = b""
        body = parsed.body
        if parsed.streams and parsed.api.chunked:
            self._strip_usage = handle.usage_in_stream and not parsed.wants_usage
            if self._config.continuation and handle.resumes:
                parsed.draw_seed()
            body = asking_for_usage(parsed) if self._strip_usage else parsed.body
            modes = modes_for(parsed, handle) if self._config.continuation else frozenset()
            self._journal = Journal(parsed, modes, handle.fallback) if modes else None
            if modes and not parsed.ask.return_token_ids:
                added += b'"return_token_ids":true,'
        return self._path, with_fields(body, added) if added else body

    async def _whole(self, leg: Leg, answer: HttpResponse) -> None:
        """An answer in one piece: it has come to its end before the client sees any of it."""
        meter = self.meter
        meter.output = meter.expected
        left = leg.lease.taken_at + self._config.answer_seconds - self._clock()
        body = await answer.whole(self._config.max_answer_bytes, max(0.0, left))
        content_type = answer.header(b"content-type")
        if content_type.startswith(b"application/json") and not closed(body):
            raise LegFailed(Outcome.REPLICA_FAULT, f"replica {leg.replica.name} sent broken JSON")
        body = leg.names.answer(self._corrected(body))
        self._took_over()
        usage = meter.usage = usage_of(body)
        meter.whole = True
        if not self._parsed.api.computes:
            meter.refuse()
        elif self._parsed.api.generates:
            meter.output = leg.lease.counted = usage.output if usage is not None else output_estimate(body)
            if self._parsed.endpoint == "responses":
                self._note_response(leg, response_id_of(body))
        headers = answer_headers(self.record, leg, content_type or b"application/json")
        if usage is not None and usage.cached is not None:
            headers.append((b"x-shoal-hit", b"%d" % usage.cached))
        self.reply.hush()
        if self.reply.started:
            raise LegFailed(Outcome.REPLICA_FAULT, f"replica {leg.replica.name} did not stream")
        self._said = True
        await self.reply.whole(answer.status, headers, body)

    async def _stream(self, leg: Leg, answer: HttpResponse) -> None:
        reader = StreamReader(self._form, journaled=self._journal is not None)
        try:
            await self._relay(leg, answer, reader)
        except (LegFailed, TimeoutError):
            # After its last event a stream lacks nothing that a client wants.
            if not reader.done:
                raise
        finally:
            self._count(reader)
        if not reader.done:
            raise LegFailed(
                Outcome.REPLICA_FAULT, f"replica {leg.replica.name} ended the stream without {self._form.end}"
            )
        await self.reply.finish()

    async def _relay(self, leg: Leg, answer: HttpResponse, reader: StreamReader) -> None:
        """Pass a stream on, to its end or its error event."""
        splitter = SseSplitter()
        config, clock, lease, record = self._config, self._clock, leg.lease, self.record
        deadline = clock() + config.first_byte_seconds
        while piece := await answer.read(deadline - clock()):
            events = splitter.feed(piece)
            if not events:
                continue
            events = reader.read(leg.names.events(self._corrected(events)))
            if events:
                self._took_over()
                now = clock()
                lease.progress(now)
                deadline = now + (_END_SECONDS if reader.done else config.stall_seconds)
                if record.first_token is None:
                    record.first_token = now
                record.last_token = now
                record.chunks += 1
                if reader.done:
                    self._note_response(leg, reader.response_id)
                events = self._for_client(reader, events)
            if events:
                self._said = True
                if not self.reply.started:
                    await self.reply.start_stream(answer_headers(record, leg, answer.header(b"content-type")))
                await self.reply.write(events)
            if reader.failure is not None:
                if not self._said and (refused := refusal_of(reader.failure)) is not None:
                    raise refused
                raise failure_of(reader.failure)

    def _corrected(self, data: bytes) -> bytes:
        """Bytes of a decode leg, with the prefill leg's figures."""
        return data if self._handoff is None else self._handoff.corrected(data)

    def _took_over(self) -> None:
        """A decode leg answers: it has the KV."""
        if self._handoff is not None:
            self._services.splitter.took(self._handoff)

    def _for_client(self, reader: StreamReader, events: bytes) -> bytes:
        """The events less what the gateway asked for, or in the form of the leg that they go on from."""
        journal = self._journal
        if journal is not None:
            if self._continuing:
                chunks = journal.read(reader)
                if journal.safe > 0:
                    self._tries = 1
                return journal.reshape(chunks, done=reader.done, usage=self._parsed.wants_usage)
            if reader.caught_up:
                journal.read(reader)
            if not self._parsed.ask.return_token_ids:
                events = without_token_ids(events)
        return without_usage(events) if self._strip_usage else events

    def _count(self, reader: StreamReader) -> None:
        """What the leg has cost, however it ended. An engine's last word leaves nothing to be counted."""
        if not reader.opened:
            return
        meter = self.meter
        meter.usage, meter.whole = reader.usage, reader.done
        if not reader.done or reader.usage is None:
            meter.output = reader.output
            if self._journal is not None:
                self._journal.read(reader)

    def _note_response(self, leg: Leg, response_id: str) -> None:
        if response_id:
            self._services.stored.note(response_id, Owner(leg.replica.name, self.record.key, self.record.model))

    # To the client.

    def beat(self, now: float) -> None:
        """Keep a silent stream alive; call it now and then."""
        seconds = self._config.heartbeat_seconds
        if seconds and self._parsed.streams:
            self.reply.beat(now, seconds)

    async def _pass_refusal(self, leg: Leg, refusal: Refused) -> None:
        self.meter.refuse()
        self.reply.hush()
        if self.reply.started:
            await self.reply.fail(refusal.error)
            return
        headers = answer_headers(self.record, leg, refusal.content_type or b"application/json")
        await self.reply.whole(refusal.status, headers, refusal.body)
