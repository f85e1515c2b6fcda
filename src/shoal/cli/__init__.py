"""The commands: plan, serve, bench, simulate, calc, doctor, pull. A new one is a file here and a line in `registry`."""

from shoal.cli.main import main

__all__ = ["main"]
