"""`/v1/completions`, and the small endpoints."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from serverkit import Served

from shoal.engine.outputs import RequestTimings, StepStats

ASK: dict[str, Any] = {"model": "script", "prompt": "Hi", "max_tokens": 50}


@pytest.fixture
def openai(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_whole_answer(openai: OpenAI) -> None:
    answer = openai.completions.create(**ASK)
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == (
        "text_completion",
        "Hello, wörld!",
        "stop",
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 14)


def test_default_is_16_tokens(openai: OpenAI, served: Served) -> None:
    openai.completions.create(model="script", prompt="Hi")
    assert served.engine.seen[0][1].max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
def test_many_prompts_and_choices_are_numbered_prompt_by_prompt(
    openai: OpenAI, served: Served, stream: bool
) -> None:
    wanted = {**ASK, "prompt": ["a", "bc", "def"], "n": 2, "echo": True}
    texts = [""] * 6
    if stream:
        for chunk in openai.completions.create(**wanted, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
            usage = chunk.usage or None
    else:
        answer = openai.completions.create(**wanted)
        texts, usage = [choice.text for choice in answer.choices], answer.usage
    assert texts == [p + "Hello, wörld!" for p in ("a", "a", "bc", "bc", "def", "def")]
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (1 + 2 + 3, 6 * 14)


def test_token_prompts(openai: OpenAI, served: Served) -> None:
    openai.completions.create(**{**ASK, "prompt": [5, 6, 7]})
    openai.completions.create(**{**ASK, "prompt": [[5], [6, 7]]})
    assert sorted(prompt for prompt, _ in served.engine.seen) == [(5,), (5, 6, 7), (6, 7)]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_with_echo(openai: OpenAI, stream: bool) -> None:
    wanted = {**ASK, "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 2}
    if stream:
        parts = [c.choices[0].logprobs for c in openai.completions.create(**wanted, stream=True)]
    else:
        parts = [openai.completions.create(**wanted).choices[0].logprobs]
    tokens = [t for part in parts if part for t in part.tokens or ()]
    values = [t for part in parts if part for t in part.token_logprobs or ()]
    offsets = [t for part in parts if part for t in part.text_offset or ()]
    tops = [t for part in parts if part for t in part.top_logprobs or ()]
    assert tokens == ["a", "b", "c", "H", "e"]
    assert values == [None, -0.5, -0.5, -0.25, -0.25]
    assert offsets == [0, 1, 2, 3, 4]
    assert tops[0] is None
    assert set(tops[3]) == {"H", chr_of(65)}


def chr_of(token: int) -> str:
    from serverkit import byte_tokenizer

    return str(byte_tokenizer().token_text(token))


def test_scoring_a_prompt_generates_nothing(openai: OpenAI) -> None:
    answer = openai.completions.create(**{**ASK, "prompt": "abc", "echo": True, "logprobs": 0, "max_tokens": 0})
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_continuous_usage(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with served.client() as client:
        text = client.post("/v1/completions", json={**ASK, "stream": True, "stream_options": options}).text
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 14)


def test_tokenize_and_back(served: Served) -> None:
    with served.client() as client:
        there = client.post("/tokenize", json={"prompt": "wörld", "return_token_strs": True}).json()
        assert (there["count"], there["max_model_len"]) == (6, 1000)
        assert there["token_strs"][0] == "w"
        back = client.post("/detokenize", json={"tokens": there["tokens"]}).json()
        assert back == {"prompt": "wörld"}
        chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()
        assert (
            client.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"] == "<user>Hi\n<assistant>"
        )
        for body, param in (({}, "prompt"), ({"prompt": "x", "messages": [{"role": "user"}]}, "prompt")):
            response = client.post("/tokenize", json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        response = client.post("/detokenize", json={"tokens": [1, 257]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tokens")
        assert "0 to 256" in response.json()["error"]["message"]


def test_models(openai: OpenAI) -> None:
    assert [model.id for model in openai.models.list()] == ["script"]
    assert openai.models.retrieve("script").object == "model"


def test_request_id_is_echoed_and_may_repeat(served: Served) -> None:
    with served.client() as client:
        first = client.post("/v1/completions", json=ASK, headers={"x-request-id": "abc"})
        second = client.post("/v1/completions", json=ASK, headers={"x-request-id": "abc"})
        odd = client.post("/v1/completions", json=ASK, headers={"x-request-id": "a b\tc" * 100})
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "abc"
    assert first.json()["id"] != second.json()["id"]
    assert uuid.UUID(odd.headers["x-request-id"])


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_request_is_not_a_fast_one(serve: Callable[..., Served], reason: str) -> None:
    """Its end is nobody's latency; how long it waited for its first token is."""
    served = serve()
    timings = RequestTimings(
        request_id="r",
        arrival=10,
        first_scheduled=11,
        first_token=13,
        finish=14,
        prompt_tokens=5,
        cached_tokens=2,
        generated_tokens=1,
        finish_reason=reason,
    )
    served.state.metrics.on_finished(timings)
    text = served.state.metrics.text().decode()
    label = '{model_name="script"}'
    assert f"shoal_e2e_request_latency_seconds_count{label} 0.0" in text
    assert f"shoal_request_generated_tokens_count{label} 0.0" in text
    assert f"shoal_time_to_first_token_seconds_count{label} 1.0" in text
    assert f'finish_reason="{reason}"' in text


