"""Traces: parsing, prefix structure, scaling, and errors that name the line; prompts that follow from them."""

from pathlib import Path

import pytest

from shoal.bench.prompts import IdPrompts, TextPrompts
from shoal.specs.errors import SpecError
from shoal.workload.load import Segment, part
from shoal.workload.traces import Cut, read_trace, trace_load

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9051690,396,109
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [1, 9]}
{"timestamp": 3000, "input_length": 1536, "output_length": 7, "hash_ids": [1, 2, 3]}
"""


def file(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_azure_lines_become_requests(tmp_path: Path) -> None:
    first, second = read_trace(file(tmp_path, "a.csv", AZURE))
    assert (first.input, first.output, first.blocks) == (374, 44, ())
    assert second.at - first.at == pytest.approx(4.224579)


def test_mooncake_blocks_keep_their_structure(tmp_path: Path) -> None:
    load = trace_load(file(tmp_path, "m.jsonl", MOONCAKE), Cut(), speed=3.0)
    assert [s.at for s in load.sessions] == [0.0, 1.0, 1.0]
    prompts = [s.turns[0].new for s in load.sessions]
    assert [[p.tokens for p in new] for new in prompts] == [[512, 512, 76], [512, 512], [512, 512, 512]]
    ids = IdPrompts("0", range(100, 2000))
    first, second, third = ([t for s in new for t in ids.ids(s)] for new in prompts)
    assert first[:512] == second[:512] == third[:512]
    assert first[512:1024] != second[512:1024]
    # The last block is cut short in the first request and whole in the third: same id, same tokens.
    assert first[1024:] == third[1024:1100]


def test_scaling_and_cutting_keep_what_was_shared(tmp_path: Path) -> None:
    path = file(tmp_path, "m.jsonl", MOONCAKE)
    load = trace_load(path, Cut(length_scale=0.125, max_input=100, max_output=4))
    sizes = [[p.tokens for p in s.turns[0].new] for s in load.sessions]
    assert sizes == [[64, 36], [64, 36], [64, 36]]
    assert [s.turns[0].output for s in load.sessions] == [4, 1, 1]
    assert "3 of 3" in load.notes[0]
    assert load.sessions[0].turns[0].new[0] == load.sessions[1].turns[0].new[0]
    assert trace_load(path, Cut(limit=2)).requests == 2
    assert trace_load(path, Cut(start=1.0)).requests == 2


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,5\n", "line 2"),
        ("a.csv", AZURE + "yesterday,5,5\n", "line 4"),
        ("a.csv", AZURE + "2023-11-16 18:15:46,-5,5\n", "line 4"),
        ("a.jsonl", MOONCAKE + "{}\n", "line 4"),
        ("a.jsonl", MOONCAKE + "nonsense\n", "line 4"),
        ("a.jsonl", '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}\n', "1 hash ids for 600"),
        ("a.jsonl", "\n", "at least one request"),
        ("a.txt", "", "csv or a Mooncake .jsonl"),
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path: Path, name: str, text: str, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        read_trace(file(tmp_path, name, text))


def test_a_load_is_cut_into_consecutive_parts(tmp_path: Path) -> None:
    path = file(tmp_path, "m.jsonl", MOONCAKE)
    load = trace_load(path, Cut())
    first, second = part(load, 0, 2), part(load, 1, 2)
    assert [s.at for s in first.sessions] == [0.0]
    assert [s.at for s in second.sessions] == [0.0, 0.0]
    assert [s.turns for s in (*first.sessions, *second.sessions)] == [s.turns for s in load.sessions]
    with pytest.raises(SpecError, match="at most the 3 sessions"):
        part(load, 0, 4)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="exists"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("azure-llm-2023-conv.csv", 19_366),
        ("azure-llm-2023-code.csv", 8_819),
        ("mooncake-conversation.jsonl", 12_031),
        ("mooncake-synthetic.jsonl", 3_993),
    ],
)
def test_the_published_traces_parse_whole(shared_data: Path, name: str, requests: int) -> None:
    path = shared_data / "traces" / name
    found = read_trace(path)
    assert len(found) == requests
    load = trace_load(path, Cut(), rate=50.0)
    assert load.requests == requests
    assert (requests - 1) / (load.sessions[-1].at - load.sessions[0].at) == pytest.approx(50.0)
    assert [sum(part.tokens for part in s.turns[0].new) for s in load.sessions] == [r.input for r in found]


def test_contents_depend_on_key_and_seed_only() -> None:
    one, other = IdPrompts("1", range(50)), IdPrompts("2", range(50))
    segment = Segment("a", 700)
    assert one.ids(segment) == IdPrompts("1", range(50)).ids(segment)
    assert one.ids(segment) != other.ids(segment)
    assert one.ids(segment) != one.ids(Segment("b", 700))
    assert one.ids(segment)[:600] == one.ids(Segment("a", 600))
    assert set(one.ids(segment)) <= set(range(50))


async def test_text_is_fitted_to_the_tokenizer() -> None:
    async def bytes_of(text: str) -> int:
        return len(text)

    async def words_of(text: str) -> int:
        return len(text.split())

    for count in (bytes_of, words_of):
        texts = TextPrompts("0", count)
        for tokens in (1, 7, 64, 500):
            assert await count(await texts.text(Segment(f"k{tokens}", tokens))) == tokens
    with pytest.raises(SpecError, match="more than 20 tokens: the chat template"):
        await texts.text(Segment("k", 20), reserve=20)
