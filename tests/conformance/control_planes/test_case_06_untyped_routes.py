"""6 · Every route counts as load: no engine is given more than its limit at a time (vllm-router#179)."""

import asyncio
from typing import Any

import pytest

from fleet import fleet

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "text": ("/v1/completions", {"prompt": "once upon a time"}),
    "ids": ("/v1/completions", {"prompt": [1, 2, 3, 4]}),
    "streamed": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True}),
}


@pytest.mark.parametrize("kind", sorted(BODIES))
async def test_case_06_limits_hold_on_every_route(kind: str) -> None:
    path, body = BODIES[kind]
    async with fleet(2, handle={"max_inflight": 3}) as f:
        answers = await asyncio.gather(
            *(f.post({"model": "fake", "max_tokens": 3} | body, path) for _ in range(30))
        )
        assert {a.status_code for a in answers} == {200}
        assert [e.peak for e in f.engines] == [3, 3]
        f.check()
