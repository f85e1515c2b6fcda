"""Work that one client causes is not waited for by the others: long prompts, dense bodies, long log-probabilities.

What blocks the event loop is measured by a task of its own on that loop. The bounds are generous, as the machine
may be busy; before, each of these took seconds.
"""

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serverkit import Served

from shoal.http.errors import ApiError
from shoal.http.json_limits import MAX_CONTAINERS, MAX_ESCAPES, MAX_VALUES, _Outside, check_structure
from shoal.server import prompts

MIB = 2**20


class Heartbeat:
    """The longest that a loop did not run, in seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest, self.beats, self._on = 0.0, 0, True
        self._done = asyncio.run_coroutine_threadsafe(self._beat(), loop)

    async def _beat(self) -> None:
        while self._on:
            before = time.perf_counter()
            await asyncio.sleep(0.002)
            self.longest, self.beats = max(self.longest, time.perf_counter() - before), self.beats + 1

    def stop(self) -> float:
        self._on = False
        self._done.result(10)
        return self.longest


@pytest.fixture
def heartbeat(served: Served) -> Callable[[], Heartbeat]:
    return lambda: Heartbeat(served.loop)


def post(served: Served, body: bytes, path: str = "/v1/chat/completions") -> tuple[int, dict[str, Any]]:
    with served.client() as client:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
        return answer.status_code, answer.json()["error"]


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "script", "messages": [{"role": "user", "content": "a"}], **fields}).encode()


def _user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


HOSTILE = {
    "a prompt of 8 MB": (lambda: chat(messages=_user("x y " * (2 * MIB))), "context_length_exceeded"),
    "three million lists": (lambda: chat(metadata={"a": [[]] * (3 * MIB)}), "invalid_json"),
    "400,000 messages": (lambda: chat(messages=_user("a") * 400_000), "invalid_json"),
    "a wrong type in a large body": (lambda: chat(n="x", messages=_user("é" * MIB)), "invalid_value"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_refused_body_stops_nobody(served: Served, heartbeat: Callable[[], Heartbeat], attack: str) -> None:
    """vllm#10635: refusing 4 MB of prompt took two to three seconds of everybody's streams, 8 MB four to seven."""
    make, code = HOSTILE[attack]
    body = make()
    watch = heartbeat()
    status, error = post(served, body)
    longest = watch.stop()
    assert (status, error["code"]) == (400, code), error
    assert longest < 0.5


def test_a_long_prompt_is_refused_before_it_is_tokenized(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    real = served.engine.tokenizer.encode
    monkeypatch.setattr(
        served.engine.tokenizer, "encode", lambda text, **kw: encoded.append(len(text)) or real(text, **kw)
    )
    for path, fields in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": "x" * MIB})):
        body = {"model": "script", **(fields or {"messages": [{"role": "user", "content": "x" * MIB}]})}
        status, error = post(served, json.dumps(body).encode(), path)
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "at the least" in error["message"]
    assert encoded == []


def test_tokenize_takes_texts_of_a_bounded_size(served: Served) -> None:
    body = {"model": "script", "prompt": "x" * (prompts.MAX_TOKENIZED_BYTES + 1)}
    status, error = post(served, json.dumps(body).encode(), "/tokenize")
    assert (status, error["param"]) == (400, "prompt")


def test_long_log_probabilities_are_shaped_off_the_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.server import chat as chat_module
    from shoal.server import completions

    threads: list[str] = []

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def shaped(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return real(*args)

        return shaped

    monkeypatch.setattr(completions, "prompt_logprobs", noting(completions.prompt_logprobs))
    monkeypatch.setattr(chat_module, "prompt_logprobs", noting(chat_module.prompt_logprobs))
    with served.client() as client:
        ask = {"model": "script", "prompt": "x" * 900, "prompt_logprobs": 1, "max_tokens": 2, "logprobs": 1}
        assert client.post("/v1/completions", json=ask).status_code == 200
        ask = {"model": "script", "messages": [{"role": "user", "content": "x" * 900}], "prompt_logprobs": 1}
        assert client.post("/v1/chat/completions", json=ask).status_code == 200
    assert len(threads) == 2
    assert served.thread.name not in threads


@pytest.mark.parametrize("text", ['{"a":1}', "[" * 9 + '\\"' * 30, '\\\\" [[ "[', ""])
def test_structure_in_strings_does_not_count(text: str) -> None:
    body = chat(metadata={"code": text * (MIB // max(1, len(text)))})
    check_structure(body)


@pytest.mark.parametrize(
    "values",
    [[[]] * (MAX_CONTAINERS + 1), [1] * (MAX_VALUES + 2), "\n" * (MAX_ESCAPES + 1), "\x04" * MAX_ESCAPES + "\\"],
)
def test_too_much_structure_is_refused(values: list[Any]) -> None:
    with pytest.raises(ApiError, match="JSON values"):
        check_structure(chat(metadata={"a": values, "pad": "x" * 2**18}))


TEXTS = st.text(alphabet='"\\[{,}] aé', max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(TEXTS, lambda c: st.lists(c) | st.dictionaries(TEXTS, c), max_leaves=8), st.integers(1, 9))
def test_what_lies_outside_strings_is_found_however_a_body_is_cut(value: Any, step: int) -> None:
    import numpy as np

    body = json.dumps(value, ensure_ascii=False).encode()
    data, counter = np.frombuffer(body, np.uint8), _Outside()
    counted = escapes = 0
    for at in range(0, len(body), step):
        piece = data[at : at + step]
        counted += int(np.sum(counter.outside_strings(piece) & ((piece == ord("[")) | (piece == ord("{")))))
        escapes += counter.escapes

    def containers(item: Any) -> int:
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return isinstance(item, dict | list) + sum(map(containers, inner))

    assert counted == containers(value)
    assert escapes == len(re.findall(rb"\\.", body))


def test_what_fits_a_context_is_counted_while_loading(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a vocabulary of 262 k tokens took half a second of the loop, at the first `/v1/models`."""

    def reads(tokenizer: object) -> None:
        raise AssertionError("a vocabulary is read")

    monkeypatch.setattr("shoal.engine.text.tokenizer.length_bound", reads)
    frontend = served.engine.frontend
    with served.client() as client:
        (card,) = client.get("/v1/models").json()["data"]
    assert card["max_prompt_bytes"] == frontend.max_prompt_bytes
