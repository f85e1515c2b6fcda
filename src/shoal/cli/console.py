"""The console that a command prints its tables on."""

import os

from rich.console import Console

_PIPE_COLUMNS = 1000
"""Width where standard output is no terminal: nothing is wrapped, so that a pipe gets whole numbers."""


def stdout_console() -> Console:
    """Return a console on standard output: as wide as the terminal, or unbounded in a pipe or a file.

    `COLUMNS` sets another width, as it does for other programs. rich alone would take 80 columns for a pipe.
    """
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS"):
        return console
    return Console(highlight=False, width=_PIPE_COLUMNS)
