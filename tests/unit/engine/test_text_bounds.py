"""Long texts are encoded without the GIL and to the same ids; the bound on tokens never claims too many."""

import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from sampling_kit import byte_level_tokenizer, sentencepiece_tokenizer
from shoal.engine.text.bounds import length_bound
from shoal.engine.text.convert import ConvertedTokenizer, TokenizerMeta
from shoal.engine.text.tokenizer import Tokenizer, load_tokenizer


def _trained(normalizer: Any = None, *, alphabet: bool = True, pre: Any = None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = normalizer
    inner.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
        show_progress=False,
    )
    inner.train_from_iterator(["aaaa aaaaaaaa the quick    brown fox\n\n\n\n ###### ######## 12345"] * 20, trainer)
    return inner


BOUNDED = {
    "byte level": lambda: byte_level_tokenizer()._tokenizer,
    "sentencepiece": lambda: sentencepiece_tokenizer()._tokenizer,
    "trained": _trained,
    "composing": lambda: _trained(normalizers.NFC()),
    "an alphabet with holes": lambda: _trained(alphabet=False),
}
LONG = st.text(alphabet=st.sampled_from("a #\n\t1e\u0301\u0323é中😀\x04q"), min_size=0, max_size=200).map(
    lambda t: t * 12
)


@pytest.mark.parametrize("kind", BOUNDED)
def test_no_text_has_fewer_tokens_than_the_bound(kind: str) -> None:
    inner = BOUNDED[kind]()
    bound = length_bound(inner)
    assert bound is not None

    @settings(max_examples=60, deadline=None)
    @given(LONG)
    def check(text: str) -> None:
        assert bound.min_tokens(text, 10**6) <= len(inner.encode(text, add_special_tokens=False).ids)

    check()
    assert bound.min_tokens("q" * 100_000, 10**6) > 100
    assert bound.min_tokens("q" * 2**20, 10**6) >= bound.min_tokens("q" * 2**20, 50) >= 50


@pytest.mark.parametrize(
    ("normalizer", "pre"),
    [
        (normalizers.Strip(), None),
        (normalizers.Lowercase(), None),
        (normalizers.Replace("  ", ""), None),
        (None, pre_tokenizers.WhitespaceSplit()),
        (None, pre_tokenizers.Split(" ", "removed")),
    ],
)
def test_a_tokenizer_that_drops_text_has_no_bound(normalizer: Any, pre: Any) -> None:
    assert length_bound(_trained(normalizer, pre=pre)) is None


def test_added_tokens_that_absorb_white_space_have_no_bound() -> None:
    inner = _trained()
    inner.add_special_tokens([tokenizers.AddedToken("<end>", rstrip=True)])
    assert length_bound(inner) is None


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_long_texts_have_the_same_ids(kind: str, smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(smollm2_path) if kind == "byte level" else sentencepiece_tokenizer()
    texts = [
        "The quick brown fox — 漢字 😀\n" * 200,
        "a" * 5000,
        " " * 5000,
        "<|im_start|>user\n" * 300,
        "\x04é" * 2000,
    ]
    for text in texts:
        for special in (True, False):
            plain = tokenizer._tokenizer.encode(text, add_special_tokens=special).ids
            assert tokenizer.encode(text, add_special_tokens=special) == plain
            assert tokenizer.min_tokens(text, 10**6) <= len(plain)


def test_a_vocabulary_that_lacks_control_characters_has_a_longest_token(smollm2_path: Path) -> None:
    """A gateway counts the others (`fleet.gateway.lengths`)."""
    tokenizer = load_tokenizer(smollm2_path)
    longest = tokenizer.max_token_bytes
    assert longest is not None
    for text in ("a" * 5000, "-" * 5000, "漢字😀é\U000e0041" * 500, "=" * 9000):
        assert len(text.encode()) <= longest * len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.encode("\x04", add_special_tokens=False) == []


def test_encoding_a_long_text_leaves_other_threads_running() -> None:
    """vllm#10635: `encode` of 4 MB held the GIL for seconds; now a thread gets its turns meanwhile."""
    tokenizer = Tokenizer(ConvertedTokenizer(_trained().to_str(), TokenizerMeta({}, {}, None, ())))
    done, turns = threading.Event(), 0

    def work() -> None:
        tokenizer.encode("The quick brown fox jumps. " * 20_000)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.wait(0.001):
        turns += 1
    thread.join()
    # With the GIL held there are two or three.
    assert turns >= 20
