"""How well the simulator reproduces measured runs of vLLM: writes docs/simulation-scorecard.md.

    python benchmarks/simulated_accuracy.py --logs DIR… [--stages stages.csv]
                                            [--output docs/simulation-scorecard.md]

`--logs` are folders with requests.jsonl and meta.json (`shoal simulate score`). `--stages` is a table of
percentiles by arrival rate (kubernetes-sigs/inference-perf, demos/kubecon-na-2025): step times are fitted to two of
the rates and judged on one between them.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from machine import describe
from shoal.cli.simulate.fitting import Run, fitted, run_of
from shoal.cli.simulate.options import Replicas
from shoal.plan.api import find_model
from shoal.sim.factors import widened
from shoal.sim.fit import Aim, StepFit, Target, fit_steps, replay
from shoal.sim.hardware import Machine, planned_replica
from shoal.sim.score import Score, score
from shoal.specs.catalog import load_catalog
from shoal.workload.load import Load, Segment, Session, Turn

HEAD = "| run | figure | mean | p50 | p90 | p99 | inside 90 % |\n|---|---|---|---|---|---|---|"
STAGES = {"vllm": 128, "vllm+chunking_and_prefix_caching": 128}
FITTED, JUDGED = (0, 2), (1,)
INTRODUCTION = """# Scorecard of the simulator

Written by `benchmarks/simulated_accuracy.py`. Errors are simulated ÷ measured − 1. *Inside 90 %*: the share of
twenty measured quantiles (5 % to 99 %) that lie in the simulated interval, which is that of step times and of so
many requests. The logs are 300 requests of ShareGPT each, at ten per second, through vLLM 0.19
(casys-kaist/LLMServingSim, MIT): far above what an RTX 4090 serves, near the limit of the others.
"""
WRONG = """## Where it is wrong

- *Intervals without a fit are too wide*: every quantile is inside, where nine in ten should be. Three logs can't
  tell how narrow they might be, since errors within a log move together.
- *A fit to one model doesn't carry to another*: from 8B on one card to 32B on two, everything comes out too quick;
  the other way far too slow, worse than without any fit. What one run tells of the cache's and of attention's share
  is little, and a model with other shares shows it.
- *Another load*: TTFT at a rate that was not fitted is off by a fifth to a quarter, though time per token and E2E
  are within 5 %. What happens before the scheduler is one constant here; an engine that was idle takes longer.
- *Tails at moderate load*: p99 comes out too low. Stalls of the engine's host are not simulated.
- *Not simulated*: speculative decoding, asynchronous scheduling, pipeline stages. Nobody has published a log of a
  fleet behind a router, so what routing does can be compared with our own fleet only.
"""


def rows(found: Score, name: str | None = None) -> list[str]:
    lines = []
    for kind in ("ttft", "tpot", "e2e"):
        e = getattr(found, kind)
        cells = [f"{x:+.1%}" for x in (e.mean_error, e.p50_error, e.p90_error, e.p99_error)]
        shown = (name or found.name) if kind == "ttft" else ""
        lines.append("| " + " | ".join([shown, kind.upper(), *cells, f"{e.coverage90:.0%}"]) + " |")
    return lines


def scored(run: Run, fit: StepFit | None = None, *, same: bool = True) -> Score:
    """Replay a run with the planner's step times or fitted ones."""
    if fit is None:
        return score(run.log, run.replica.scheduler, run.replica.step, run.replica.front)
    step = fit.step(run.replica.prior)
    return score(
        run.log, run.replica.scheduler, step if same else replace(step, spread=widened(step.spread)), fit.front
    )


def logs(paths: Sequence[Path]) -> str:
    runs = [run_of(path, Replicas()) for path in paths]
    parts = ["## Without a fit: the planner's step times", HEAD, *(line for r in runs for line in rows(scored(r)))]
    fits = {}
    parts += ["", "## Fitted to the same run", HEAD]
    for run in runs:
        fits[run.log.name] = fitted([run])
        parts += rows(scored(run, fits[run.log.name]))
        print(f"fitted {run.log.name}", file=sys.stderr)
    parts += ["", "## Fitted to another model on the same device", HEAD]
    for run in runs:
        for other in runs:
            place = other.replica.candidate.accelerator.name
            if other is not run and place == run.replica.candidate.accelerator.name:
                name = f"{run.log.name}, fitted to {other.replica.model_name}"
                parts += rows(scored(run, fits[other.log.name], same=False), name)
    return "\n".join(parts)


def stage(row: dict[str, str], sequences: int) -> Target:
    """One rate of the table: constant arrivals of 204 tokens, about 62 answered."""
    catalog = load_catalog()
    machine = Machine(
        model=find_model("llama-3.1-8b"),
        accelerator=catalog.accelerator("h100"),
        max_num_seqs=sequences,
        max_model_len=512,
        prefix_caching=False,
    )
    replica = planned_replica(machine, catalog)
    rate, count, output = float(row["requested_rate"]), int(float(row["count"])), round(float(row["output_mean"]))
    sessions = [Session((Turn((Segment(f"{i}", 204),), output),), i / rate) for i in range(count)]
    aims = []
    for kind, scale in (("ttft", 1.0), ("tpot", 2.0), ("e2e", 1.0)):
        # This tool counts two chunks a token.
        for name, quantile in (("mean", None), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            value = row.get(f"{kind}_{name}_s")
            if value:
                aims.append(Aim(kind, quantile, scale * float(value), 2.0 if quantile is None else 1.0))
    load = Load(tuple(sessions), f"{rate:g}/s", rate)
    return Target(f"{row['case']}, {rate:g}/s", load, replica.scheduler, replica.prior, tuple(aims))


def stages(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    head = "| run | figure | mean | p50 | p90 | p99 |\n|---|---|---|---|---|---|"
    parts = ["## The same card at another load: vLLM 0.11, Llama-3.1-8B, one H100", ""]
    parts += ["Fitted to the lowest rate and to one at 60 % of saturation, judged on one between them.", "", head]
    for case, sequences in STAGES.items():
        targets = {int(row["stage"]): stage(row, sequences) for row in table if row["case"] == case}
        fit = fit_steps([targets[number] for number in FITTED])
        print(f"fitted {case}", file=sys.stderr)
        for number in JUDGED:
            target = targets[number]
            got = replay(target.load, target.scheduler, fit.step(target.prior), fit.front)
            for kind in ("ttft", "tpot", "e2e"):
                errors = {
                    a.quantile: got.figure(kind, a.quantile) / a.seconds - 1 for a in target.aims if a.kind == kind
                }
                cells = [f"{errors[q]:+.1%}" if q in errors else "–" for q in (None, 0.5, 0.9, 0.99)]
                parts.append(
                    "| " + " | ".join([target.name if kind == "ttft" else "", kind.upper(), *cells]) + " |"
                )
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, nargs="+", required=True)
    parser.add_argument("--stages", type=Path)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    facts = dict(describe())
    parts = [INTRODUCTION, f"{facts['date']}, commit {facts['commit']}.", "", logs(args.logs), ""]
    parts += [stages(args.stages), ""] if args.stages is not None else []
    text = "\n".join([*parts, WRONG])
    if args.output is None:
        print(text)
    else:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
