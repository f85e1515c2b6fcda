"""Replicas that the end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2ekit import Running, running, tiny_llama

from shoal.engine.options import EngineOptions


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def _tiny(tiny_model: Path) -> Iterator[Running]:
    options = EngineOptions(
        model=str(tiny_model),
        served_name="tiny",
        num_blocks=200,
        max_num_seqs=32,
        max_num_batched_tokens=128,
        threads=1,
    )
    with running(options) as replica:
        yield replica


@pytest.fixture
def tiny(_tiny: Running) -> Iterator[Running]:
    """The random-weight replica; after each test nothing may be left in it."""
    yield _tiny
    _tiny.check()


@pytest.fixture(scope="session")
def _smollm2(smollm2_path: Path) -> Iterator[Running]:
    options = EngineOptions(model=str(smollm2_path), served_name="smollm2", num_blocks=512, max_model_len=2048)
    with running(options) as replica:
        yield replica


@pytest.fixture
def smollm2(_smollm2: Running) -> Iterator[Running]:
    """The real model; after each test nothing may be left in it."""
    yield _smollm2
    _smollm2.check()
