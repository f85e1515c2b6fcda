"""Fleets to simulate: from options, from a `fleet.yaml`, from a plan's JSON."""

from dataclasses import replace
from pathlib import Path

from shoal.cli.bench_options import Trace
from shoal.cli.simulate.fleet_file import configured_fleet
from shoal.cli.simulate.machines import Made, named_fleet
from shoal.cli.simulate.options import Replicas
from shoal.cli.simulate.plan_file import planned_fleet
from shoal.plan.readers.trace import BLOCK_TOKENS, read_trace
from shoal.specs.errors import SpecError


def trace_block(trace: Trace) -> int | None:
    """Tokens of the blocks that a trace names its contents by; None: it names none, or they are scaled."""
    if trace.trace is None or trace.length_scale != 1:
        return None
    return BLOCK_TOKENS if read_trace(trace.trace, limit=1)[0].blocks else None


def fleet_of(path: Path | None, options: Replicas, block: int | None = None) -> Made:
    """Build a fleet. Raises SpecError for one that can't be, with the planner's reason.

    Args:
        block: tokens per KV block where nobody says: contents that are known by large blocks gain little from
            small ones, which take their share of the time each.
    """
    configured = path is not None and path.suffix != ".json"
    if not configured and options.block_size is None and options.kv_blocks is None:
        options = replace(options, block_size=block)
    if path is None:
        if options.model is None or options.gpu is None:
            missing = "model" if options.model is None else "gpu"
            raise SpecError(missing, None, "--model and --gpu, or a fleet.yaml or a plan's JSON as first argument")
        return named_fleet(options)
    if path.suffix == ".json":
        return planned_fleet(path, options)
    return configured_fleet(path, options)
