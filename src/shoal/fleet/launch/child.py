"""Becomes a replica: `python -m shoal.fleet.launch.child PARENT SIGNAL COMMAND…`.

It asks the kernel to be sent SIGNAL when its parent dies, so that a fleet that is killed leaves nothing behind, and
then becomes COMMAND (the request survives `exec`). Linux only; elsewhere it just becomes COMMAND.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
NOT_FOUND = 127
"""Exit code of shells for a command that isn't there."""


def main(arguments: list[str]) -> None:
    parent, number, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
        # It may have died before the kernel was asked.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_FOUND)


if __name__ == "__main__":
    main(sys.argv[1:])
