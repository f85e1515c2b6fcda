"""Fleets to simulate: from options, from a `fleet.yaml`, from a plan's JSON."""

from pathlib import Path

from shoal.cli.simulate.fleet_file import configured_fleet
from shoal.cli.simulate.machines import Made, named_fleet
from shoal.cli.simulate.options import Replicas
from shoal.cli.simulate.plan_file import planned_fleet
from shoal.specs.errors import SpecError


def fleet_of(path: Path | None, options: Replicas) -> Made:
    """Build a fleet. Raises SpecError for one that can't be, with the planner's reason."""
    if path is None:
        if options.model is None or options.gpu is None:
            missing = "model" if options.model is None else "gpu"
            raise SpecError(missing, None, "--model and --gpu, or a fleet.yaml or a plan's JSON as first argument")
        return named_fleet(options)
    if path.suffix == ".json":
        return planned_fleet(path, options)
    return configured_fleet(path, options)
