"""Whatever is sent, the answer is a 2xx or a 4xx in shape, nothing hangs, and nothing is left in the engine."""

from typing import Any

import httpx
import pytest
from e2ekit import JSON, Running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXT | st.none()},
    optional={"name": TEXT, "tool_call_id": TEXT},
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 3),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 300),
    "min_p": st.floats(0, 1),
    "n": st.integers(1, 3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": TEXT | st.lists(TEXT, max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 300), max_size=3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 2),
    "logit_bias": st.dictionaries(st.integers(-1, 300).map(str), st.floats(-101, 101), max_size=3),
    "min_tokens": st.integers(0, 5),
    "ignore_eos": st.booleans(),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "prompt_logprobs": st.integers(0, 5),
    "guided_regex": st.sampled_from(["[a-z]+", "(", "a{3}", ""]),
    "guided_choice": st.lists(TEXT, max_size=3),
    "guided_json": JSON,
    "priority": st.integers(-2000, 2000),
    "cache_salt": TEXT,
    "return_token_ids": st.booleans(),
    "user": TEXT,
}
CHAT = {
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 25),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "chat_template_kwargs": st.dictionaries(TEXT, JSON, max_size=2),
    "tool_choice": st.sampled_from(["none", "auto", "required"]),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}]),
}
COMPLETION = {"logprobs": st.integers(0, 25), "echo": st.booleans(), "best_of": st.integers(1, 3)}
TOKENS = st.lists(st.integers(0, 300), max_size=20)


def body(required: dict[str, st.SearchStrategy[Any]], more: dict[str, st.SearchStrategy[Any]]) -> Any:
    """Mostly well-formed requests, some with one field of any kind whatever."""
    optional = {**FIELDS, **more}
    fixed = {"model": st.just("tiny"), "max_tokens": st.integers(0, 12), **required}
    good = st.fixed_dictionaries(fixed, optional=optional)
    spoiled = st.tuples(good, st.sampled_from([*fixed, *optional]) | st.text(max_size=9), JSON)
    # Without a limit of their own, answers would run to the end of the context.
    return good | spoiled.filter(lambda t: t[1] != "max_tokens").map(lambda t: {**t[0], t[1]: t[2]})


def post(replica: Running, path: str, body: Any) -> None:
    with replica.client(timeout=60) as client:
        response = client.post(path, json=body)
    check(response)


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, (response.status_code, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert "Traceback" not in error["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")


@SETTINGS
@given(body({"messages": st.lists(MESSAGE, max_size=3)}, CHAT))
def test_chat(tiny: Running, body: Any) -> None:
    post(tiny, "/v1/chat/completions", body)


@SETTINGS
@given(body({"prompt": TEXT | TOKENS | st.lists(TEXT, max_size=3) | st.lists(TOKENS, max_size=3)}, COMPLETION))
def test_completions(tiny: Running, body: Any) -> None:
    post(tiny, "/v1/completions", body)


@SETTINGS
@given(st.dictionaries(st.sampled_from(["prompt", "messages", "tokens", "tools", "model"]), JSON, max_size=3))
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_tokenize(tiny: Running, path: str, body: Any) -> None:
    post(tiny, path, body)


@SETTINGS
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0 -1eE.ntf', max_size=60).map(str.encode))
def test_bytes(tiny: Running, body: bytes) -> None:
    with tiny.client() as client:
        check(client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"}))
