"""Echoed prompts: their text, where each token begins in it, and how tokens are named."""

from typing import Any

import pytest
from serverkit import Served

COMPLETE: dict[str, Any] = {"model": "script", "prompt": "Hi"}


def complete(served: Served, **fields: Any) -> dict[str, Any]:
    with served.client() as client:
        response = client.post("/v1/completions", json={**COMPLETE, **fields})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def chunks(served: Served, **fields: Any) -> list[dict[str, Any]]:
    import json

    with served.client() as client:
        response = client.post("/v1/completions", json={**COMPLETE, "stream": True, **fields})
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    return [choice for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_are_places_in_the_text(served: Served, stream: bool) -> None:
    prompt = "ä<eos>b"
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 10}
    choices = chunks(served, **fields) if stream else [complete(served, **fields)]
    text = "".join(c["text"] for c in choices)
    offsets = [o for c in choices if c["logprobs"] for o in c["logprobs"]["text_offset"]]
    assert text == prompt + "Hello, wö"
    tokens = [*served.engine.tokenizer.encode(prompt), *served.engine.tokenizer.encode("Hello, wö")]
    assert len(offsets) == len(tokens)
    # ä and ö are two tokens each, which begin where the character does; the special token is one.
    assert offsets == [0, 0, 1, 6, *range(7, 15), 15, 15]


def test_special_tokens_of_a_prompt_given_as_ids(served: Served) -> None:
    prompt = served.engine.tokenizer.encode("a<eos>b")
    shown = complete(served, prompt=prompt, echo=True, max_tokens=0, logprobs=0)
    assert shown["text"] == "a<eos>b"
    assert shown["logprobs"]["text_offset"] == [0, 1, 6]
    hidden = complete(served, prompt=prompt, echo=True, max_tokens=0, logprobs=0, skip_special_tokens=True)
    assert hidden["text"] == "ab"
    assert hidden["logprobs"]["text_offset"] == [0, 1, 1]


def test_tokens_named_by_their_ids(served: Served) -> None:
    tokens = served.engine.tokenizer.encode("Hi")
    found = complete(served, echo=True, logprobs=1, max_tokens=1, return_tokens_as_token_ids=True)["logprobs"]
    answer = served.engine.tokenizer.encode("H")
    assert found["tokens"] == [f"token_id:{t}" for t in (*tokens, *answer)]
    assert all(name.startswith("token_id:") for top in found["top_logprobs"][1:] for name in top)
    assert found["text_offset"] == [0, 1, 2]
    body = {
        "model": "script",
        "messages": [{"role": "user", "content": "Hi"}],
        "logprobs": True,
        "top_logprobs": 1,
        "max_tokens": 1,
        "return_tokens_as_token_ids": True,
    }
    with served.client() as client:
        content = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == f"token_id:{answer[0]}"
    assert content[0]["bytes"] == [ord("H")]
    assert content[0]["top_logprobs"][0]["token"] == "token_id:65"


@pytest.mark.parametrize(("wanted", "kept"), [(3, 3), (2000, 1500), (-1, 995)])
def test_prompts_are_truncated_from_the_left(served: Served, wanted: int, kept: int) -> None:
    # The context is 1,000 tokens.
    prompt = "abc" * 500
    fits = {**COMPLETE, "prompt": prompt, "max_tokens": 5, "truncate_prompt_tokens": wanted}
    with served.client() as client:
        response = client.post("/v1/completions", json=fits)
        if kept > 995:
            assert response.json()["error"]["code"] == "context_length_exceeded"
            return
        assert response.status_code == 200, response.text
        assert served.engine.tokenizer.decode(served.engine.seen[-1][0]) == prompt[-kept:]
        answer = client.post("/v1/completions", json={**fits, "echo": True, "max_tokens": 5}).json()
        assert answer["choices"][0]["text"] == prompt[-kept:] + "Hello"
        ids = served.engine.tokenizer.encode(prompt)
        client.post("/v1/completions", json={**fits, "prompt": ids})
        assert list(served.engine.seen[-1][0]) == ids[-kept:]
        chat = {"messages": [{"role": "user", "content": prompt}], "model": "script", "max_tokens": 5}
        response = client.post("/v1/chat/completions", json={**chat, "truncate_prompt_tokens": wanted})
        assert response.status_code == 200, response.text
        assert len(served.engine.seen[-1][0]) == kept


def test_exclusions_reach_the_engine(served: Served) -> None:
    complete(served, bad_words=["no"], allowed_token_ids=[1, 2], top_p=0)
    params = served.engine.seen[0][1]
    assert (params.bad_words, params.allowed_token_ids, params.top_p) == (("no",), (1, 2), 0)
    complete(served, grammar='root ::= "a"')
    guided = served.engine.seen[1][1].guided
    assert guided is not None
    assert served.engine.admits(guided, "a")
    with served.client() as client:
        error = client.post("/v1/completions", json={**COMPLETE, "grammar": "root ::= nowhere"}).json()["error"]
    assert error["param"] == "grammar"
    assert "nowhere" in error["message"]
