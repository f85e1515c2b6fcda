"""vLLM: metrics under `vllm:`, KV events over ZeroMQ; started by its module, as its command may lack metadata."""

import os
import signal

import msgspec

from shoal.fleet.adapters.base import Gauges, HttpAdapter, LaunchRequest, Traits, flags
from shoal.fleet.launch.process import Command
from shoal.policy.account import ReplicaStats


class VllmAdapter(HttpAdapter):
    def read(self, gauges: Gauges) -> ReplicaStats:
        about = gauges.labels("vllm:cache_config_info")
        blocks, size = about.get("num_gpu_blocks", ""), about.get("block_size", "")
        capacity = int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None
        return ReplicaStats(
            running=gauges.whole("vllm:num_requests_running"),
            waiting=gauges.whole("vllm:num_requests_waiting"),
            kv_usage=gauges.first("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            kv_capacity_tokens=capacity,
            generated_tokens=gauges.whole("vllm:generation_tokens_total"),
            prompt_tokens=gauges.whole("vllm:prompt_tokens_total"),
        )


# vLLM binds to wildcards and local sockets only and connects to any other address. A wildcard would offer everybody
# on the network the tokens of all prompts.
_EVENTS = "ipc://@shoal-kv-{port}"


class Vllm:
    traits = Traits(returns_token_ids=True, publishes=True, events_address=_EVENTS)
    adapter = VllmAdapter

    def command(self, order: LaunchRequest) -> Command:
        pool, layout = order.pool, order.pool.layout
        argv = [pool.executable or "python3", "-m", "vllm.entrypoints.openai.api_server", "--model", pool.model]
        argv += ["--host", "127.0.0.1", "--port", str(order.port), "--served-model-name", *pool.models]
        sizes = {
            "tensor-parallel-size": layout.tp,
            "pipeline-parallel-size": layout.pp,
            "data-parallel-size": layout.dp,
        }
        argv += flags({name: size for name, size in sizes.items() if size > 1})
        if layout.ep > 1:
            argv.append("--enable-expert-parallel")
        if order.events_port is not None:
            events = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": _EVENTS.format(port=order.events_port),
                "replay_endpoint": f"tcp://127.0.0.1:{order.events_port + 1}",
            }
            argv += ["--kv-events-config", msgspec.json.encode(events).decode()]
        if order.tracing:
            argv += [
                "--otlp-traces-endpoint",
                os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317"),
            ]
        # The cached prompt tokens are what predictions are checked against.
        argv += ["--enable-prompt-tokens-details", *flags(pool.options)]
        # vLLM's CPU backend pins threads to cores, every server to the same ones, unless told otherwise.
        threads = {"OMP_NUM_THREADS": str(order.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment = {**threads, **pool.environment}
        if order.api_key is not None:
            environment["VLLM_API_KEY"] = order.api_key
        order.listener.close()
        # Its server has engine processes of its own, which it ends on SIGTERM.
        return Command(argv=tuple(argv), environment=environment, death_signal=signal.SIGTERM)
