"""Tool calls of every family: any cut of a stream gives what the whole gives, whatever the strings hold."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.text.tools import Reasoning, ToolCall, tool_parser
from tool_text_kit import FORMATS, MARKS, TAGGED, WRITERS, is_tag_end, read

STRINGS = st.lists(
    st.one_of(st.sampled_from(MARKS), st.sampled_from("\"'\\\n{}[]é "), st.text(max_size=4)), max_size=5
).map("".join)
VALUES = st.recursive(
    st.one_of(STRINGS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(STRINGS, inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["city", "text", "n", "x_1"])
CUTS = st.sets(st.integers(1, 400), max_size=30)


@pytest.mark.parametrize("written", WRITERS)
@given(data=st.data(), around=st.sampled_from([("", ""), ("Let me see.\n", ""), ("Hm. ", " Done.")]), cuts=CUTS)
@settings(max_examples=20, deadline=None)
def test_marks_inside_strings_lose_no_call(written, data, around, cuts):
    """vllm#45167: `</tool_call>`, back-ticks or `[TOOL_CALLS]` inside an argument turned a call into text."""
    tool_format, write = WRITERS[written]
    values = STRINGS.filter(lambda value: not is_tag_end(value)) if written in TAGGED else VALUES
    arguments = st.dictionaries(KEYS, values, max_size=3)
    calls = data.draw(st.lists(st.tuples(st.sampled_from(["f", "get_weather"]), arguments), min_size=1, max_size=3))
    before, after = ("", "") if written.startswith(("llama", "harmony")) else around
    text = before + write(calls) + after
    events = read(tool_format, text)
    found = [event for event in events if isinstance(event, ToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls
    assert "".join(event for event in events if isinstance(event, str)) == before.strip() + after.strip()
    assert read(tool_format, text, cuts) == events
    assert read(tool_format, text, range(len(text))) == events


FRAGMENTS = st.sampled_from(
    [*MARKS, *"\n{}[]\"'\\#xé<;>", "  ", "'''", '{"name": "f", "arguments": {}}', "f(a=1)", "(", "1"]
)


@pytest.mark.parametrize("tool_format", FORMATS)
@given(pieces=st.lists(FRAGMENTS, max_size=14), cuts=CUTS)
@settings(max_examples=100, deadline=None)
def test_any_cut_of_any_text(tool_format, pieces, cuts):
    text = "".join(pieces)
    events = read(tool_format, text)
    assert read(tool_format, text, cuts) == events
    assert read(tool_format, text, range(len(text))) == events
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
    if not calls and tool_format != "harmony":
        assert "".join(events) == text
    json.dumps([e.text if isinstance(e, Reasoning) else str(e) for e in events]).encode()


def _seconds(tool_format, pieces):
    started = time.perf_counter()
    parser = tool_parser(tool_format)
    for piece in pieces:
        parser.push(piece)
    parser.flush()
    return time.perf_counter() - started


def grows_too_fast(tool_format, start, unit, size, *, by_character):
    """Whether ten times the text takes far more than ten times as long, in the best of several runs."""
    small, large = (start + unit * (1 + n // len(unit)) for n in (size, 10 * size))
    times = []
    for _ in range(3):
        once, tenfold = (_seconds(tool_format, list(t) if by_character else [t]) for t in (small, large))
        times.append(tenfold / max(once, 0.004))
        if times[-1] < 40:
            return None
    return f"{start!r} and {unit!r}: {min(times):.0f} times as long"


UNITS = st.lists(FRAGMENTS, min_size=1, max_size=5).map("".join)


@pytest.mark.parametrize("tool_format", FORMATS)
@given(start=st.lists(FRAGMENTS, max_size=3).map("".join), unit=UNITS)
@settings(max_examples=12, deadline=None)
def test_time_is_linear(tool_format, start, unit):
    """vllm#55473: 3,200 spaces in a DeepSeek call held the event loop for 16 seconds."""
    assert grows_too_fast(tool_format, start, unit, 10_000, by_character=False) is None
    assert grows_too_fast(tool_format, start, unit, 500, by_character=True) is None


@pytest.mark.parametrize(
    ("tool_format", "start", "unit"),
    [
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f", " "),
        ("hermes", "", '<tool_call>{"a": "</tool_call>"} '),
        ("hermes", "<tool_call>", " "),
        ("qwen_coder", "<function=f>", "<parameter=p>x</parameter>"),
        ("qwen_coder", "", "<function=f><parameter=p>"),
        ("pythonic", "```tool_code\n", "f(a='''"),
        ("mistral", "[TOOL_CALLS]", "f"),
        ("harmony", "<|channel|>", "commentary to=functions."),
    ],
)
def test_long_calls_take_linear_time(tool_format, start, unit):
    assert grows_too_fast(tool_format, start, unit, 20_000, by_character=False) is None
    assert grows_too_fast(tool_format, start, unit, 3_000, by_character=True) is None
