"""Bad input: 4xx in OpenAI's shape, naming the field; the engine never sees it."""

import json
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serverkit import Served, eventually

from shoal.engine.errors import InvalidRequest

ASK: dict[str, Any] = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETE: dict[str, Any] = {"model": "script", "prompt": "Hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "given -1"),
        ({"temperature": "hot"}, "temperature", "expected a number or null, got a string"),
        ({"temperature": 1e999}, "temperature", ""),
        ({"top_p": -0.1}, "top_p", ">= 0"),
        ({"top_p": 1.5}, "top_p", "<= 1"),
        ({"top_k": -2}, "top_k", ">= -1"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": True}, "n", "int"),
        ({"n": 129}, "n", "<= 128"),
        ({"max_tokens": -5}, "max_tokens", ">= 0"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "give one"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "token ids as keys"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "token ids as keys"),
        ({"stop": ["a", 5]}, "stop[1]", "given 5"),
        ({"stop": ""}, "stop", "non-empty"),
        ({"stop": ["x"] * 17}, "stop", "<= 16"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", ">= 0"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=true"),
        ({"messages": []}, "messages", ">= 1"),
        ({"messages": "Hi"}, "messages", "array"),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "messages[0].role",
            "'wizard' is not accepted; expected one of assistant, developer",
        ),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "expected one of input_text, output_text, reasoning, refusal, text",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "no id"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"tools": [TOOL, TOOL]}, "tools", "once"),
        ({"tool_choice": "required"}, "tools", "needs tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "of the tools: f",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "bad name"}}]},
            "tools[0].function.name",
            "given 'bad name'",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "'xml' is not accepted; expected one of json_object, json_schema, text",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "only one"),
        ({"guided_choice": []}, "guided_choice", "one or more"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "excludes"),
        ({"priority": 5000}, "priority", "<= 1000"),
        ({"cache_salt": ""}, "cache_salt", ">= 1"),
        ({"model": None}, "model", "str"),
    ],
)
def test_chat_names_the_field(served: Served, change: dict[str, Any], param: str, says: str) -> None:
    with served.client() as client:
        error = error_of(
            client.post(
                "/v1/chat/completions",
                content=json.dumps({**ASK, **change}).replace("Infinity", "1e999"),
                headers={"content-type": "application/json"},
            ),
            400,
        )
    assert error["param"] == param
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"
    assert served.engine.seen == []


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"prompt": []}, "prompt", ">= 1"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": ["a", ""]}, "prompt", "empty"),
        ({"prompt": ["a", 1]}, "prompt", "a list holds"),
        ({"prompt": [1, -1]}, "prompt[1]", ">= 0"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": {"a": 1}}, "prompt", "object"),
        ({"best_of": 2}, "best_of", "must equal n"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"max_tokens": 0}, "max_tokens", "echo=true"),
        ({"logprobs": 21}, "logprobs", "<= 20"),
        ({"messages": []}, "messages", "unknown parameter"),
    ],
)
def test_completions_name_the_field(served: Served, change: dict[str, Any], param: str, says: str) -> None:
    with served.client() as client:
        error = error_of(client.post("/v1/completions", json={**COMPLETE, **change}), 400)
    assert error["param"] == param
    assert says in error["message"]
    assert served.engine.seen == []


_PYTHON = re.compile(
    r"\b(None|NoneType|True|False|dict|tuple|str|int|float|bool|list\[|Struct|enum|msgspec|object at)\b|`|<class"
)


def test_errors_speak_of_json_not_of_python(served: Served) -> None:
    """Every field of both endpoints, with values of every wrong kind: no Python word in any 400."""
    from shoal.server.protocol import ChatRequest, CompletionRequest

    wrong: list[Any] = [True, -7.5, 10**30, "wrong", [], [None], {}, {"type": "wrong"}, {"a": [1]}, [[True]]]
    asked = 0
    with served.client() as client:
        for path, known, base in (
            ("/v1/chat/completions", ChatRequest, ASK),
            ("/v1/completions", CompletionRequest, COMPLETE),
        ):
            # KV is handed over among replicas, which the script engine is not one of.
            for field in set(known.__struct_fields__) - {"kv_transfer_params"}:
                for value in wrong:
                    response = client.post(path, json={**base, field: value})
                    assert response.status_code in (200, 400, 404), (field, value, response.text)
                    if response.status_code == 400:
                        asked += 1
                        message = response.json()["error"]["message"]
                        assert not _PYTHON.search(message), (field, value, message)
    assert asked > 500


