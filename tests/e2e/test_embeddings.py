"""`/v1/embeddings`, `/v1/score` and `/rerank` over HTTP: every way to ask, and what is refused."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from e2ekit import JSON, Running, eventually, running, serve_process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.poolingkit import declare_pooling, save_model, text
from shoal.engine.options import EngineOptions


@contextlib.contextmanager
def serving(path: Path) -> Iterator[httpx.Client]:
    with running(EngineOptions(model=str(path), served_name="m", threads=1)) as found, found.client() as client:
        yield client


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = tmp_path_factory.mktemp("embedder")
    save_model(path, "BertModel", matryoshka_dimensions=[8, 16])
    declare_pooling(path, "mean_tokens", normalize=True, max_seq_length=40)
    with serving(path) as client:
        yield client


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = tmp_path_factory.mktemp("scorer")
    save_model(path, "BertForSequenceClassification", num_labels=1)
    with serving(path) as client:
        yield client


def vectors(client: httpx.Client, given: Any, **fields: Any) -> list[Any]:
    answer = client.post("/v1/embeddings", json={"model": "m", "input": given} | fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    return [item["embedding"] for item in body["data"]]


def refused(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = client.post(path, json={"model": "m"} | fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_inputs_of_every_kind(embedder: httpx.Client) -> None:
    one = vectors(embedder, text(5, 6, 7))
    assert len(one) == 1
    assert np.linalg.norm(one[0]) == pytest.approx(1, abs=1e-6)
    assert vectors(embedder, [1, 5, 6, 7, 2]) == one
    assert vectors(embedder, [[1, 5, 6, 7, 2], [1, 9, 2]]) == vectors(embedder, [text(5, 6, 7), text(9)])
    coded = vectors(embedder, [text(5, 6, 7)], encoding_format="base64")[0]
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == pytest.approx(one[0])
    answer = embedder.post("/v1/embeddings", json={"model": "m", "input": [text(5), text(6, 7)]}).json()
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "m", "embedding")


def test_vectors_are_cut_only_where_the_model_says_so(embedder: httpx.Client) -> None:
    whole, cut = vectors(embedder, text(5, 6))[0], vectors(embedder, text(5, 6), dimensions=8)[0]
    head = np.array(whole[:8])
    assert cut == pytest.approx((head / np.linalg.norm(head)).tolist(), abs=1e-6)
    assert "expected 8, 16" in refused(embedder, "/v1/embeddings", input="w5", dimensions=10)["message"]
    assert vectors(embedder, text(5, 6), dimensions=32)[0] == whole


def test_a_model_that_says_nothing_of_dimensions(scorer: httpx.Client, tmp_path: Path) -> None:
    save_model(tmp_path, "XLMRobertaModel", type_vocab_size=1)
    with serving(tmp_path) as client:
        error = refused(client, "/v1/embeddings", input="w5", dimensions=8)
        assert error["param"] == "dimensions"
        assert "doesn't say that its vectors may be cut" in error["message"]


def test_long_texts_are_refused_or_cut(embedder: httpx.Client) -> None:
    long = text(*range(5, 90))
    error = refused(embedder, "/v1/embeddings", input=["w5", long])
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert "87 tokens, the model takes 40" in error["message"]
    assert vectors(embedder, long, truncate_prompt_tokens=-1) == vectors(embedder, text(*range(5, 43)))
    assert vectors(embedder, long, truncate_prompt_tokens=4) == vectors(embedder, text(5, 6))


@pytest.mark.parametrize("given", [[], [5, "w5"], [[]], [1, 5000], None, [[1], [-2]]])
def test_bad_inputs(given: Any, embedder: httpx.Client) -> None:
    assert refused(embedder, "/v1/embeddings", input=given)["param"].startswith("input")


def test_an_unknown_field_is_refused(embedder: httpx.Client) -> None:
    error = refused(embedder, "/v1/embeddings", inputs="x", input="x")
    assert "unknown parameter: inputs; did you mean input" in error["message"]


def test_many_requests_at_once_are_batched(embedder: httpx.Client) -> None:
    alone = {i: vectors(embedder, text(5 + i, 6))[0] for i in range(20)}
    found: dict[int, Any] = {}

    def ask(i: int) -> None:
        found[i] = vectors(embedder, text(5 + i, 6))[0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == alone


def test_pairs_are_scored(scorer: httpx.Client, embedder: httpx.Client) -> None:
    body = {"model": "m", "text_1": text(5, 6), "text_2": [text(7), text(8, 9)]}
    for client in (scorer, embedder):
        answer = client.post("/v1/score", json=body).json()
        assert [item["index"] for item in answer["data"]] == [0, 1]
        scores = [item["score"] for item in answer["data"]]
        pairs = body | {"text_1": [text(5, 6)] * 2}
        assert [item["score"] for item in client.post("/score", json=pairs).json()["data"]] == scores
        assert answer["usage"]["total_tokens"] > 0
    one, two = (np.array(vectors(embedder, ids)[0]) for ids in (text(5, 6), text(8, 9)))
    assert scores[1] == pytest.approx(float(one @ two), abs=1e-6), "of vectors, the cosine"
    error = refused(scorer, "/v1/score", text_1=["a", "b"], text_2=["c", "d", "e"])
    assert "expected 2" in error["message"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ordered(path: str, scorer: httpx.Client) -> None:
    documents: list[Any] = [text(7, 8), {"text": text(9, 10, 11)}, text(12)]
    texts = [text(7, 8), text(9, 10, 11), text(12)]
    scored = scorer.post("/v1/score", json={"model": "m", "text_1": text(5), "text_2": texts}).json()["data"]
    best = sorted(range(3), key=lambda i: -scored[i]["score"])
    body = {"model": "m", "query": text(5), "documents": documents}
    answer = scorer.post(path, json=body).json()
    assert [(r["index"], r["document"]["text"]) for r in answer["results"]] == [(i, texts[i]) for i in best]
    assert [r["relevance_score"] for r in answer["results"]] == [scored[i]["score"] for i in best]
    bare = scorer.post(path, json=body | {"top_n": 1, "return_documents": False}).json()["results"]
    assert bare == [{"index": best[0], "relevance_score": scored[best[0]]["score"]}]


def test_models_answer_only_what_they_can(scorer: httpx.Client, embedder: httpx.Client, tiny: Running) -> None:
    assert "use /v1/score" in refused(scorer, "/v1/embeddings", input="w5")["message"]
    assert "generates no text" in refused(embedder, "/v1/completions", prompt="w5")["message"]
    with tiny.client() as client:
        for path, fields in (
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
            ("/rerank", {"query": "a", "documents": ["b"]}),
        ):
            error = refused(client, path, **fields | {"model": "tiny"})
            assert "don't declare how states are pooled" in error["message"]
            assert error["code"] == "unsupported_model"
    assert embedder.post("/v1/embeddings", json={"model": "other", "input": "a"}).status_code == 404
    assert embedder.get("/v1/models").json()["data"][0]["max_model_len"] == 40
    assert embedder.get("/ready").json() == {"status": "ready", "reason": None}
    assert "shoal_prompt_tokens_total" in embedder.get("/metrics").text
    assert embedder.get("/api/fleet").status_code == 404
    assert "/v1/embeddings" in embedder.get("/openapi.json").json()["paths"]


def test_the_openai_client(embedder: httpx.Client) -> None:
    """It asks for base64 unless told otherwise."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="-", base_url=f"{embedder.base_url}/v1") as client:
        answer = client.embeddings.create(model="m", input=[text(5, 6), text(7)])
        assert answer.data[1].embedding == pytest.approx(vectors(embedder, text(7))[0])


