"""Kits that the fleet's tests share, and the tiny model."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for folder in ("e2e", "fakes"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

from e2ekit import tiny_llama  # noqa: E402
from fleet_kit import Served, fleet_process  # noqa: E402


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def pair(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A fleet of two real replicas, as `shoal serve --replicas 2` makes it."""
    home = tmp_path_factory.mktemp("home")
    with fleet_process(str(tiny_folder), "--served-name", "tiny", "--replicas", "2", "--num-blocks", "300",
                       home=home) as served:  # fmt: skip
        yield served
