"""Streamed text equals decoding everything at once, for both families, whatever the tokens and cuts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling_kit import byte_level_tokenizer, sentencepiece_tokenizer
from shoal.engine.text.detokenize import IncrementalDetokenizer
from shoal.engine.text.tokenizer import Tokenizer, load_tokenizer


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: set[int], skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    pieces, at = [], 0
    for cut in [*sorted(c for c in cuts if c < len(ids)), len(ids)]:
        pieces.append(detokenizer.push(ids[at:cut]))
        at = cut
    return [*pieces, detokenizer.flush()]


def check(tokenizer: Tokenizer, ids: list[int], cuts: set[int], skip: bool) -> None:
    expected = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(streamed(tokenizer, ids, cuts, skip)) == expected
    assert "".join(streamed(tokenizer, ids, set(range(len(ids))), skip)) == expected


TINY = {"byte_level": byte_level_tokenizer(), "sentencepiece": sentencepiece_tokenizer()}


@pytest.mark.parametrize("family", TINY)
@given(data=st.data(), cuts=st.sets(st.integers(1, 30), max_size=8), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_random_tokens(family, data, cuts, skip):
    tokenizer = TINY[family]
    # A few ids beyond the vocabulary: a model's logits are often padded.
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    check(tokenizer, ids, cuts, skip)


@pytest.mark.parametrize("family", TINY)
@given(text=st.text(max_size=20), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_text_comes_back_and_no_character_is_shown_half(family, text, skip):
    tokenizer = TINY[family]
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = streamed(tokenizer, ids, set(range(len(ids))), skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in text and "<" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) == text


@pytest.fixture(scope="session", params=["smollm2_path", "gemma3_path"])
def real_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return load_tokenizer(request.getfixturevalue(request.param))


@pytest.mark.realmodel
@pytest.mark.timeout(400)
@given(data=st.data(), cuts=st.sets(st.integers(1, 30), max_size=8), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_random_tokens_of_real_models(real_tokenizer, data, cuts, skip):
    # Low ids are where the byte tokens of both vocabularies lie.
    tokens = st.one_of(st.integers(0, real_tokenizer.vocab_size - 1), st.integers(0, 600))
    check(real_tokenizer, data.draw(st.lists(tokens, max_size=30)), cuts, skip)


@pytest.mark.realmodel
@pytest.mark.timeout(400)
@given(text=st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_text_of_real_models(real_tokenizer, text):
    check(real_tokenizer, real_tokenizer.encode(text, add_special_tokens=False), set(), False)
