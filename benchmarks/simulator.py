"""Speed of the simulator on a trace, in processor time, beside a peer's in the same run.

    python benchmarks/simulator.py --trace mooncake-conversation.jsonl [--peer …/bin/aisimulate] [--rounds 3]
                                   [--append benchmarks/results/simulator.md]

Eight replicas of Llama-3.1-8B on one H100 each, blocks of 512 tokens, 846 of them, 8,192 tokens and 256 sequences
per step. Cases: the default, cache-aware router and round robin, each with the planner's step times and with fixed
ones; four times the arrivals. A peer (NVIDIA's aisimulate 0.13 with Dynamo's router, if it is installed) runs the
same cases in its own process. Processor seconds are user + system of a whole process, less those of the same
process on a trace of one request.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml

from machine import append, describe

REPLICAS, BLOCKS, BLOCK = 8, 846, 512
FIXED = {"prefill_ms": 20.0, "decode_ms": 8.0}


def simulate_one(trace: Path, router: str, times: str, speed: float) -> None:
    """What is measured of ours: a process of its own that prints its figures."""
    from shoal.plan.api import find_model
    from shoal.policy.batching import SchedulerConfig
    from shoal.policy.routing import RouterConfig
    from shoal.sim import LinearSeconds, ReplicaSpec, SimulatedFleet, StepSeconds, simulate
    from shoal.sim.hardware import Machine, planned_replica
    from shoal.specs.catalog import load_catalog
    from shoal.workload.options import WorkloadOptions, workload

    config = SchedulerConfig(
        num_blocks=BLOCKS, block_size=BLOCK, max_model_len=10**6, token_budget=8192, max_sequences=256
    )
    step: StepSeconds = LinearSeconds(FIXED["decode_ms"] / 1e3, 0.0, 0.0, 0.0)
    if times == "own":
        catalog = load_catalog()
        machine = Machine(model=find_model("llama-3.1-8b"), accelerator=catalog.accelerator("h100"))
        step = planned_replica(machine, catalog).step
    specs = tuple(
        ReplicaSpec(name=f"r{i}", scheduler=config, step=step, max_inflight=10**9) for i in range(REPLICAS)
    )
    load, run = workload(WorkloadOptions(trace=trace, requests=10**8, speed=speed))
    done = simulate(SimulatedFleet(replicas=specs, router=RouterConfig(policy=router)), load, run)
    ok = [r for r in done.result.records if r.ok]
    figures = {
        "simulated": done.seconds,
        "requests": len(ok),
        "hit": done.hit_tokens / max(1, done.queried_tokens),
        "ttft": sum(r.ttft or 0.0 for r in ok) / max(1, len(ok)),
    }
    print(json.dumps(figures))


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to simulate."""

    router: str
    """`default` (cache-aware; the peer's KV router) or `round_robin`."""
    fixed: bool
    speed: float = 1.0

    @property
    def name(self) -> str:
        router = "cache-aware" if self.router == "default" else "round robin"
        times = "fixed step times" if self.fixed else "own step times"
        return f"{router}, {times}" + (f", {self.speed:g}x the arrivals" if self.speed != 1 else "")


@dataclass(frozen=True, slots=True)
class Spent:
    """What one process took."""

    seconds: float
    megabytes: float
    printed: str


CASES = (
    Case("default", fixed=False),
    Case("default", fixed=True),
    Case("round_robin", fixed=False),
    Case("round_robin", fixed=True),
    Case("default", fixed=False, speed=4.0),
)


def spent(command: list[str]) -> Spent:
    """Run a process and say what it took, its children's time included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["/usr/bin/time", "-f", "%M", *command], capture_output=True, text=True, check=False, timeout=900
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(seconds, float(done.stderr.split()[-1]) / 1024, done.stdout)


def ours(case: Case, trace: Path) -> list[str]:
    times = "fixed" if case.fixed else "own"
    return [sys.executable, __file__, "one", str(trace), case.router, times, f"{case.speed:g}"]


def peers(case: Case, trace: Path, binary: Path, folder: Path) -> list[str]:
    """The peer's command, its configuration written beside its output."""
    worker: dict[str, object] = {
        "parallelism": {"replicas": REPLICAS},
        "scheduler": {"max_batched_tokens": 8192, "max_sequences": 256},
        "kv_cache": {"block_size": BLOCK, "capacity": {"type": "fixed", "blocks": BLOCKS}},
    }
    if case.fixed:
        worker["timing"] = {"type": "fixed", **FIXED}
    load: dict[str, object] = {"type": "trace_timestamps"}
    if case.speed != 1:
        load["speedup"] = case.speed
    config: dict[str, object] = {
        "traffic": {
            "source": {"type": "trace", "paths": [str(trace)], "format": "mooncake", "block_size": BLOCK},
            "load": load,
        },
        "engine": {
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": "h100_sxm",
            "backend": "vllm",
            "workers": {"aggregated": worker},
        },
    }
    stack = []
    if case.router == "default":
        config["router"] = {"policy": "kv_router"}
        stack = ["--stack", "dynamo"]
    file = folder / "peer.yaml"
    file.write_text(yaml.safe_dump(config))
    return [str(binary), "predict", "-c", str(file), *stack, "--output-dir", str(folder / "out"), "--overwrite"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", type=Path)
    args = parser.parse_args()
    lines = [
        "| case | ours, CPU s | × real time | RSS MB | hits | mean TTFT s | peer, CPU s | × real time | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = folder / "one.jsonl"
        one.write_text(args.trace.read_text().splitlines()[0] + "\n")
        for case in CASES:
            mine, theirs, figures, memory = [], [], {}, 0.0
            for _ in range(args.rounds):
                start = spent(ours(case, one)).seconds
                took = spent(ours(case, args.trace))
                mine.append(took.seconds - start)
                figures, memory = json.loads(took.printed), took.megabytes
                if args.peer is not None:
                    start = spent(peers(case, one, args.peer, folder)).seconds
                    theirs.append(spent(peers(case, args.trace, args.peer, folder)).seconds - start)
            simulated, own = figures["simulated"], median(mine)
            cells = [case.name, f"{own:.2f}", f"{simulated / own:,.0f}", f"{memory:.0f}", f"{figures['hit']:.1%}"]
            cells.append(f"{figures['ttft']:.3f}")
            if theirs:
                other = median(theirs)
                cells += [f"{other:.2f}", f"{simulated / other:,.0f}", f"{other / own:.2f}x quicker"]
            else:
                cells += ["–", "–", "–"]
            lines.append("| " + " | ".join(cells) + " |")
            print("\n".join(lines[-1:]), flush=True)
    table = "\n".join(lines)
    print(table)
    if args.append is not None:
        about = f"`{args.trace.name}`, {REPLICAS} replicas, medians of {args.rounds} rounds"
        append(args.append, "Simulator", [*describe(), ("trace", about)], table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        simulate_one(Path(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5]))
    else:
        main()
