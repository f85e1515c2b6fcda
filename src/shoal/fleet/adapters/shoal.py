"""Shoal's own engine."""

import signal
import sys

import msgspec

from shoal.engine.options import EngineOptions
from shoal.fleet.adapters.base import Gauges, HttpAdapter, LaunchRequest, Traits
from shoal.fleet.config_checks import engine_options
from shoal.fleet.launch.process import Command
from shoal.policy.account import ReplicaStats
from shoal.server.options import ServerOptions

DRAIN_SECONDS = 5.0
"""The gateway drains before it ends a replica: what is left then is nobody's."""


class ReplicaSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica's process reads from its standard input."""

    engine: EngineOptions
    server: ServerOptions
    name: str
    """Model name that clients use."""
    listener: int
    """File descriptor of the socket to serve on."""
    tracing: bool = False


class ShoalAdapter(HttpAdapter):
    health_path = b"/ready"

    def read(self, gauges: Gauges) -> ReplicaStats:
        blocks = gauges.first("shoal_kv_blocks")
        size = gauges.first("shoal_kv_block_tokens")
        return ReplicaStats(
            running=gauges.whole("shoal_requests_running"),
            waiting=gauges.whole("shoal_requests_waiting"),
            kv_usage=gauges.first("shoal_kv_usage_ratio"),
            kv_capacity_tokens=int(blocks * size) if blocks is not None and size is not None else None,
            generated_tokens=gauges.whole("shoal_generated_tokens_total"),
            prompt_tokens=gauges.whole("shoal_prompt_tokens_total"),
            steps=gauges.whole("shoal_batch_sequences_count"),
            step_sequences=gauges.whole("shoal_batch_sequences_sum"),
            step_tokens=gauges.whole("shoal_batch_tokens_sum"),
            rank_seconds=gauges.first("shoal_rank_step_seconds_total"),
            rank_waiting_seconds=gauges.first("shoal_rank_waiting_seconds_total"),
        )


class Shoal:
    traits = Traits(returns_token_ids=True, resumes=True, publishes=True)
    adapter = ShoalAdapter

    def command(self, order: LaunchRequest) -> Command:
        options = engine_options(order.pool)
        changes: dict[str, object] = {}
        if options.threads is None and options.device == "cpu":
            changes["threads"] = order.threads
        if options.num_blocks is None and options.kv_memory is None and options.kv_share is None:
            changes["kv_share"] = order.kv_share
        if order.events_port is not None:
            changes["kv_events"] = f"tcp://127.0.0.1:{order.events_port}"
        if order.pool.role != "both" and options.kv_transfer is None:
            changes["kv_transfer"] = "tcp://127.0.0.1:0"
        setup = ReplicaSetup(
            engine=msgspec.structs.replace(options, **changes),
            server=ServerOptions(
                port=order.port, api_key=order.api_key, kv_key=order.kv_key, drain_seconds=DRAIN_SECONDS
            ),
            name=order.pool.models[0],
            listener=order.listener.fileno(),
            tracing=order.tracing,
        )
        return Command(
            argv=(order.pool.executable or sys.executable, "-P", "-m", "shoal.cli.replica"),
            environment=order.pool.environment,
            stdin=msgspec.json.encode(setup),
            sockets=(order.listener,),
            death_signal=signal.SIGKILL,
        )
