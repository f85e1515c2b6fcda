"""Blocks of an answer: one open at a time, the same however the text was cut, tokens counted by what they say."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.outputs import RequestOutput
from shoal.server.answers import Delta, FunctionDelta, ToolCallDelta
from shoal.server.blocks import BlockReader, Closed, Grown, Opened
from shoal.server.conversation import Piece


def piece(*deltas: Delta, tokens: int = 1, end: bool = False) -> Piece:
    output = RequestOutput(request_id="r", token_ids=(1,) * tokens)
    return Piece(0, list(deltas), output, "stop" if end else None)


def thought(text: str) -> Delta:
    return Delta(reasoning_content=text)


def said(text: str) -> Delta:
    return Delta(content=text)


def call(index: int, name: str, arguments: str) -> Delta:
    return Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(name, arguments), id=f"c{index}")])


def more(index: int, arguments: str) -> Delta:
    return Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(arguments=arguments))])


def shape(reader: BlockReader) -> list[tuple[str, str, str]]:
    return [(block.kind, block.name, block.text) for block in reader.blocks]


def test_one_block_is_open_at_a_time() -> None:
    reader = BlockReader()
    pieces = [
        piece(thought("hm")),
        piece(said("I look.")),
        piece(call(0, "f", '{"a"')),
        piece(more(0, ": 1}")),
        piece(call(1, "g", "{}")),
        piece(end=True),
    ]
    opened = None
    for event in [event for each in pieces for event in reader.feed(each)]:
        match event:
            case Opened(block):
                assert opened is None
                opened = block
            case Grown(block, _):
                assert opened is block
            case Closed(block):
                assert opened is block
                opened = None
    assert opened is None
    assert shape(reader) == [
        ("reasoning", "", "hm"),
        ("text", "", "I look."),
        ("call", "f", '{"a": 1}'),
        ("call", "g", "{}"),
    ]
    assert [block.index for block in reader.blocks] == [0, 1, 2, 3]
    assert reader.called


def test_reasoning_tokens_are_those_before_the_mark() -> None:
    reader = BlockReader()
    # Two tokens of an opening mark, held back, then the thought; the closing mark and the text are the answer's.
    for each in (
        piece(tokens=2),
        piece(thought("hm"), tokens=3),
        piece(),
        piece(said("Yes"), tokens=2),
        piece(end=True),
    ):
        reader.feed(each)
    assert reader.reasoning_tokens == 5
    cut_off = BlockReader()
    for each in (piece(thought("hm"), tokens=3), piece(tokens=4, end=True)):
        cut_off.feed(each)
    assert cut_off.reasoning_tokens == 7


def test_white_space_between_blocks_is_none_of_its_own() -> None:
    reader = BlockReader()
    for each in (piece(thought("hm")), piece(said("\n\n")), piece(call(0, "f", "{}")), piece(said("\n"), end=True)):
        reader.feed(each)
    assert [block.kind for block in reader.blocks] == ["reasoning", "call"]
    alone = BlockReader()
    alone.feed(piece(said("\n"), end=True))
    assert shape(alone) == [("text", "", "\n")]
    before = BlockReader()
    for each in (piece(said("\n ")), piece(said("x \n")), piece(said(" "), end=True)):
        before.feed(each)
    assert shape(before) == [("text", "", "\n x \n ")]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["r:hm", "r: \n", "t:Yes.", "t:\n", "t: and", "c:{}"]), max_size=8),
    st.lists(st.integers(1, 3), max_size=20),
)
def test_cutting_changes_nothing(parts: list[str], cuts: list[int]) -> None:
    def deltas(chopped: bool) -> list[Delta]:
        found, calls, sizes = [], 0, iter(cuts)
        for kind, _, text in (part.partition(":") for part in parts):
            if kind == "c":
                found.append(call(calls, "f", text))
                calls += 1
                continue
            while text:
                size = next(sizes, len(text)) if chopped else len(text)
                found.append((thought if kind == "r" else said)(text[:size]))
                text = text[size:]
        return found

    readers = []
    for chopped in (False, True):
        reader = BlockReader()
        for delta in deltas(chopped):
            reader.feed(piece(delta))
        reader.feed(piece(end=True))
        readers.append(shape(reader))
    assert readers[0] == readers[1]
