"""Logits against Transformers, fp32 eager, for every architecture and RoPE variant; however the prompt is cut.

Bugs of other engines covered here (numbers of the engine bug list): 1 and 12 in part (same logits with and without
a cached prefix, whatever the chunks), 26 (long-rope on each side of its boundary and decoding across it, yarn
keys), 27 (windows), 28 (logits vary with the batch).
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from parity.direct import Direct, relative_error
from parity.tiny import ALL, VOCAB, TinyModel, save_tiny
from shoal.engine.batch import SequenceRows

TOLERANCE = 1e-4
BATCH_TOLERANCE = 1e-5


def _ids(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Case:
    """One tiny model on disk, in the engine's hands and in Transformers'."""

    def __init__(self, tiny: TinyModel, directory: Path) -> None:
        self.tiny = tiny
        self.reference = tiny.model()
        self.path = save_tiny(self.reference, directory)

    def direct(self) -> Direct:
        return Direct.open(self.path, max_length=self.tiny.max_length)

    @torch.no_grad()
    def expected(self, ids: list[int]) -> Tensor:
        return self.reference(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.fixture(scope="module", params=ALL, ids=lambda tiny: tiny.name)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param.name))


def test_whole_prompt_and_chunks(case: Case) -> None:
    ids = _ids(case.tiny.longest)
    expected = case.expected(ids)
    direct = case.direct()
    for chunk in (len(ids), 1, 7, 64):
        assert relative_error(direct.run(ids, chunk), expected) < TOLERANCE, f"chunk {chunk}"


def test_cached_prefix_of_another_sequence(case: Case) -> None:
    """Whole blocks of a first sequence serve a second one that begins alike."""
    direct = case.direct()
    first = _ids(case.tiny.longest)
    shared = 5 * direct.kv.block_size
    second = first[:shared] + _ids(case.tiny.longest - shared, seed=1)
    table = direct.table(len(first))
    direct.run(first, len(first), table)
    table = table[:5] + direct.table(len(second) - shared)
    logits = direct.run(second, 13, table, start=shared)
    assert relative_error(logits, case.expected(second)[shared:]) < TOLERANCE


def test_bug_28_mixed_batch_equals_each_alone(case: Case) -> None:
    """Decodes of unequal lengths, a whole prompt, a chunk over a cached prefix and a draft, in one step."""
    tiny = case.tiny
    lengths = [min(max(n, tiny.shortest), tiny.longest) for n in (3, 30, 5, 18, 61, 31, 17, 61)]
    queries = [1, 1, 1, 1, 1, 31, 5, 20]
    direct = case.direct()
    shares, expected, alone = [], [], []
    for seed, (length, rows) in enumerate(zip(lengths, queries, strict=True)):
        ids, start = _ids(length, seed), length - rows
        table = direct.table(length)
        if start:
            direct.run(ids[:start], start, table)
        shares.append(SequenceRows(ids[start:], start, table, rows))
        expected.append(case.expected(ids)[start:])
    for share in shares:
        alone += direct.step([share])
    mixed = direct.step(shares)
    reverse = direct.step(shares[::-1])[::-1]
    for ours, swapped, single, reference in zip(mixed, reverse, alone, expected, strict=True):
        assert relative_error(ours, reference) < TOLERANCE
        assert relative_error(ours, single) < BATCH_TOLERANCE
        assert relative_error(swapped, single) < BATCH_TOLERANCE


def test_bfloat16_is_near(case: Case) -> None:
    """Not a parity claim: both round differently. Guards against a wrong path taken for another dtype."""
    ids = _ids(case.tiny.longest)
    direct = Direct.open(case.path, torch.bfloat16, case.tiny.max_length)
    reference = case.expected(ids)
    ours = direct.run(ids, 17)
    # Of the median row: in some, a router chooses another of two experts that are nearly as good.
    error = (ours - reference).pow(2).mean(1).sqrt().median() / reference.pow(2).mean().sqrt()
    assert float(error) < 0.1
