"""What Python packs is what the compiler laid out: csrc/kernels/interface.h and the text that a library carries."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from shoal.engine.ops import quantized
from shoal.engine.ops.kernels import select_kernels
from shoal.engine.ops.native_interface import read_interface
from shoal.engine.ops.native_library import INTERFACE, NativeLibrary, backend, find_library

HEADER = Path(__file__).parents[3] / "csrc" / "kernels" / "interface.h"
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def library() -> NativeLibrary:
    found = backend().library
    if found is None:
        pytest.skip(backend().detail)
    return found


def compiled(source: str, target: Path, *arguments: str) -> Path:
    target.with_suffix(".cpp").write_text(source)
    command = ["c++", "-std=c++20", "-Wno-invalid-offsetof", *arguments, f"-I{HEADER.parent}"]
    subprocess.run([*command, str(target.with_suffix(".cpp")), "-o", str(target)], check=True, timeout=120)
    return target


@needs_compiler
def test_every_field_is_packed_where_the_compiler_put_it(library: NativeLibrary, tmp_path: Path) -> None:
    places = [(name, field) for name, of in library.structs.items() for field in of.fields]
    assert len(library.structs) > 20
    lines = [f'std::printf("{name} %zu\\n", sizeof({name}));' for name in library.structs]
    lines += [f'std::printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for name, field in places]
    source = '#include <cstddef>\n#include <cstdio>\n#include "interface.h"\nusing namespace shoal;\nint main() {\n'
    printed = subprocess.run(
        [compiled(source + "\n".join(lines) + "}", tmp_path / "places")], capture_output=True, text=True, check=True
    )
    expected = dict(line.split() for line in printed.stdout.splitlines())
    for name, of in library.structs.items():
        assert struct.calcsize(of.format) == int(expected[name]), name
        before = ""
        for field, code in of.fields.items():
            at = struct.calcsize(before + code) - struct.calcsize(code)
            assert at == int(expected[f"{name}.{field}"]), (name, field)
            before += code


@needs_compiler
def test_the_package_is_of_this_interface(tmp_path: Path) -> None:
    """Who changes interface.h must change INTERFACE, or libraries built before would be taken for new ones."""
    source = '#include "interface.h"\nextern "C" const char* shoal::shoal_interface() { return INTERFACE; }'
    built = NativeLibrary(compiled(source, tmp_path / "interface.so", "-shared", "-fPIC"))
    assert f"{built.checksum:#x}" == f"{INTERFACE:#x}"


@needs_compiler
@pytest.mark.parametrize(
    "source",
    [
        'extern "C" int shoal_kernels_version() { return 7; }',
        'extern "C" const char* shoal_interface() { return "struct Linear { const void* x; };"; }',
    ],
    ids=["before there was one", "another"],
)
def test_a_stale_library_is_not_used_and_the_error_names_make(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compiled(source, tmp_path / "stale.so", "-shared", "-fPIC")
    monkeypatch.setenv("SHOAL_KERNELS_LIBRARY", str(path))
    assert find_library() == path
    found = backend.__wrapped__()
    assert (found.library, found.isas) == (None, ())
    assert str(path) in found.detail
    assert "built from other sources" in found.detail
    assert "`make`" in found.detail


def test_kernels_that_do_not_run_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.ops.kernels.backend", lambda: backend.__wrapped__())
    monkeypatch.setenv("SHOAL_KERNELS_LIBRARY", "")
    with pytest.raises(ValueError, match=r"SHOAL_KERNELS='native-avx2'.*without a C\+\+ compiler"):
        select_kernels("native-avx2")
    assert select_kernels().name == "cpu"


def test_a_field_that_is_forgotten_or_unknown_is_an_error(library: NativeLibrary) -> None:
    assert library.pack.Rotation(cos=1, sin=2) == struct.pack("2P", 1, 2)
    with pytest.raises(TypeError, match="sin"):
        library.pack.Rotation(cos=1)
    with pytest.raises(TypeError, match="tan"):
        library.pack.Rotation(cos=1, sin=2, tan=3)


def test_a_field_of_unknown_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown type: half x"):
        read_interface("struct Half { half x; };")


def test_weights_are_laid_out_as_the_kernels_read_them(library: NativeLibrary) -> None:
    assert (library.constants["PANEL"], library.constants["GROUP"]) == (quantized.PANEL, quantized.GROUP)
