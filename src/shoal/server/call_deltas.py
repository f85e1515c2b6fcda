"""The first delta of a tool call."""

import uuid

from shoal.server.answers import Delta, FunctionDelta, ToolCallDelta


def opening(index: int, name: str, arguments: str, identity: str | None = None) -> Delta:
    """The delta that names call `index`, with its id: the model's own, or a new one."""
    call = ToolCallDelta(
        index,
        FunctionDelta(name=name, arguments=arguments),
        id=identity or f"call_{uuid.uuid4().hex[:24]}",
        type="function",
    )
    return Delta(tool_calls=[call])
