"""Fitted step times as the planner takes measurements: closed loops of several sizes, simulated."""

from shoal.plan.readers.observation import Observation
from shoal.policy.outcomes import Outcome
from shoal.sim.fit import StepFit
from shoal.sim.fleet import ReplicaSpec, SimulatedFleet
from shoal.sim.hardware import PlannedReplica
from shoal.sim.measured import MeasuredLog
from shoal.sim.world import simulate
from shoal.workload.lengths import LengthDraw
from shoal.workload.load import Shape, made_up
from shoal.workload.run import RunOptions

_USERS = (1, 4, 16, 64)
_REQUESTS = 4
"""Per user, measured ones."""


def observations(log: MeasuredLog, replica: PlannedReplica, fit: StepFit) -> list[Observation]:
    """TTFT and TPOT of closed loops of requests of the log's mean lengths, by the fitted step times."""
    prompt, answer = round(float(log.prompts.mean())), max(2, round(float(log.outputs.mean())))
    shape = Shape(LengthDraw("fixed", float(prompt)), LengthDraw("fixed", float(answer)))
    spec = ReplicaSpec(
        name="replica",
        scheduler=replica.scheduler,
        step=fit.step(replica.prior),
        front=fit.front,
        max_inflight=1 << 30,
    )
    found = []
    for users in _USERS:
        if users * (prompt + answer) > replica.scheduler.kv_capacity or users > replica.scheduler.max_sequences:
            break
        load = made_up(shape, users * (_REQUESTS + 2), seed=0)
        run = RunOptions(requests=users * _REQUESTS, concurrency=users, warmup=users, deadline=1e6)
        done = simulate(SimulatedFleet(replicas=(spec,)), load, run)
        whole = [r for r in done.result.measured if r.outcome is Outcome.OK]
        ttft = [r.ttft for r in whole if r.ttft is not None]
        tpot = [r.tpot for r in whole if r.tpot is not None]
        if ttft and tpot:
            mean = sum(tpot) / len(tpot)
            found.append(Observation(users, mean, sum(ttft) / len(ttft), prompt, answer, f"simulated, {log.name}"))
    return found