def test_metrics(serve: Callable[..., Served]) -> None:
    served = serve()
    metrics = served.state.metrics
    metrics.on_step(StepStats(seconds=0.02, sequences=3, tokens=40, inter_token=(0.01, 0.03)))
    metrics.on_finished(
        RequestTimings(
            request_id="r",
            arrival=10,
            first_scheduled=11,
            first_token=13,
            finish=17,
            prompt_tokens=5,
            cached_tokens=2,
            generated_tokens=9,
            finish_reason="stop",
        )
    )
    with served.client() as client:
        client.post("/v1/completions", json=ASK)
        client.get("/x" * 50)
        text = client.get("/metrics").text
    found = {
        sample.name: (sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "path" not in sample.labels
    }
    sums = {
        "shoal_time_to_first_token_seconds": 3,
        "shoal_e2e_request_latency_seconds": 7,
        "shoal_request_queue_time_seconds": 1,
        "shoal_batch_tokens": 40,
        "shoal_batch_sequences": 3,
        "shoal_request_prompt_tokens": 5,
        "shoal_request_generated_tokens": 9,
    }
    for name, value in sums.items():
        assert found[f"{name}_sum"][0] == value, name
        assert found[f"{name}_count"][0] == 1, name
    assert found["shoal_inter_token_latency_seconds_count"][0] == 2
    plain = {
        "shoal_requests_running": 0,
        "shoal_requests_waiting": 0,
        "shoal_kv_usage_ratio": 0.25,
        "shoal_kv_blocks": 100,
        "shoal_kv_blocks_cached": 5,
        "shoal_preemptions_total": 3,
        "shoal_prefix_queried_tokens_total": 70,
        "shoal_prefix_hit_tokens_total": 30,
        "shoal_prompt_tokens_total": 80,
        "shoal_generated_tokens_total": 90,
    }
    for name, value in plain.items():
        assert found[name] == (value, {"model_name": "script"}), name
    assert found["process_open_fds"][0] > 0
    # A path that clients make up must not become a label.
    assert 'path="other",status="404"' in text
    assert "/x/x" not in text


def test_openapi_describes_what_is_served(served: Served) -> None:
    with served.client() as client:
        document = client.get("/openapi.json").json()
        for path, operations in document["paths"].items():
            for method in operations:
                answer = client.request(
                    method, path.replace("{model}", "script"), json={} if method == "post" else None
                )
                assert str(answer.status_code) in operations[method]["responses"], path
                # No response is kept under this made-up id.
                assert answer.status_code in ((404,) if "{response_id}" in path else (200, 400))
    text = json.dumps(document)
    names = {ref.split('"')[0] for ref in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["additionalProperties"] is False
    assert chat["required"] == ["model", "messages"]
