"""docs/how-to.md does what it says: its blocks are applied to a copy of the source, and its checks are run."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from e2ekit import tiny_llama

ROOT = Path(__file__).parents[2]
API = """
#include "interface.h"
extern "C" const char* shoal::shoal_interface() { return INTERFACE; }
extern "C" const char* shoal::shoal_isa_name(int isa) { return isa ? nullptr : "portable"; }
"""
"""Of csrc/kernels/api.cpp what every kernel needs: the whole library takes a minute to compile."""
BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(heading: str) -> Iterator[tuple[str, str, str]]:
    """(kind, path, text) of every block under a heading that names a file."""
    page = (ROOT / "docs" / "how-to.md").read_text()
    part = next(p for p in re.split(r"^## ", page, flags=re.MULTILINE) if p.startswith(heading))
    yield from BLOCK.findall(part)


def changed(text: str, diff: str) -> str:
    """`text` with each hunk's old lines, which stand in it once, replaced by its new ones."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, f"not there once:\n{old}"
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    return text


def apply(heading: str, root: Path) -> None:
    """Make a copy of the source in `root` and apply a part of the page to it."""
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "csrc", root / "csrc")
    for kind, path, text in blocks(heading):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(changed(target.read_text(), text) if kind == "diff" else text)


def check(root: Path, *arguments: Path) -> list[str]:
    """The lines that the part's check prints."""
    done = subprocess.run(
        [sys.executable, str(root / "check.py"), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def heron(folder: Path, model_type: str, architecture: str) -> Path:
    """A random checkpoint with norms of queries and keys, which are not all ones."""
    import torch
    from safetensors.torch import load_file, save_file

    tiny_llama(folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for layer in range(2):
        for name in ("q_norm", "k_norm"):
            weights[f"model.layers.{layer}.self_attn.{name}.weight"] = torch.rand(12, generator=generator) + 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": model_type, "architectures": [architecture], "head_dim": 12}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_new_family_generates_what_its_like_does(tmp_path: Path) -> None:
    apply("Add a model family", tmp_path)
    ours = heron(tmp_path / "heron", "heron", "HeronForCausalLM")
    like = heron(tmp_path / "qwen3", "qwen3", "Qwen3ForCausalLM")
    found, expected = check(tmp_path, ours, like)
    assert found == expected
    assert len(json.loads(found)) == 8


def test_the_new_scorer_takes_part_in_a_decision(tmp_path: Path) -> None:
    apply("Add a routing scorer", tmp_path)
    chosen, reason = check(tmp_path)
    assert chosen == "quiet"
    assert reason.startswith("considerate:")
    assert "foreign 0.000" in reason


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_new_kernel_agrees_with_its_reference(tmp_path: Path) -> None:
    apply("Add a kernel", tmp_path)
    kernels = tmp_path / "csrc" / "kernels"
    (kernels / "api.cpp").write_text(API)
    library = tmp_path / "kernels.so"
    sources = [str(kernels / f"{name}.cpp") for name in ("api", "pool", "soft_cap")]
    command = ["c++", *compiler_arguments(), "-fPIC", "-pthread", "-shared", *sources, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert check(tmp_path, library) == ["agrees"]


def compiler_arguments() -> list[str]:
    """What setup.py compiles kernels with."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNEL_ARGUMENTS":
            assert isinstance(node.value, ast.IfExp)
            found: list[str] = ast.literal_eval(node.value.orelse)
            return found
    raise AssertionError("setup.py has no KERNEL_ARGUMENTS")


def test_the_files_to_read_are_as_long_as_the_page_says() -> None:
    page = (ROOT / "docs" / "reading.md").read_text()
    rows = re.findall(r"^\| \d+ \| `((?:src|csrc)/[^`]+)` \| (\d+) \|", page, re.MULTILINE)
    assert len(rows) == 12
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path, _ in rows}
    wrong = {path: lengths[path] for path, lines in rows if abs(lengths[path] - int(lines)) > 0.2 * lengths[path]}
    assert not wrong


def test_every_file_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "reading.md").read_text()
    named = set(re.findall(r"`([\w./]+\.(?:py|inc|cpp))`", page))
    missing = [n for n in named if not any((ROOT / folder / n).is_file() for folder in (".", "src/shoal"))]
    assert len(named) > 20
    assert not missing
