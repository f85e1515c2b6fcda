"""The prefix hash chain, against hashlib and against encodings that would collide."""

import hashlib
import struct

import pytest

from shoal.policy.batching import PrefixHasher, block_hash, make_extras
from shoal.policy.batching.prefix import SEED


def test_hash_is_sha256_of_parent_count_and_wide_tokens() -> None:
    expected = hashlib.sha256(SEED + struct.pack("<Q3q", 3, 1, 70_000, 5)).digest()
    assert block_hash(SEED, (1, 70_000, 5)) == expected
    assert len(expected) == 32


def test_seed_is_fixed_so_that_replicas_agree() -> None:
    assert hashlib.sha256(b"shoal.prefix.v1").digest() == SEED


def test_chain_depends_on_everything_before() -> None:
    hasher = PrefixHasher(2)
    one, other = hasher.hashes((1, 2, 3, 4)), hasher.hashes((9, 2, 3, 4))
    assert len(one) == 2
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one == [block_hash(SEED, (1, 2)), block_hash(block_hash(SEED, (1, 2)), (3, 4))]


def test_partial_block_has_no_hash_until_full() -> None:
    hasher = PrefixHasher(4)
    chain: list[bytes] = []
    hasher.extend(chain, [1, 2, 3], ())
    assert chain == []
    hasher.extend(chain, [1, 2, 3, 4, 5], ())
    assert chain == hasher.hashes((1, 2, 3, 4))


def test_growing_sequence_hashes_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import shoal.policy.batching.prefix as prefix

    calls = []
    original = prefix.block_hash

    def counted(parent: bytes, tokens: list[int], extras: prefix.Extras = ()) -> bytes:
        calls.append(tuple(tokens))
        return original(parent, tokens, extras)

    monkeypatch.setattr(prefix, "block_hash", counted)
    hasher, chain, tokens = PrefixHasher(4), [], []
    for token in range(17):
        tokens.append(token)
        hasher.extend(chain, tokens, ())
    assert calls == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]


def test_extras_are_on_the_first_block_and_reach_the_rest_by_the_chain() -> None:
    hasher = PrefixHasher(1)
    plain = hasher.hashes((1, 2))
    salted = hasher.hashes((1, 2), make_extras(None, "s"))
    assert plain[0] != salted[0]
    assert plain[1] != salted[1]
    assert salted[1] == block_hash(salted[0], (2,))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", None), (None, "a")),
        (("a", "b"), ("b", "a")),
        (("a", ""), ("a", None)),
        (("ab", "c"), ("a", "bc")),
        (("a\x00b", None), ("a", "b")),
        (("", None), (None, None)),
    ],
)
def test_extras_cannot_pass_for_each_other(
    one: tuple[str | None, str | None], other: tuple[str | None, str | None]
) -> None:
    assert block_hash(SEED, (1,), make_extras(*one)) != block_hash(SEED, (1,), make_extras(*other))


def test_token_that_does_not_fit_is_an_error_not_a_truncation() -> None:
    with pytest.raises(struct.error):
        block_hash(SEED, (1 << 64,))
