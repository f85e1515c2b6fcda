"""Tokenizer loading and its cache, chat templates against Transformers, special tokens, errors."""

import json
import os
import shutil
from pathlib import Path

import pytest

from sampling_kit import BOS, EOS, byte_level_tokenizer, sentencepiece_tokenizer
from shoal.engine.errors import ChatTemplateError, EngineError, TokenizerError
from shoal.engine.text.chat import render_chat
from shoal.engine.text.detokenize import IncrementalDetokenizer
from shoal.engine.text.tokenizer import load_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n    {% if m.role == 'stop' %}{% break %}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n"
    "{% endfor %}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
    "{% generation %}{% if add_generation_prompt %}<assistant>{% endif %}{% endgeneration %}"
)
MESSAGES = [
    {"role": "system", "content": "Be <b>brief</b> & 'kind' — 漢字"},
    {"role": "user", "content": " hi "},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "<é>"}}}]},
    {"role": "stop", "content": "x"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d'é <x>", "parameters": {"b": 1, "a": 2}}}]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(byte_level_tokenizer().json)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    return folder


def test_directory_load_is_cached_and_follows_changes(model_dir, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = load_tokenizer(model_dir, cache)
    assert first.eos_token_ids == (first.token_id(EOS), 7, 8)
    assert first.bos_token_id == first.token_id(BOS)
    assert first.chat_template == TEMPLATE

    def refuse(path):
        raise AssertionError("a second conversion")

    with monkeypatch.context() as patch:
        patch.setattr("shoal.engine.text.convert._load_with_transformers", refuse)
        again = load_tokenizer(model_dir, cache)
    assert again.meta == first.meta
    assert again.json == first.json
    (model_dir / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert 9 in load_tokenizer(model_dir, cache).eos_token_ids


def test_a_damaged_cache_entry_is_made_again(model_dir, tmp_path):
    cache = tmp_path / "cache"
    whole = load_tokenizer(model_dir, cache)
    (meta,) = cache.rglob("meta.json")
    meta.write_text('{"chat_templ')
    assert load_tokenizer(model_dir, cache).meta == whole.meta
    assert "eos_token_ids" in meta.read_text()
    assert not list(cache.rglob(".partial-*"))


def test_an_unwritable_cache_is_no_fault(model_dir, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert load_tokenizer(model_dir, blocked).vocab_size > 256


def test_missing_and_broken_tokenizers_say_what_is_wrong(model_dir, tmp_path):
    with pytest.raises(TokenizerError, match="no such file"):
        load_tokenizer(tmp_path / "nowhere", tmp_path)
    (model_dir / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot read a tokenizer"):
        load_tokenizer(model_dir, tmp_path / "c")
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUF\x03\x00")
    with pytest.raises(TokenizerError, match=r"x\.gguf"):
        load_tokenizer(broken, tmp_path / "c")
    assert issubclass(TokenizerError, EngineError)


def test_code_that_comes_with_a_tokenizer_is_not_run(model_dir, tmp_path):
    marker = tmp_path / "ran"
    (model_dir / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    config = json.loads((model_dir / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError):
        load_tokenizer(model_dir, tmp_path / "c")
    assert not marker.exists()


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_render_as_in_transformers(tools, prompt):
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [MESSAGES], tools=tools, chat_template=TEMPLATE, add_generation_prompt=prompt, bos_token=BOS
    )
    ours = render_chat(TEMPLATE, MESSAGES, tools=tools, add_generation_prompt=prompt, variables={"bos_token": BOS})
    assert [ours] == expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "does not parse"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages.append(1) }}", "SecurityError|refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses|unsafe|access"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big|range"),
        ("{{ undefined_thing.x }}", "undefined"),
    ],
)
def test_template_failures_are_typed(template, reason):
    with pytest.raises(ChatTemplateError, match=reason):
        render_chat(template, [{"role": "user", "content": "x"}])


def test_no_template_is_an_error_that_says_what_to_do():
    with pytest.raises(ChatTemplateError, match="/v1/completions"):
        byte_level_tokenizer().render_chat([{"role": "user", "content": "x"}])


def test_content_parts_and_tool_arguments_take_the_shape_templates_expect():
    template = "{% for m in messages %}{{ m.content }}|{{ m.tool_calls }}{% endfor %}"
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
    ]
    rendered = render_chat(template, messages)
    assert rendered == "a\nb||[{'function': {'name': 'f', 'arguments': {'x': 1}}}]"
    with pytest.raises(ChatTemplateError, match=r"messages\[0\].content.*image_url"):
        render_chat(template, [{"role": "user", "content": [{"type": "image_url"}]}])