def test_what_the_engine_refuses_is_named_as_the_client_knows_it(served: Served) -> None:
    cases = [
        (InvalidRequest("top_k", 9, "at most 5"), {}, "top_k"),
        (
            InvalidRequest("guided.json_schema", "{", "a JSON schema"),
            {"response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            InvalidRequest("guided.regex", "(", "a regex"),
            {"structured_outputs": {"regex": "("}},
            "structured_outputs.regex",
        ),
        (InvalidRequest("max_tokens", 9, "less"), {"max_completion_tokens": 9}, "max_completion_tokens"),
    ]
    for refusal, change, param in cases:
        served.engine.refuses = refusal
        with served.client() as client:
            error = error_of(client.post("/v1/chat/completions", json={**ASK, **change}), 400)
        assert error["param"] == param
        assert refusal.accepted in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_unknown_model(served: Served, path: str) -> None:
    body = {**(ASK if "chat" in path else COMPLETE), "model": "gpt-9"}
    with served.client() as client:
        error = error_of(client.post(path, json=body), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'script'" in error["message"]


def test_over_long_prompt_gives_the_figures(served: Served) -> None:
    long = {"role": "user", "content": "x" * 5000}
    with served.client() as client:
        error = error_of(client.post("/v1/chat/completions", json={**ASK, "messages": [long]}), 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "1000" in error["message"]
        assert str(len("<user>\n<assistant>") + 5000) in error["message"]
        error = error_of(
            client.post("/v1/completions", json={**COMPLETE, "prompt": "x" * 900, "max_tokens": 101}), 400
        )
        assert "at most 899 tokens" in error["message"]
        assert "ask for at most 100 tokens" in error["message"]
        assert (
            client.post("/v1/completions", json={**COMPLETE, "prompt": "x" * 900, "max_tokens": 100}).status_code
            == 200
        )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": }',
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"null x",
        b"NaN",
        b'{"model": "script", "messages": [{"role": "user", "content": "\\ud800"}]}',
    ],
)
def test_malformed_json(served: Served, body: bytes) -> None:
    with served.client() as client:
        response = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    error = error_of(response, 400)
    assert "Traceback" not in error["message"]
    assert served.engine.seen == []


@pytest.mark.parametrize("body", [b"null", b"[]", b"1", b'"x"'])
def test_json_that_is_no_object(served: Served, body: bytes) -> None:
    with served.client() as client:
        response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert "expected an object" in error_of(response, 400)["message"]


def test_other_content_types(served: Served) -> None:
    with served.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            response = client.post("/v1/completions", content=b"{}", headers={"content-type": kind})
            assert error_of(response, 415)["param"] == "Content-Type"
        ok = client.post(
            "/v1/completions",
            content=json.dumps(COMPLETE),
            headers={"content-type": "application/json; charset=utf-8"},
        )
        assert ok.status_code == 200


def test_wrong_method_and_path(served: Served) -> None:
    with served.client() as client:
        response = client.get("/v1/chat/completions")
        assert "use POST" in error_of(response, 405)["message"]
        assert response.headers["allow"] == "POST"
        assert error_of(client.get("/v1/nothing"), 404)["code"] == "not_found"
        assert "use POST" in error_of(client.get("/v1/completions/"), 405)["message"]


def test_oversized_body(serve: Callable[..., Served]) -> None:
    served = serve(max_body_bytes=1000)
    body = json.dumps({**COMPLETE, "prompt": "x" * 2000}).encode()
    headers = {"content-type": "application/json"}

    def pieces() -> Any:
        yield body[:900]
        yield body[900:]

    with served.client() as client:
        for content in (body, pieces()):
            error = error_of(client.post("/v1/completions", content=content, headers=headers), 413)
            assert "1000 bytes" in error["message"]
        assert client.post("/v1/completions", json=COMPLETE).status_code == 200


def test_body_that_never_comes(serve: Callable[..., Served]) -> None:
    served = serve(body_seconds=0.1)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        sock.sendall(b"Content-Length: 99\r\n\r\n{")
        answer = b""
        while piece := sock.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.1 s" in answer


def test_unexpected_exception_says_nothing_of_our_insides(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.engine.raises = RuntimeError("secret path /etc/x")
    with served.client() as client:
        response = client.post("/v1/completions", json=COMPLETE, headers={"x-request-id": "mine"})
    error = error_of(response, 500)
    assert "secret" not in response.text
    assert "mine" in error["message"]
    assert response.headers["x-request-id"] == "mine"
    records = [r for r in caplog.records if r.exc_info]
    assert len(records) == 1
    assert "mine" in records[0].getMessage()
    served.engine.raises = None
    with served.client() as client:
        assert client.post("/v1/completions", json=COMPLETE).status_code == 200


def test_api_key(serve: Callable[..., Served], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    served = serve(api_key="sesame-123", access_log=True)
    with served.client() as client:
        for header in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic sesame-123"},
            {"authorization": "Bearer"},
        ):
            assert (
                error_of(client.post("/v1/completions", json=COMPLETE, headers=header), 401)["code"]
                == "invalid_api_key"
            )
        right = {"authorization": "Bearer sesame-123"}
        assert client.post("/v1/completions", json=COMPLETE, headers=right).status_code == 200
        assert error_of(client.get("/v1/models"), 401)
        for path in ("/health", "/ready", "/openapi.json"):
            assert client.get(path).status_code == 200
        # They tell what all clients do.
        assert error_of(client.get("/metrics"), 401)
        assert client.get("/metrics", headers=right).status_code == 200
    assert "sesame" not in repr(served.state.options)
    eventually(
        lambda: len([r for r in caplog.records if r.name == "shoal.access"]) == 11, "every request is logged"
    )
    assert not any("sesame" in r.getMessage() for r in caplog.records)


def test_model_still_loading_engine_dead_and_draining(serve: Callable[..., Served]) -> None:
    served = serve(attach=False)
    with served.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ready").json() == {"status": "not_ready", "reason": "the model is still loading"}
        response = client.post("/v1/completions", json=COMPLETE)
        assert error_of(response, 503)["code"] == "loading"
        assert response.headers["retry-after"] == "1"
        served.state.attach(served.engine)
        assert client.get("/ready").status_code == 200
        # Engine bug 20: the ranks are dead and the API still says 200.
        served.engine.healthy = False
        assert client.get("/ready").status_code == 503
        assert error_of(client.post("/v1/completions", json=COMPLETE), 503)["code"] == "engine_dead"
        served.engine.healthy = True
        served.state.draining = True
        assert client.get("/ready").status_code == 503
        assert error_of(client.post("/v1/completions", json=COMPLETE), 503)["code"] == "shutting_down"


@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_token_has_its_own_status(served: Served, stream: bool) -> None:
    served.engine.answer = "x"
    for reason, status in (("abort", 503), ("error", 500)):
        served.engine.finish_reason, served.engine.error = reason, "the grammar admits no token"
        with served.client() as client:
            error = error_of(client.post("/v1/completions", json={**COMPLETE, "stream": stream}), status)
        assert reason == "abort" or "grammar" in error["message"]
    eventually(lambda: not served.engine.live, "requests ended")


def test_failure_within_a_stream_is_an_event_and_no_done(served: Served) -> None:
    served.engine.finish_reason, served.engine.error = "error", "the grammar admits no token"
    with served.client() as client:
        text = client.post("/v1/chat/completions", json={**ASK, "stream": True}).text
    assert "[DONE]" not in text
    last = json.loads(text.strip().rsplit("\n\n", 1)[-1].removeprefix("data: "))
    assert last["error"]["code"] == "generation_failed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_that_fails_midway_is_the_requests_own_fault(served: Served, stream: bool) -> None:
    """400 that says so, and the next request is answered."""
    served.engine.finish_reason, served.engine.error = "error", "the grammar admits no token"
    served.engine.constraint_failed = True
    with served.client() as client:
        served.engine.answer = "x"
        answer = client.post("/v1/completions", json={**COMPLETE, "stream": stream})
        error = error_of(answer, 400)
        assert (error["type"], error["code"]) == ("invalid_request_error", "constraint_failed")
        assert "the grammar admits no token" in error["message"]
        served.engine.answer = "longer"
        text = client.post("/v1/completions", json={**COMPLETE, "stream": True}).text
        last = json.loads(text.strip().rsplit("\n\n", 1)[-1].removeprefix("data: "))
        assert last["error"]["code"] == "constraint_failed"
        served.engine.reset()
        assert client.post("/v1/completions", json=COMPLETE).status_code == 200


def test_a_schema_of_thousands_of_optional_properties_is_refused_by_name(served: Served) -> None:
    """At once, with the limit, wherever the schema lies: llguidance compiles it for minutes and fails later."""
    for count, status in ((400, 200), (5000, 400)):
        wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}}
        schema = {"type": "object", "properties": {"wide": wide}, "required": ["wide"]}
        form = {"type": "json_schema", "json_schema": {"name": "wide", "schema": schema}}
        begun = time.monotonic()
        with served.client() as client:
            answer = client.post("/v1/chat/completions", json={**ASK, "response_format": form})
        assert answer.status_code == status, answer.text
        if status == 400:
            error = error_of(answer, 400)
            assert error["param"] == "response_format.json_schema.schema.properties.wide.properties"
            assert "at most 500" in error["message"]
            assert time.monotonic() - begun < 5
