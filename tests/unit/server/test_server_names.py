"""Several names of one model, pages of other origins, a chat template of the operator's own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from serverkit import Served

from sampling_kit import byte_level_tokenizer
from shoal.engine.errors import ChatTemplateError
from shoal.engine.options import served_names
from shoal.engine.text.tokenizer import load_tokenizer

ASK = {"prompt": "Hi", "max_tokens": 2}


@pytest.mark.parametrize(
    ("model", "given", "names"),
    [
        ("smollm2-135m", (), ("smollm2-135m",)),
        ("org/name", (), ("name", "org/name")),
        ("org/name:Q4_K_M@main", (), ("name:Q4_K_M@main", "org/name", "name")),
        ("org/name", ("a", "b"), ("a", "b")),
        ("m", ("team/a", "b", "b"), ("team/a", "b", "a")),
        ("./folder/m.gguf", (), ("m",)),
        ("s3://bucket/m", (), ("m",)),
    ],
)
def test_names_of_a_model(model: str, given: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert served_names(model, given) == names


def test_a_model_answers_to_all_its_names(serve: Callable[..., Served]) -> None:
    served = serve(aliases=("org/script", "default"))
    with served.client() as client:
        for name in ("script", "org/script", "default"):
            answer = client.post("/v1/completions", json={**ASK, "model": name})
            assert (answer.status_code, answer.json()["model"]) == (200, name)
            assert client.get(f"/v1/models/{name}").json()["id"] == name
        assert [card["id"] for card in client.get("/v1/models").json()["data"]] == [
            "script",
            "org/script",
            "default",
        ]
        refused = client.post("/v1/completions", json={**ASK, "model": "other"})
        assert refused.status_code == 404
        assert "'script', 'org/script', 'default'" in refused.json()["error"]["message"]


def test_pages_of_named_origins_may_call_without_a_key_for_the_preflight(serve: Callable[..., Served]) -> None:
    served = serve(cors_origins=("https://app.example",), api_key="k")
    asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
    with served.client() as client:
        preflight = client.options("/v1/chat/completions", headers=asks)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        refused = client.post("/v1/completions", json=ASK, headers={"origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"
        other = client.options("/v1/chat/completions", headers={**asks, "origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_no_other_origin_may_by_default(served: Served) -> None:
    with served.client() as client:
        answer = client.get("/v1/models", headers={"origin": "https://app.example"})
        assert "access-control-allow-origin" not in answer.headers


def test_a_chat_template_from_a_file_replaces_the_models_own(tmp_path: Path) -> None:
    model, file = tmp_path / "model", tmp_path / "chat.jinja"
    model.mkdir()
    (model / "tokenizer.json").write_text(byte_level_tokenizer().json)
    (model / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "own"}'
    )
    file.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    messages = [{"role": "user", "content": "Hi"}]
    assert load_tokenizer(model, tmp_path / "cache").render_chat(messages) == "own"
    assert load_tokenizer(model, tmp_path / "cache", chat_template=file).render_chat(messages) == "[Hi]"
    for text, words in (("{% for %}", "does not parse, line 1"), (None, "can't be read")):
        file.write_text(text) if text is not None else file.unlink()
        with pytest.raises(ChatTemplateError, match=words):
            load_tokenizer(model, tmp_path / "cache", chat_template=file)
