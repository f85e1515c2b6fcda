"""A stream that broke off goes on at another replica: same tokens, same text, same counts as without a break."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from e2ekit import Running

PROMPT = "A stream that breaks off. "
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 7},
    "hot": {"temperature": 5.0, "seed": -3, "top_p": 0.9, "ignore_eos": True},
    "penalties": {
        "temperature": 0.8,
        "seed": 11,
        "presence_penalty": 1.5,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.3,
    },
    "held off": {"temperature": 1.0, "seed": 5, "min_tokens": 30, "logit_bias": {"256": 100}},
}


@dataclass
class Got:
    """A stream's tokens, and the text after each of its chunks."""

    prompt: list[int] | None = None
    tokens: list[int] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)


def stream(replica: Running, chat: bool, **fields: Any) -> Got:
    body = {"model": "tiny", "max_tokens": 40, "stream": True, "return_token_ids": True}
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    got = Got()
    options = {"stream_options": {"include_usage": True}}
    with replica.client() as client, client.stream("POST", path, json=body | options | fields) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert answer.status_code == 200, lines
    assert lines.pop() == "[DONE]"
    for chunk in map(json.loads, lines):
        got.usage = chunk.get("usage") or got.usage
        for choice in chunk["choices"]:
            found = chunk.get("prompt_token_ids") or choice.get("prompt_token_ids")
            assert not (found and got.prompt), "the prompt is said once"
            got.prompt = found or got.prompt
            got.tokens += choice.get("token_ids") or []
            got.text += (choice["delta"].get("content") or "") if chat else choice["text"]
            got.texts.append((len(got.tokens), got.text))
            got.finish = choice["finish_reason"] or got.finish
    return got


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", SAMPLING)
def test_it_goes_on_as_if_nothing_had_been(tiny: Running, name: str, chat: bool) -> None:
    whole = stream(tiny, chat, **SAMPLING[name])
    assert whole.prompt
    assert len(whole.tokens) > 5
    for given in {1, 2, len(whole.tokens) // 2, len(whole.tokens) - 1}:
        rest = stream(tiny, chat, **SAMPLING[name], resume_token_ids=whole.tokens[:given])
        assert rest.prompt == whole.prompt
        assert rest.tokens == whole.tokens[given:], given
        before = [text for count, text in whole.texts if count <= given][-1]
        assert before + rest.text == whole.text
        assert rest.finish == whole.finish
        for figure in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert rest.usage[figure] == whole.usage[figure]
        assert rest.usage["prompt_tokens_details"]["cached_tokens"] <= rest.usage["prompt_tokens"]


def test_a_stop_string_across_the_break_is_found(tiny: Running) -> None:
    sampling = {"temperature": 1.0, "seed": 21}
    free = stream(tiny, False, **sampling)
    # A stop string of two tokens' text, cut between them: nothing of it may come out.
    place, stop = next(
        (i, free.texts[i + 2][1][len(free.texts[i][1]) :])
        for i in range(4, 30)
        if free.texts[i][0] == i + 1
        and len(free.texts[i + 2][1]) - len(free.texts[i + 1][1]) == 1
        and len(free.texts[i + 1][1]) - len(free.texts[i][1]) == 1
        and free.texts[i + 2][1][len(free.texts[i][1]) :] not in free.texts[i + 1][1]
    )
    whole = stream(tiny, False, **sampling, stop=[stop])
    assert whole.finish == "stop"
    given = place + 2
    assert len(whole.tokens) > place + 2
    rest = stream(tiny, False, **sampling, stop=[stop], resume_token_ids=whole.tokens[:given])
    assert (rest.text, rest.finish, rest.tokens) == ("", "stop", whole.tokens[given:])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"resume_token_ids": [1] * 40}, "resume_token_ids"),
        ({"resume_token_ids": [9999]}, "resume_token_ids"),
        ({"resume_token_ids": [1, 256, 2]}, "resume_token_ids"),
        ({"resume_token_ids": [1], "n": 2}, "n"),
        ({"resume_token_ids": [1], "logprobs": 1}, "logprobs"),
        ({"resume_token_ids": [1], "prompt": ["a", "b"]}, "resume_token_ids"),
        ({"resume_token_ids": [1], "echo": True}, "resume_token_ids"),
        ({"resume_token_ids": [1], "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"resume_token_ids": list(b"ab"), "stop": ["ab"]}, "prompt"),
    ],
)
def test_what_can_not_be_gone_on_from_is_refused(tiny: Running, fields: dict[str, Any], named: str) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "seed": 1} | fields
    with tiny.client() as client:
        ids = client.post("/tokenize", json={"prompt": "ab"}).json()["tokens"]
        if body.get("stop"):
            body["resume_token_ids"] = ids
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == named
