"""A question as a file: the command line's fields, its errors by file and line."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli.entry import main
from shoal.plan.asked import FIELDS, Asked, Refused
from shoal.plan.question_file import MAX_FILE_BYTES, parse_question, read_question_file
from shoal.specs.errors import SpecError

QUESTION = """\
# what we want to serve
model: llama-3.1-8b
gpu: [l40s, h100]
users: 8,192
input: 2k
output: 256
ttft: 2s
prefix-hit: 50%
layout: [tp=1, tp=2 x2]
split: never
spares: ~
percentile: 95
"""


def test_fields_are_read_as_they_are_typed() -> None:
    asked = parse_question(QUESTION, "q.yaml").question.asked
    assert asked == Asked(
        model="llama-3.1-8b", gpu="l40s, h100", users="8,192", input="2k", output="256", ttft="2s",
        prefix_hit="50%", layout="tp=1; tp=2 x2", split="never", percentile="95",
    )  # fmt: skip


def test_yaml_does_not_reinterpret_what_was_typed() -> None:
    """YAML 1.1 reads 1:30 as 90, `no` as false and 1_000 as a thousand; a person typed texts."""
    asked = parse_question("ttft: none\ntpot: 1:30\nsplit: no\nusers: 1_000\nrate: 0x10\n", "q").question.asked
    assert (asked.ttft, asked.tpot, asked.split, asked.users, asked.rate) == ("none", "1:30", "no", "1_000", "0x10")


def test_json_is_a_question_too() -> None:
    text = json.dumps({"model": "llama-3.1-8b", "users": 40, "headroom": 0.2, "gpu": None})
    asked = parse_question(text, "q.json").question.asked
    assert (asked.model, asked.users, asked.headroom, asked.gpu) == ("llama-3.1-8b", "40", "0.2", None)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("model: x\nuser: 3\n", "q.yaml:2: field", "users"),
        ("model: x\n\nusers: {a: 1}\n", "q.yaml:3: users", "a text, a number or a list"),
        ("model: x\nusers: 3\nusers: 4\n", "q.yaml:3: users", "line 2"),
        ("model: x\nusers: [[1]]\n", "q.yaml:2: users", "a text"),
        ("model: [unclosed\nusers: 3\n", "q.yaml:2", "YAML"),
        ("- model: x\n", "q.yaml:1", "a mapping of fields"), ("", "q.yaml:1", "a mapping of fields"),
        ("a: &x [1]\nmodel: *x\n", "q.yaml:2", "aliases"),
        ("models: 3\n", "q.yaml:1: models", "a list"), ("models: []\n", "q.yaml:1: models", "a list"),
        ("models:\n  - users: 3\n", "q.yaml:2: model", "a model for each"),
        ("models:\n  - model: x\n    gpu: h100\n", "q.yaml:3: gpu", "beside `models`"),
        ("models:\n  - model: x\n    layout: tp=1\n", "q.yaml:3: field", "model"),
        ("model: x\nmodels:\n  - model: y\n", "q.yaml:1: model", "no model beside"),
        ("a" * (MAX_FILE_BYTES + 1), "q.yaml", "at most"), ("\x00", "q.yaml", "YAML"),
        ("[" * 5000, "q.yaml", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_line(text: str, place: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_question(text, "q.yaml")
    assert caught.value.field.startswith(place)
    assert said in str(caught.value)


def test_every_problem_of_a_file_is_named_at_once() -> None:
    with pytest.raises(Refused) as caught:
        parse_question("user: 1\nmodel: x\ncontxt: 2\nusers: {}\n", "q.yaml")
    assert [p.field for p in caught.value.problems] == ["q.yaml:1: field", "q.yaml:3: field", "q.yaml:4: users"]


TYPED = st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=20)
NESTED = st.recursive(
    st.text(max_size=5) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    captured = capsys.readouterr()
    return int(done.value.code or 0), captured.out, captured.err


def test_a_file_asks_what_the_options_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "question.yaml"
    path.write_text("model: llama-3.1-8b\ngpu: l40s\nusers: 4\ncontext: 4k\nsplit: never\n")
    options = ["llama-3.1-8b", "--gpu", "l40s", "--users", "4", "--context", "4k", "--split", "never"]
    common = ["--quick", "--json"]
    status, by_file, _ = run(["plan", "--file", str(path), *common], capsys)
    assert status == 0
    assert by_file == run(["plan", *options, *common], capsys)[1]
    # What is typed wins over the file.
    _, changed, _ = run(["plan", "--file", str(path), "--users", "9", *common], capsys)
    assert json.loads(changed)["question"]["users"] == 9


def test_bad_values_name_file_and_line_and_options_their_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "question.yaml"
    path.write_text("model: lama-3.1-8b\ngpu: h999\n\nusers: many\nttft: 2\n")
    status, _, said = run(["plan", "--file", str(path), "--tpot", "3"], capsys)
    assert status == 2
    for line, word in ((1, "did you mean llama-3.1-8b"), (2, "h999"), (4, "many"), (5, "2ms or 2s")):
        assert any(f"question.yaml:{line}" in text and word in text for text in said.splitlines()), (line, said)
    assert "--tpot" in said
    # An option in place of the file's value is not the file's fault.
    _, _, said = run(["plan", "--file", str(path), "--users", "-1"], capsys)
    assert "question.yaml:4" not in said
    assert "--users" in said


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, said = run(["plan", "--file", str(tmp_path / "none.yaml")], capsys)
    assert status == 2
    assert "none.yaml" in said
    (tmp_path / "latin.yaml").write_bytes("model: \xe9".encode("latin-1"))
    with pytest.raises(SpecError, match="UTF-8"):
        read_question_file(tmp_path / "latin.yaml")


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), TYPED, min_size=1))
def test_any_question_that_is_saved_is_read_back(fields: dict[str, str]) -> None:
    """As the page saves it: each value as a JSON string."""
    text = "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields.items())
    asked = parse_question(text, "q").question.asked
    assert {name: getattr(asked, name) for name in fields} == fields


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | NESTED.map(yaml.safe_dump))
def test_any_text_is_a_question_or_an_error(text: str) -> None:
    error: SpecError | None = None
    try:
        parse_question(text, "q")
    except SpecError as refused:
        error = refused
    assert error is None or error.field.startswith("q")
