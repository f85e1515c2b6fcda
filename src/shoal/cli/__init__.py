"""The commands. A new one is a file here and a line in `registry`; `entry` finds and runs it."""

from shoal.cli.entry import main

__all__ = ["main"]
