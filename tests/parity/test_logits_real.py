"""Real weights out of GGUF files, against Transformers reading the same files; Gemma takes a minute: slow."""

from pathlib import Path
from typing import Any

import pytest
import torch

from parity.direct import Direct, relative_error
from parity.hf import from_gguf
from shoal.engine.weights import open_weights

pytestmark = pytest.mark.realmodel
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=["smollm2_path", pytest.param("gemma3_path", marks=pytest.mark.slow)])
def path(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    return from_gguf(path)


def test_tensors_equal_transformers_dequantized(path: Path, reference: Any) -> None:
    expected = reference.state_dict()
    seen = set()
    for name, tensor in open_weights(path).tensors():
        assert torch.equal(tensor, expected[name]), name
        seen.add(name)
    assert set(expected) - seen <= {"lm_head.weight"}


def test_logits(path: Path, reference: Any) -> None:
    """540 tokens: beyond Gemma's window of 512."""
    ids = torch.randint(10, 20_000, (540,), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    direct = Direct.open(path, blocks=128, block_size=16)
    table = direct.table(len(ids))
    assert relative_error(direct.run(ids, 256, table), expected) < TOLERANCE
    ends = direct.run(ids, 1, table, start=len(ids) - 4)
    assert relative_error(ends, expected[-4:]) < TOLERANCE
