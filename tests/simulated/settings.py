"""The configuration of a simulated fleet: deadlines of seconds, so that a run of half a minute meets them all."""

import os

from shoal.fleet.config import FleetConfig, Pool, SupervisorConfig
from shoal.fleet.gateway import GatewayConfig
from shoal.fleet.registry import Role
from shoal.policy.admission import AdmissionConfig
from shoal.policy.breaker import BreakerConfig
from shoal.policy.health import HealthConfig
from shoal.policy.routing import RouterConfig
from simulated.replica import MODEL
from simulated.troubles import Plan

MAX_INFLIGHT = 4
MAX_REPLICAS = 4
"""Of those that answer."""
FIRST_ATTACHED_PORT = 30_000


def _pool(plan: Plan, name: str, port: int, replicas: int, role: Role) -> Pool:
    urls = tuple(f"http://127.0.0.1:{port + place}" for place in range(replicas))
    return Pool(
        name=name,
        model=MODEL,
        role=role,
        replicas=replicas,
        urls=urls if plan.attached else (),
        kv_events=plan.kv_events and not plan.attached,
        max_inflight=MAX_INFLIGHT,
    )


def fleet_config(plan: Plan, *, replicas: int, policy: str) -> FleetConfig:
    """The fleet of a run, with so many replicas and this router."""
    pools = [_pool(plan, "sim", FIRST_ATTACHED_PORT, replicas, role="decode" if plan.prefills else "both")]
    if plan.prefills:
        pools.append(_pool(plan, "prefill", FIRST_ATTACHED_PORT + MAX_REPLICAS, plan.prefills, role="prefill"))
    return FleetConfig(
        pools=tuple(pools),
        router=RouterConfig(policy=policy),
        health=HealthConfig(check_seconds=0.5, check_timeout=1.5, failures=2, hang_seconds=4.0),
        breaker=BreakerConfig(open_seconds=0.5, open_seconds_max=4.0),
        admission=AdmissionConfig(max_wait=20.0, max_queue=12, ttft_target=plan.ttft_target),
        gateway=GatewayConfig(
            first_byte_seconds=10.0,
            answer_seconds=20.0,
            stall_seconds=3.0,
            heartbeat_seconds=1.0,
            reader_seconds=8.0,
            body_seconds=10.0,
            retry_share=1.0,
            split_threshold_tokens=8,
            prefill_seconds=6.0,
        ),
        supervisor=SupervisorConfig(
            start_seconds=12.0,
            stop_seconds=2.0,
            drain_seconds=5.0,
            backoff_seconds=0.2,
            backoff_seconds_max=3.0,
            crash_limit=1000,
            stable_seconds=2.0,
            unhealthy_seconds=4.0,
            log_dir=os.devnull,
        ),
    )
