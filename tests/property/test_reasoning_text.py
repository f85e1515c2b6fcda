"""Reasoning split from a stream: any cut gives what the whole gives, and nothing is lost."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.text.reasoning import (
    THINK,
    ReasoningMarks,
    ReasoningSplitter,
    begins_inside,
    left_open,
    reasoning_marks_of,
)
from shoal.engine.text.tools import Reasoning

MAGISTRAL = ReasoningMarks("[THINK]", "[/THINK]")
GEMMA = ReasoningMarks("<|channel>thought\n", "<channel|>")
FRAGMENTS = st.sampled_from(
    [*"\n <[/>x", "<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>thought\n", "<channel|>", "tool"]
)


def split(marks, text, cuts, *, inside, verbatim):
    splitter, pieces, at = ReasoningSplitter(marks, inside=inside, verbatim=verbatim), [], 0
    for cut in [*sorted(c for c in set(cuts) if c < len(text)), len(text)]:
        pieces += splitter.push(text[at:cut])
        at = cut
    pieces += splitter.flush()
    kinds = [isinstance(piece, Reasoning) for piece in pieces]
    assert kinds == sorted(kinds, reverse=True), "reasoning comes before content"
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    return thought, "".join(piece for piece in pieces if isinstance(piece, str))


@pytest.mark.parametrize("marks", [THINK, MAGISTRAL, GEMMA], ids=lambda m: m.closer)
@given(
    pieces=st.lists(FRAGMENTS, max_size=10),
    cuts=st.sets(st.integers(1, 80), max_size=20),
    inside=st.booleans(),
    verbatim=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_any_cut_of_any_text(marks, pieces, cuts, inside, verbatim):
    text = "".join(pieces)
    thought, said = split(marks, text, (), inside=inside, verbatim=verbatim)
    assert split(marks, text, cuts, inside=inside, verbatim=verbatim) == (thought, said)
    assert split(marks, text, range(len(text)), inside=inside, verbatim=verbatim) == (thought, said)
    if verbatim:
        assert thought + said == text
    else:
        assert thought == thought.strip()
        opened = text.lstrip().removeprefix(marks.opener) if text.lstrip().startswith(marks.opener) else None
        if opened is None and not inside:
            assert (thought, said) == ("", text)
        else:
            before, _, after = (text if opened is None else opened).partition(marks.closer)
            assert (thought, said) == (before.strip(), after.lstrip())


@pytest.mark.parametrize("unit", ["<", "<think>", "\n", "x ", "</thin", "<think>\n</think>"])
def test_time_is_linear(unit):
    times = []
    for size in (1_000, 10_000):
        text = unit * (size // len(unit))
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            split(THINK, text, range(len(text)), inside=True, verbatim=False)
            best = min(best, time.perf_counter() - started)
        times.append(best)
    assert times[1] < 40 * max(times[0], 0.002)


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("{% set content = content.split('</think>')[-1] %}", (), THINK),
        ("<|channel|>analysis", (), None),
        ("… <|channel>thought\n<channel|> …", (), GEMMA),
        ("[THINK] <think>", (), MAGISTRAL),
        ("<|im_start|>", ("<think>", "</think>"), THINK),
        ("<|im_start|>", ("<think>",), None),
        (None, (), None),
    ],
)
def test_marks_are_the_templates_or_the_vocabularys(template, tokens, expected):
    assert reasoning_marks_of(template, lambda mark: mark in tokens) == expected


def test_where_an_answer_begins():
    assert begins_inside(THINK, "<|im_start|>assistant\n<think>\n")
    assert not begins_inside(THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not begins_inside(THINK, "what does <think> mean?<|im_start|>assistant\n")
    assert begins_inside(GEMMA, "<|turn>model\n<|channel>thought\n")
    assert left_open(THINK, "<think>a</think><think>b")
    assert not left_open(THINK, "<think>a</think>b")
    assert not left_open(THINK, "plain")
