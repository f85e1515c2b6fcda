"""A stream that breaks off within reasoning goes on there, and what comes is still reasoning."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.fleet.gateway.body import parse
from shoal.fleet.gateway.formats import CompletionsFormat
from shoal.fleet.gateway.journal import Journal
from shoal.fleet.gateway.reading import StreamReader

BODY = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 9,
    }
).encode()


def chunk(delta: dict[str, str], tokens: list[int], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": tokens}
    return b"data: " + json.dumps({"id": "c", "choices": [choice], **more}).encode() + b"\n\n"


def said(*deltas: tuple[dict[str, str], list[int]]) -> StreamReader:
    reader = StreamReader(CompletionsFormat())
    reader.read(b"".join(chunk(delta, tokens, prompt_token_ids=[7, 8]) for delta, tokens in deltas))
    return reader


THOUGHT = ({"reasoning_content": "Hm", "reasoning": "Hm"}, [1, 2])
HELD = ({"content": ""}, [3])


@pytest.mark.parametrize(
    ("deltas", "mode", "tokens"),
    [
        ((THOUGHT, HELD), "resume", [1, 2]),
        ((THOUGHT, HELD), "replay", None),
        ((THOUGHT, HELD, ({"content": "Yes"}, [4])), "resume", [1, 2, 3, 4]),
        ((THOUGHT, HELD, ({"content": "Yes"}, [4])), "replay", [7, 8, 1, 2, 3, 4]),
    ],
)
def test_the_next_leg_begins_where_the_client_is(deltas: Any, mode: Any, tokens: list[int] | None) -> None:
    journal = Journal(parse("chat", BODY), frozenset({mode}))
    journal.read(said(*deltas))
    handle: Any = SimpleNamespace(
        returns_token_ids=True, resumes=mode == "resume", max_model_len=100, fallback=journal.fallback
    )
    request = journal.request(handle)
    if tokens is None:
        assert request is None
        return
    assert request is not None
    body = json.loads(request[1])
    assert body["resume_token_ids" if mode == "resume" else "prompt"] == tokens


def test_reasoning_of_the_next_leg_is_passed_on_as_such() -> None:
    journal = Journal(parse("chat", BODY), frozenset({"resume"}))
    journal.read(said(THOUGHT))
    journal.begin_leg()
    leg = said(({"reasoning_content": "m.", "reasoning": "m."}, [3]), ({"content": "Yes"}, [4]))
    events = journal.reshape(journal.read(leg), done=leg.done, usage=False).split(b"\n\n")[:-1]
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events]
    assert deltas == [{"reasoning_content": "m.", "reasoning": "m."}, {"content": "Yes"}]
