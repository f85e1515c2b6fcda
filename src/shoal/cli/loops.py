"""What servers share: their event loop, and how they tell a user to ask them something."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)


def show_example(console: "Console", url: str, body: str, path: str = "chat/completions", *, keyed: bool) -> None:
    """Print a command line that asks the endpoint at `url`; `keyed`: it wants a key."""
    key = ' -H "Authorization: Bearer $SHOAL_API_KEY"' if keyed else ""
    console.print("  try        ", end="")
    command = f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{{{body}}}'"
    console.print(command, soft_wrap=True, markup=False)


def chat_body(model: str) -> str:
    """Return the fields of a conversation to begin with."""
    return f'"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]'