def test_served_as_a_command(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save_model(path, "BertModel")
    with serve_process(str(path)) as server:
        assert "/v1/embeddings -H" in "".join(server.output)
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "m", "input": "w5"}, trust_env=False)
        assert len(answer.json()["data"][0]["embedding"]) == 32
        server.process.terminate()
        assert server.wait() == 0


def test_a_fleet_passes_them_on(tmp_path: Path) -> None:
    """Its replicas get ready by a vector or a score, where no token can be had; aliases are translated."""
    paths = {"vectors": tmp_path / "vectors", "scores": tmp_path / "scores"}
    save_model(paths["vectors"], "BertModel")
    save_model(paths["scores"], "BertForSequenceClassification", num_labels=1)
    pools = [{"name": n, "model": str(p), "aliases": [f"{n}-too"], "threads": 1} for n, p in paths.items()]
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"pools": pools, "supervisor": {"log_dir": str(tmp_path / "logs")}}))
    with serve_process("--config", str(file)) as fleet, httpx.Client(base_url=fleet.url, trust_env=False) as client:

        def ready() -> bool:
            found = client.get("/api/fleet").json()["replicas"]
            return all(replica["state"] == "ready" for replica in found)

        eventually(ready, "both replicas are ready", 60)
        for name in ("vectors", "vectors-too"):
            answer = client.post("/v1/embeddings", json={"model": name, "input": ["w5", "w6 w7"]}).json()
            assert answer["model"] == name
            assert [len(item["embedding"]) for item in answer["data"]] == [32, 32]
            assert answer["usage"]["total_tokens"] == 7
        body = {"model": "scores-too", "query": "w5", "documents": ["w6", "w7 w8"]}
        answer = client.post("/v1/rerank", json=body).json()
        assert {result["index"] for result in answer["results"]} == {0, 1}
        assert client.post("/v1/embeddings", json={"model": "scores", "input": "w5"}).status_code == 400


FIELDS = {
    "input": JSON | st.lists(st.integers(0, 200), max_size=60) | st.lists(st.text(max_size=60), max_size=5),
    "encoding_format": st.sampled_from(["float", "base64", "int8", None]),
    "dimensions": st.integers(-1, 40) | JSON,
    "truncate_prompt_tokens": st.integers(-2, 50) | JSON,
    "text_1": st.text(max_size=9) | JSON,
    "text_2": st.lists(st.text(max_size=9), max_size=3) | JSON,
    "query": st.text(max_size=9),
    "documents": st.lists(st.text(max_size=9) | st.fixed_dictionaries({"text": st.text()}), max_size=4) | JSON,
    "top_n": st.integers(-1, 5),
    "return_documents": st.booleans(),
}
OF_PATH = {
    "/v1/embeddings": ("input", "encoding_format", "dimensions", "truncate_prompt_tokens"),
    "/v1/score": ("text_1", "text_2", "truncate_prompt_tokens"),
    "/rerank": ("query", "documents", "top_n", "return_documents", "truncate_prompt_tokens"),
}


@pytest.mark.parametrize("path", OF_PATH)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_sent_is_answered(path: str, data: st.DataObject, embedder: httpx.Client) -> None:
    names = OF_PATH[path]
    required = {name: FIELDS[name] for name in names[: 1 if path == "/v1/embeddings" else 2]}
    optional = {name: FIELDS[name] for name in names if name not in required}
    body = data.draw(st.fixed_dictionaries(required, optional=optional))
    content = json.dumps({"model": "m"} | body)
    answer = embedder.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
