"""Reports of users from the trackers of other servers, tried on a real replica; tests name the thread."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from e2ekit import Running, eventually, running
from safetensors.torch import save_file

from shoal.engine.options import EngineOptions, LoraModule

ASK: dict[str, Any] = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture
def client(tiny: Running) -> Iterator[httpx.Client]:
    with tiny.client() as found:
        yield found


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def text_of(client: httpx.Client, **fields: Any) -> str:
    return str(complete(client, **fields)["choices"][0]["text"])


def streamed_text(client: httpx.Client, **fields: Any) -> str:
    lines = client.post("/v1/completions", json=ASK | fields | {"stream": True}).text.splitlines()
    data = [line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    return "".join(choice["text"] for line in data for choice in json.loads(line)["choices"])


def test_prompts_are_scored(client: httpx.Client) -> None:
    """llama.cpp#27174, lm-evaluation-harness#4158: `echo` with `logprobs` scored the generated token only."""
    answer = complete(client, echo=True, logprobs=1, max_tokens=1)
    found = answer["choices"][0]["logprobs"]
    count = answer["usage"]["prompt_tokens"] + 1
    assert {len(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {count}
    assert found["token_logprobs"][0] is None
    assert all(value < 0 for value in found["token_logprobs"][1:])
    text = answer["choices"][0]["text"]
    assert [text[at] for at in found["text_offset"][:-1]] == found["tokens"][:-1]


def test_as_many_alternatives_as_asked_for(client: httpx.Client) -> None:
    """lmdeploy#1548: `top_logprobs: 5` gave four."""
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": True}
    for top in (0, 1, 5, 20):
        answer = client.post("/v1/chat/completions", json=ask | {"top_logprobs": top, "ignore_eos": True}).json()
        found = answer["choices"][0]["logprobs"]["content"]
        assert [len(item["top_logprobs"]) for item in found] == [top] * 4


def test_a_stop_string_of_several_tokens(client: httpx.Client) -> None:
    """llama.cpp#11538: it was ignored; llama.cpp#10914: it ended up in what was streamed."""
    whole = text_of(client, max_tokens=40)
    for length in (2, 3, 6):
        stop = whole[10 : 10 + length]
        expected = whole[: whole.index(stop)]
        answer = complete(client, max_tokens=40, stop=[stop, "never in it"])["choices"][0]
        assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == (expected, "stop", stop)
        assert streamed_text(client, max_tokens=40, stop=[stop, "never in it"]) == expected


def test_bias_of_a_token(client: httpx.Client) -> None:
    """sglang#6579, llama.cpp#19699: −100 for a token, its id written as OpenAI does, had no effect."""
    greedy = complete(client, max_tokens=1, logprobs=0, return_token_ids=True)["choices"][0]["token_ids"][0]
    for _ in range(2):
        answer = complete(client, max_tokens=30, ignore_eos=True, return_token_ids=True, logit_bias={greedy: -100})
        assert greedy not in answer["choices"][0]["token_ids"]
    forced = complete(client, max_tokens=5, return_token_ids=True, logit_bias={str(ord("Z")): 100})
    assert len(set(forced["choices"][0]["token_ids"])) == 1
    for bias in ({"Zebra": 1}, {"99999": 1}, {"1": 101}):
        assert client.post("/v1/completions", json=ASK | {"logit_bias": bias}).status_code == 400


def test_very_low_temperatures_are_greedy(client: httpx.Client) -> None:
    """text-generation-inference#440: below some temperature the answer was empty; aici#19: or the server ended."""
    greedy = text_of(client)
    for temperature in (1e-3, 1e-5, 1e-30, 1e-320):
        assert text_of(client, temperature=temperature, seed=1) == greedy


def test_more_candidates_than_the_vocabulary_has(client: httpx.Client) -> None:
    """sendnn-inference#542: `top_k` beyond the vocabulary ended the server."""
    for top_k in (9_999_999, 2**40, -5):
        answer = client.post("/v1/completions", json=ASK | {"top_k": top_k, "temperature": 1})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_k")
    for top_k in (-1, 0, 260):
        assert text_of(client, top_k=top_k, temperature=1, seed=3) == text_of(client, temperature=1, seed=3)


def test_a_constraint_works_again(client: httpx.Client) -> None:
    """vllm#16738: the second request with a constraint failed."""
    for _ in range(3):
        assert text_of(client, guided_choice=["Positive", "Negative"]) in ("Positive", "Negative")


def test_a_finished_constraint_ends_before_min_tokens(client: httpx.Client) -> None:
    """vllm#53665: `min_tokens` beyond the end of the constraint was a 500; here EOS was repeated up to it."""
    for fields in ({"guided_choice": ["aa", "bb"]}, {"guided_regex": "x{3}"}, {"guided_json": {"const": 1}}):
        answer = complete(client, min_tokens=40, max_tokens=60, **fields)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["text"]) + 1
    answer = complete(client, min_tokens=40, max_tokens=60, guided_regex="x*")
    assert answer["usage"]["completion_tokens"] >= 40


def test_a_stop_token_beyond_the_vocabulary(client: httpx.Client) -> None:
    """gonka#1170: such an id with `min_tokens` ended the engine for everybody."""
    for token in (-1, 260, 99_999_999, 2**40):
        answer = client.post("/v1/completions", json=ASK | {"stop_token_ids": [token], "min_tokens": 1})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("stop_token_ids")


def test_a_stop_token_does_not_cut_json(client: httpx.Client) -> None:
    """vllm#49227: a stop token that the model prefers was sampled in the middle of an object."""
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 22]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wanted = {
        "guided_json": schema,
        "max_tokens": 200,
        "stop_token_ids": [257],
        "logit_bias": {"256": 100, "257": 100},
    }
    assert json.loads(text_of(client, **wanted))["n"] in (1, 22)


