"""The entry point: finds the command, runs it, and turns every failure into one line and an exit code.

Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly, 130 interrupted. SHOAL_DEBUG=1 shows tracebacks.

The top level is no typer app because importing typer alone takes longer than `shoal --help` may.
"""

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from shoal import __version__
from shoal.cli.registry import COMMANDS

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and exit; without `arguments` it is this process's own, and so is the process."""
    code = _guarded(list(sys.argv[1:] if arguments is None else arguments))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    if code == INTERRUPTED and arguments is None and threading.active_count() > 1:
        # A thread blocked in a network read can't be interrupted, and a normal exit would wait for it.
        sys.stderr.flush()
        os._exit(code)
    # Where Ctrl-C hit code made of a string (a dataclass, while importing), CPython notes it and, under `-m`, ends
    # by the signal instead of by our code, handled or not. Running another string to its end takes the note back.
    exec("")
    sys.exit(code)


def _guarded(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()  # the reader of a pipe has seen enough
        return 0
    except Exception as error:
        if os.environ.get("SHOAL_DEBUG"):
            raise
        return _report(error)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_overview())
        return 0
    name, rest = arguments[0], arguments[1:]
    if name in ("--version", "-V"):
        print(f"shoal {__version__}")
        return 0
    if name not in COMMANDS:
        _say(f"error: {_unknown(name)}")
        return USAGE
    import typer

    module, _, attribute = COMMANDS[name].target.partition(":")
    target: Any = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command()(target)
        target = app
    command = typer.main.get_command(target)
    command.context_settings.setdefault("help_option_names", ["-h", "--help"])
    result = command.main(rest, prog_name=f"shoal {name}", standalone_mode=False)
    if result == INTERRUPTED:  # typer turned Ctrl-C into its code
        _say("interrupted")
    return result if isinstance(result, int) else 0


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Shoal: plan, serve and bench large language models.",
            "",
            "Usage: shoal COMMAND [OPTIONS]",
            "",
            "Commands:",
            *lines,
            "",
            "shoal COMMAND --help explains a command; shoal --version prints the version.",
        ]
    )


def _unknown(name: str) -> str:
    from shoal.specs.errors import near_names

    near = near_names(name, COMMANDS)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(COMMANDS)}"
    return f"no {'option' if name.startswith('-') else 'command'} {name!r}; {hint}"


def _report(error: Exception) -> int:
    """Print what went wrong and return the exit code for it."""
    if hasattr(error, "format_message"):  # typer's usage errors, whose classes differ between its versions
        if message := error.format_message():  # without: the help was printed instead
            _say(f"error: {message}")
        return USAGE
    if type(error).__name__ == "Abort":  # typer's, for Ctrl-C at a prompt
        _say("interrupted")
        return INTERRUPTED
    if type(error).__module__.startswith("shoal."):
        for line in str(error).splitlines():
            _say(f"error: {line}")
        return USAGE if isinstance(error, ValueError) else FAILED
    if isinstance(error, OSError):
        _say(f"error: {_system_words(error)}")
        return FAILED
    _say(f"error: {type(error).__name__}: {error}\nThis is a fault in Shoal; SHOAL_DEBUG=1 shows where.")
    return FAILED


def _system_words(error: OSError) -> str:
    """What the system refused, in its words: a file, an address or a full disk is nobody's fault here."""
    words = error.strerror or str(error) or type(error).__name__
    names = " → ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{names}: {words}" if names else words


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _discard_stdout() -> None:
    # The interpreter flushes stdout once more at exit, which would complain about the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
