"""SGLang: metrics under `sglang:` (it needs `--enable-metrics`), started by `sglang.launch_server`."""

import signal

from shoal.fleet.adapters.base import Gauges, HttpAdapter, LaunchRequest, Traits, flags
from shoal.fleet.launch.process import Command
from shoal.policy.account import ReplicaStats


class SglangAdapter(HttpAdapter):
    def read(self, gauges: Gauges) -> ReplicaStats:
        return ReplicaStats(
            running=gauges.whole("sglang:num_running_reqs"),
            waiting=gauges.whole("sglang:num_queue_reqs"),
            kv_usage=gauges.first("sglang:token_usage"),
            kv_capacity_tokens=gauges.whole("sglang:max_total_num_tokens"),
            generated_tokens=gauges.whole("sglang:generation_tokens_total"),
            prompt_tokens=gauges.whole("sglang:prompt_tokens_total"),
        )


class Sglang:
    traits = Traits()
    adapter = SglangAdapter

    def command(self, order: LaunchRequest) -> Command:
        pool, layout = order.pool, order.pool.layout
        argv = [pool.executable or "python3", "-m", "sglang.launch_server", "--model-path", pool.model]
        argv += ["--host", "127.0.0.1", "--port", str(order.port), "--served-model-name", pool.models[0]]
        sizes = {"tp-size": layout.tp, "pp-size": layout.pp, "dp-size": layout.dp, "ep-size": layout.ep}
        argv += flags({name: size for name, size in sizes.items() if size > 1})
        argv += ["--enable-metrics", "--enable-cache-report", *flags(pool.options)]
        if order.api_key is not None:
            argv += ["--api-key", order.api_key]
        order.listener.close()
        environment = {"OMP_NUM_THREADS": str(order.threads), **pool.environment}
        return Command(argv=tuple(argv), environment=environment, death_signal=signal.SIGTERM)
