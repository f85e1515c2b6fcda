"""docs/architecture.md matches the code: packages in their order, types and methods of its contracts."""

import ast
import re
from pathlib import Path

import pytest
from test_floors import FLOORS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def contracts() -> list[tuple[str, ast.ClassDef]]:
    """(file, class) of each class in the page's Python block; a comment names the file of those that follow."""
    block = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    found = []
    for part in re.split(r"^# (?=engine/)", block.group(1), flags=re.MULTILINE)[1:]:
        path, _, text = part.partition(":")
        body = text.partition("\n")[2]
        found += [(path, node) for node in ast.parse(body).body if isinstance(node, ast.ClassDef)]
    return found


def in_code(path: str, name: str) -> ast.ClassDef:
    tree = ast.parse((ROOT / "src" / "shoal" / path).read_text())
    return next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)


def fields(node: ast.ClassDef) -> dict[str, str]:
    return {
        n.target.id: ast.unparse(n.annotation)
        for n in node.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }


def methods(node: ast.ClassDef) -> dict[str, str]:
    """Signatures, as if each came from the same module: `torch.Tensor` is `Tensor`."""
    return {
        n.name: f"({ast.unparse(n.args)}) -> {ast.unparse(n.returns) if n.returns else None}".replace(
            "torch.Tensor", "Tensor"
        )
        for n in node.body
        if isinstance(n, ast.FunctionDef)
    }


@pytest.mark.parametrize(("path", "told"), contracts(), ids=lambda x: x.name if isinstance(x, ast.ClassDef) else x)
def test_contracts_are_those_of_the_code(path: str, told: ast.ClassDef) -> None:
    real = in_code(path, told.name)
    assert fields(told) == fields(real) or not fields(told)
    assert methods(told).items() <= methods(real).items()
    assert fields(told) or methods(told)


def test_packages_are_listed_in_the_order_of_their_floors() -> None:
    table = PAGE.partition("## Packages")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE) == list(FLOORS)


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+[\w*]+\.\w+)`", PAGE))
    folders = (ROOT, ROOT / "src" / "shoal", ROOT / "src" / "shoal" / "engine")
    assert not [name for name in named if not any(list(folder.glob(name)) for folder in folders)]
