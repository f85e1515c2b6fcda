"""Scoring a prompt that fills the whole context (`echo`, `max_tokens: 0`), on a real model of random weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2ekit import Running, running, tiny_llama

from shoal.engine.options import EngineOptions

CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def narrow(model: Path) -> Iterator[Running]:
    with running(EngineOptions(model=str(model), served_name="tiny", max_model_len=CONTEXT)) as server:
        yield server


def score(server: Running, prompt: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 3, **fields}
    with server.client() as client:
        response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_prompt_as_long_as_the_context_is_scored(model: Path, narrow: Running) -> None:
    prompt = [(7 * i) % 250 for i in range(CONTEXT)]
    found = score(narrow, prompt, n=2, bad_words=["a"], min_tokens=0, temperature=1, seed=1)
    with running(EngineOptions(model=str(model), served_name="tiny", max_model_len=2 * CONTEXT)) as wide:
        expected = score(wide, prompt)
    for choice in found["choices"]:
        assert choice["finish_reason"] == "length"
        for field in ("tokens", "text_offset"):
            assert choice["logprobs"][field] == expected["choices"][0]["logprobs"][field]
        values, wanted = (c["logprobs"]["token_logprobs"] for c in (choice, expected["choices"][0]))
        assert values[0] is None
        assert values[1:] == pytest.approx(wanted[1:], abs=1e-4)
        last, top = choice["logprobs"]["top_logprobs"][-1], expected["choices"][0]["logprobs"]["top_logprobs"][-1]
        assert set(last) == set(top)
    assert found["usage"]["prompt_tokens"] == CONTEXT
    assert found["usage"]["completion_tokens"] == 0
    narrow.check()


def test_text_that_fills_the_context(narrow: Running) -> None:
    answer = score(narrow, "x" * CONTEXT)
    assert answer["choices"][0]["text"] == "x" * CONTEXT
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == CONTEXT
    with narrow.client() as client:
        body = {"model": "tiny", "prompt": "x" * (CONTEXT + 1), "echo": True, "max_tokens": 0}
        error = client.post("/v1/completions", json=body).json()["error"]
        assert error["code"] == "context_length_exceeded"
        body = {"model": "tiny", "prompt": "x" * CONTEXT, "max_tokens": 1}
        assert client.post("/v1/completions", json=body).json()["error"]["code"] == "context_length_exceeded"


def test_exclusions_compose_on_a_real_model(narrow: Running) -> None:
    """bad_words and allowed_token_ids with n, penalties, log-probabilities, a seed, and going on with an answer."""
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": "abc",
        "max_tokens": 20,
        "temperature": 1.3,
        "seed": 5,
        "allowed_token_ids": list(range(60, 90)),
        "bad_words": ["A", "BC"],
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logprobs": 1,
        "return_token_ids": True,
        "n": 3,
    }
    with narrow.client() as client:
        first = client.post("/v1/completions", json=body).json()
        again = client.post("/v1/completions", json=body).json()
        assert [c["text"] for c in first["choices"]] == [c["text"] for c in again["choices"]]
        for choice in first["choices"]:
            assert set(choice["token_ids"]) <= set(range(60, 90))
            assert "A" not in choice["text"]
            assert "BC" not in choice["text"]
        ids = first["choices"][0]["token_ids"]
        alone = {**body, "n": 1, "logprobs": None, "resume_token_ids": ids[:8]}
        resumed = client.post("/v1/completions", json=alone).json()["choices"][0]
    assert resumed["token_ids"] == ids[8:]
