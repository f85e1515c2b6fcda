"""llama.cpp: `llama-server` with its slots and metrics, or llama-cpp-python's server, which has neither.

`/slots` says which sequences run and how long each slot's context is; `/metrics` counts. A build or a command line
may lack either, so that both are read where they answer.
"""

import asyncio
import signal

import msgspec

from shoal.fleet.adapters.base import CHECK_SECONDS, Gauges, HttpAdapter, LaunchRequest, Traits, flags
from shoal.fleet.launch.process import Command
from shoal.policy.account import ReplicaStats


class _Slot(msgspec.Struct):
    is_processing: bool = False
    n_ctx: int = 0


class LlamaCppAdapter(HttpAdapter):
    async def why_not_ready(self) -> str | None:
        status, _ = await self.endpoint.get(self.health_path, seconds=CHECK_SECONDS)
        if status == 404:
            # llama-cpp-python's server has no health endpoint.
            status, _ = await self.endpoint.get(b"/v1/models", seconds=CHECK_SECONDS)
        return self._refusal(status)

    async def stats(self) -> ReplicaStats:
        (slots_status, slots), (status, metrics) = await asyncio.gather(
            self.endpoint.get(b"/slots", seconds=CHECK_SECONDS),
            self.endpoint.get(b"/metrics", seconds=CHECK_SECONDS),
        )
        stats = self.read(Gauges(metrics)) if status == 200 else ReplicaStats()
        if slots_status != 200:
            return stats
        held = msgspec.json.decode(slots, type=list[_Slot])
        running = sum(slot.is_processing for slot in held)
        return msgspec.structs.replace(
            stats,
            running=running,
            kv_usage=running / len(held) if stats.kv_usage is None and held else stats.kv_usage,
            kv_capacity_tokens=sum(slot.n_ctx for slot in held) or None,
        )

    def read(self, gauges: Gauges) -> ReplicaStats:
        return ReplicaStats(
            running=gauges.whole("llamacpp:requests_processing"),
            waiting=gauges.whole("llamacpp:requests_deferred"),
            kv_usage=gauges.first("llamacpp:kv_cache_usage_ratio"),
            generated_tokens=gauges.whole("llamacpp:tokens_predicted_total"),
            prompt_tokens=gauges.whole("llamacpp:prompt_tokens_total"),
        )


class LlamaCpp:
    # llama-cpp-python's server answers 400 to a request id that is no UUID.
    traits = Traits(any_request_id=False)
    adapter = LlamaCppAdapter

    def command(self, order: LaunchRequest) -> Command:
        pool = order.pool
        argv = [pool.executable or "llama-server", "--model", pool.model, "--alias", pool.models[0]]
        argv += ["--host", "127.0.0.1", "--port", str(order.port), "--threads", str(order.threads)]
        argv += ["--metrics", "--slots", *flags(pool.options)]
        environment = dict(pool.environment)
        if order.api_key is not None:
            environment["LLAMA_API_KEY"] = order.api_key
        order.listener.close()
        return Command(argv=tuple(argv), environment=environment, death_signal=signal.SIGTERM)
