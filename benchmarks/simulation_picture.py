"""Draws the README's simulation: TTFT and running requests of four replicas, one of which crashes.

    python benchmarks/simulation_picture.py docs/img/simulate.svg

The same run as the README's command; what it draws are two of the plots of that command's `--html`.
"""

import argparse
import re
from pathlib import Path

from shoal.cli.simulate.machines import named_fleet
from shoal.cli.simulate.options import Replicas
from shoal.sim import Fault, Simulated, SimulationOptions, simulate
from shoal.sim.timeline import timeline_section
from shoal.workload.objectives import Objectives
from shoal.workload.options import WorkloadOptions, workload
from shoal.workload.report.document import Plot
from shoal.workload.report.plots import plots
from shoal.workload.report.svg import svg

WIDTH, HEIGHT, TITLE = 640, 340, 24
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#555}.title{font-weight:600;font-size:14px}"
    ".grid{stroke:#8886;stroke-width:.5}.axis{stroke:#777;fill:none}.mark{stroke:#b0413e;stroke-dasharray:5 4}"
)


def run() -> Simulated:
    """The README's simulation."""
    load, options = workload(
        WorkloadOptions(
            rate=30.0, duration=300.0, input="lognormal:1500:1000", output="250", shared=1000, groups=12
        )
    )
    made = named_fleet(Replicas(model="llama-3.1-8b", gpu="h100", replicas=4))
    faults = (Fault("crash", 120.0, "r1"),)
    return simulate(made.fleet, load, options, SimulationOptions(sample=1.5, faults=faults))


def picture(shown: list[Plot]) -> str:
    """The plots one below the other, as one file."""
    parts = []
    for i, plot in enumerate(shown):
        inner = re.sub(r"</?svg[^>]*>", "", svg(plot))
        top = i * (HEIGHT + TITLE)
        parts.append(f'<text class="title" x="64" y="{top + 16}">{plot.title}</text>')
        parts.append(f'<g transform="translate(0 {top + TITLE})">{inner}</g>')
    size = f'viewBox="0 0 {WIDTH} {len(shown) * (HEIGHT + TITLE)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    simulated = run()
    every = (*plots(simulated.result, Objectives(ttft=0.5)), *timeline_section(simulated).plots)
    wanted = ("TTFT over time", "Requests running")
    parser.parse_args().file.write_text(picture([p for p in every if p.title in wanted]))


if __name__ == "__main__":
    main()
