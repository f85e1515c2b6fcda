"""The commands there are. One line each; a command's module is imported when it runs, not before.

A target is `module:name`, where the name is a function with typer annotations or a `typer.Typer` with subcommands.
Inside a module, import what is heavy in the function that needs it: `shoal COMMAND --help` stays quick then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Command:
    target: str
    summary: str


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "serve": Command("shoal.cli.serve:serve", "Serve a model behind an OpenAI-compatible endpoint"),
        "bench": Command("shoal.cli.bench:app", "Load an endpoint; latency, goodput, sweep, A/B, reports"),
        "plan": Command("shoal.cli.plan:app", "Plan: what to buy and run for a model, its users and its latency"),
        "simulate": Command(
            "shoal.cli.simulate.app:app", "Simulate a load on a fleet in virtual time, faults included"
        ),
        "ui": Command("shoal.cli.ui:ui", "Open the planner page: calculators, search and charts in a browser"),
        "calc": Command("shoal.cli.calc:app", "Calculate: weights, KV cache, fit, bubbles, hand-off, cost"),
        "pull": Command("shoal.cli.pull:pull", "Fetch a model into the cache, checksummed"),
        "quality": Command("shoal.cli.quality:quality", "Compare a quantized model's answers with full precision"),
        "dashboard": Command("shoal.cli.dashboard:app", "Export the Grafana dashboard of a fleet"),
        "doctor": Command(
            "shoal.cli.doctor:doctor", "Show what this machine offers: processor, memory, software, models"
        ),
    }
)