def test_named_templates():
    tokenizer = byte_level_tokenizer({"default": "plain", "tool_use": "with {{ tools | length }} tools"})
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.render_chat(messages) == "plain"
    assert tokenizer.render_chat(messages, tools=TOOLS) == "with 1 tools"


def test_tools_reach_a_model_whose_template_knows_none():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer = byte_level_tokenizer({"default": template})
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    text = tokenizer.render_chat(messages, tools=TOOLS)
    assert text.startswith("<system>Be brief.")
    assert '"name": "f", "description": "d\'é <x>"' in text
    assert '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>' in text
    assert "<tool_response>42</tool_response>" in text
    assert tokenizer.render_chat(messages[1:2], tools=TOOLS).startswith("<system>")
    assert tokenizer.tool_format() == "hermes"


def test_token_bytes_put_together_are_the_text():
    for tokenizer in (byte_level_tokenizer(), sentencepiece_tokenizer()):
        ids = tokenizer.encode("wörld 🐟", add_special_tokens=False)
        assert b"".join(tokenizer.token_bytes(i) for i in ids).decode().strip() == "wörld 🐟"
        assert tokenizer.token_bytes(10**6) == b""
        assert tokenizer.token_text(ids[-1]) == "\ufffd"


def test_a_continuation_keeps_its_leading_space():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode("world", add_special_tokens=False)
    beginning = IncrementalDetokenizer(tokenizer)
    assert beginning.push(ids) == "world"
    continuation = IncrementalDetokenizer(tokenizer, continues=True)
    assert continuation.push(ids) == " world"


def test_special_tokens_show_on_demand():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode(f"he{EOS}")
    assert IncrementalDetokenizer(tokenizer).push(ids) == "he"
    assert IncrementalDetokenizer(tokenizer, skip_special_tokens=False).push(ids) == f"{BOS}he{EOS}"


@pytest.mark.realmodel
def test_gguf_tokenizer_is_transformers_own(smollm2_path: Path, tmp_path: Path):
    from transformers import PreTrainedTokenizerFast

    tokenizer = load_tokenizer(smollm2_path, tmp_path)
    reference = PreTrainedTokenizerFast.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    text = "Hello  wörld, 12345 🐟\n\tdef f(x):\n"
    assert tokenizer.encode(text) == reference(text).input_ids
    messages = [{"role": "user", "content": "Hi — ok?"}]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False) == expected
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.vocab_size == 49152


@pytest.mark.realmodel
@pytest.mark.timeout(400)
def test_gemma_is_sentencepiece_and_has_no_template(gemma3_path: Path):
    tokenizer = load_tokenizer(gemma3_path)
    assert tokenizer.pieces.family == "sentencepiece"
    assert tokenizer.encode("hi")[0] == tokenizer.bos_token_id == 2
    with pytest.raises(ChatTemplateError):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_conversion_leaves_the_model_folder_alone(model_dir, tmp_path):
    before = sorted(os.listdir(model_dir))
    load_tokenizer(model_dir, tmp_path / "cache")
    assert sorted(os.listdir(model_dir)) == before
    shutil.rmtree(tmp_path / "cache")
