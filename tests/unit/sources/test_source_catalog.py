"""The catalog, and the real model behind its default name."""

import hashlib
from pathlib import Path

import pytest

from shoal.engine.sources import DEFAULT_MODEL, catalog


def test_every_entry_is_whole() -> None:
    models = catalog()
    assert DEFAULT_MODEL in models
    for model in models.values():
        assert len(model.sha256) == 64
        assert model.file.endswith(".safetensors" if model.directory else ".gguf")
        assert any(w.parts or w.folder for w in model.wheels), f"{model.name}: no wheel carries the file"
        assert any(w.notices for w in model.wheels), f"{model.name}: no wheel carries the licence"
        for wheel in model.wheels:
            assert len(wheel.sha256) == 64
            assert wheel.filename.startswith(wheel.project.replace("-", "_") + f"-{wheel.version}-")


@pytest.mark.realmodel
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_cached_file_has_the_catalogs_checksum(name: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue({"smollm2-135m": "smollm2_path", "gemma3-270m": "gemma3_path"}[name])
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == catalog()[name].sha256