def test_a_seed_gives_the_same_whatever_runs_beside_and_is_cached(client: httpx.Client) -> None:
    """text-generation-inference#2670: with prefix caching the same seed gave other text."""
    wanted = {"prompt": "The sea, the sea, the open sea. " * 2, "seed": 7, "temperature": 1, "max_tokens": 20}
    first = text_of(client, **wanted)
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(text_of, client, prompt="x" * n, temperature=1, max_tokens=30) for n in (3, 50, 200)]
        again = [pool.submit(text_of, client, **wanted) for _ in range(3)]
        assert {future.result() for future in again} == {first}
        for future in others:
            future.result()


def test_cached_tokens_are_told_on_a_miss_too(client: httpx.Client) -> None:
    """imp#1984: the field was absent where nothing was found in the cache."""
    ask = {"prompt": "a prompt that no other test in this module sends, of two blocks", "max_tokens": 1}
    details = [complete(client, **ask)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert details[0] == 0
    assert details[1] >= 16


def aborted(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("shoal_requests_finished_total") and '"abort"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_is_counted_as_such(tiny: Running, client: httpx.Client, streamed: bool) -> None:
    """vllm#31503: the counter of aborted requests stayed at 0; llama.cpp#11720: generation went on."""
    before = aborted(client)
    host, port = tiny.url.removeprefix("http://").split(":")
    body = json.dumps(ASK | {"max_tokens": 1000, "ignore_eos": True, "stream": streamed}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    assert tiny.replica.engine is not None
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
        eventually(lambda: tiny.replica.engine.stats().running == 1, "it runs")  # type: ignore[union-attr]
    left = time.monotonic()
    eventually(lambda: tiny.idle() and aborted(client) == before + 1, "it is gone and counted")
    assert time.monotonic() - left < 10


def with_adapter(model: Path, folder: Path, prefix: str) -> EngineOptions:
    """Options of a replica with the adapter "a", whose tensors have names of that beginning."""
    tensors = {}
    generator = torch.Generator().manual_seed(5)
    for layer in range(2):
        name = f"{prefix}.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, 48, generator=generator)
        tensors[f"{name}.lora_B.weight"] = torch.randn(48, 4, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    module = LoraModule("a", str(folder))
    return EngineOptions(model=str(model), served_name="tiny", threads=1, num_blocks=50, loras=(module,))


def test_an_adapter_of_a_wrapped_model_has_effect_and_its_own_name(tiny_model: Path, tmp_path: Path) -> None:
    """vllm#34186, vllm#48019: an adapter of a model under `language_model` was loaded and did nothing; vllm#11090:
    answers named the base model; vllm#11761: the list of models left it out.
    """
    options = with_adapter(tiny_model, tmp_path, "base_model.model.language_model.model.layers")
    with running(options) as replica, replica.client() as client:
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny", "a"]
        answer = complete(client, model="a")
        assert answer["model"] == "a"
        assert answer["choices"][0]["text"] != text_of(client)


def test_an_adapter_whose_names_fit_nothing_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """vllm#34186: such an adapter was loaded and silently did nothing."""
    options = with_adapter(tiny_model, tmp_path, "base_model.model.transformer.h")
    with (
        pytest.raises(Exception, match=r"LoRA adapter 'a'.*q_proj"),
        running(options),
    ):
        pass
