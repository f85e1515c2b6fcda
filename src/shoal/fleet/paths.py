"""Where a fleet keeps what it writes."""

import os
from pathlib import Path


def log_directory(configured: str | None) -> Path:
    """`configured`, else `$SHOAL_HOME`, `$XDG_STATE_HOME/shoal` or `~/.local/state/shoal`, with `fleet/logs/PID`.

    By process, so that two fleets on one machine don't write into each other's files.
    """
    if configured is not None:
        return Path(configured).expanduser()
    if home := os.environ.get("SHOAL_HOME"):
        base = Path(home)
    elif state := os.environ.get("XDG_STATE_HOME"):
        base = Path(state) / "shoal"
    else:
        base = Path.home() / ".local" / "state" / "shoal"
    return base / "fleet" / "logs" / str(os.getpid())
