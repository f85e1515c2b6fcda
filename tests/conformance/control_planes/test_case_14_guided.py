"""14 · A grammar-guided stream is never continued elsewhere: it ends with an error, not with corrupt JSON at 200.

(dynamo PR#7930)
"""

from typing import Any

import pytest
from engine import Fault

from fleet import fleet

GUIDES: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "json_object"}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    "guided_json": {"guided_json": {"type": "object"}},
    "guided_regex": {"guided_regex": "[a-z]+"},
    "structured_outputs": {"structured_outputs": {"regex": "[a-z]+"}},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
}


@pytest.mark.parametrize("guide", sorted(GUIDES))
async def test_case_14_guided_streams_end_honestly(guide: str) -> None:
    async with fleet(2) as f:
        for engine in f.engines:
            engine.faults.append(Fault("reset", after=3))
        got = await f.stream(f.chat("json please", max_tokens=12, temperature=0) | GUIDES[guide])
        assert not got.done
        assert got.error is not None
        assert sum(f.counts()) == 1, "no other replica was asked"
        f.check()


async def test_case_14_plain_text_is_continued() -> None:
    async with fleet(2) as f:
        for engine in f.engines:
            engine.faults.append(Fault("reset", after=3))
        got = await f.stream(f.chat("text", max_tokens=12, temperature=0, response_format={"type": "text"}))
        # Both replicas break once: two legs break, a third finishes.
        assert got.done
        assert got.error is None
