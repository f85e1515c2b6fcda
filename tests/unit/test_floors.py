"""The house rules that a reader can't check by eye: who imports whom, what stays pure, how long a file may be."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shoal"
FLOORS = (
    *("specs", "policy", "plan", "workload", "sim"),
    *("http", "engine", "server", "fleet", "bench", "observe", "cli"),
)
# Free of frameworks, so that planning starts at once and runs anywhere.
LIGHT = ("specs", "policy", "plan", "workload", "sim")
HEAVY = {
    *("torch", "transformers", "tokenizers", "safetensors", "llguidance", "huggingface_hub", "fsspec"),
    *("http", "urllib", "socket", "ssl", "requests", "httpx", "aiohttp", "starlette", "uvicorn", "fastapi", "zmq"),
    *("pydantic", "prometheus_client", "openai", "subprocess", "ray"),
}
# What belongs to `http/` and `server/`: an engine answers callers in its own process.
HTTP = {"starlette", "uvicorn", "httptools", "httpx", "fastapi", "h11"}
# A policy is told the time and gets its randomness as a seed; it starts nothing.
IMPURE = {
    "time",
    "datetime",
    "random",
    "secrets",
    "threading",
    "asyncio",
    "multiprocessing",
    "concurrent",
    "os",
    "io",
}
LONGEST_FILE_LINES = 350
# The package's own front door: hands out `LLM` on first use.
TOPS = ("__init__", "__main__")


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement's target, as a dotted name."""

    module: str
    line: int
    checking_only: bool
    """Under `if TYPE_CHECKING:`: never executed."""
    names: tuple[str, ...] = ()
    """What is taken from the module."""


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def floor_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checking = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    package = ("shoal", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno, id(node) in checking)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            # `from shoal import engine` imports the module `shoal.engine`.
            for name in node.names if module == "shoal" else []:
                yield Import(f"shoal.{name.name}", node.lineno, id(node) in checking)
            yield Import(module, node.lineno, id(node) in checking, tuple(name.name for name in node.names))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno, id(node) in checking)


def module_of(path: Path) -> str:
    """The dotted name of a source file's module."""
    return ".".join(("shoal", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported_names(path: Path) -> Iterator[str]:
    """Dotted names that a file imports: modules, or what is taken from them."""
    for found in imports(path):
        yield from (f"{found.module}.{name}" for name in found.names) if found.names else [found.module]


def known(name: str, modules: dict[str, Path]) -> str | None:
    """The module of ours that a dotted name is, or is taken from."""
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules and parent != "shoal" else None


def strongly_connected(graph: dict[str, set[str | None]]) -> list[set[str]]:
    """The groups of nodes that reach each other."""

    def reach(start: str, edges: dict[str, set[str]]) -> set[str]:
        seen, waiting = {start}, [start]
        while waiting:
            for target in edges[waiting.pop()]:
                if target not in seen:
                    seen.add(target)
                    waiting.append(target)
        return seen

    forward = {name: {t for t in targets if t is not None} for name, targets in graph.items()}
    backward: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in forward.items():
        for target in targets:
            backward[target].add(name)
    groups, left = [], dict.fromkeys(graph)
    while left:
        name = next(iter(left))
        group = reach(name, forward) & reach(name, backward)
        groups.append(group)
        for member in group:
            left.pop(member, None)
    return groups


def violations(floors: tuple[str, ...], forbidden: set[str]) -> list[str]:
    """Executed imports of a forbidden top-level module from files of some floors."""
    return [
        f"{path.relative_to(SOURCE)}:{found.line} imports {found.module}"
        for path in sources()
        if floor_of(path) in floors
        for found in imports(path)
        if found.module.split(".")[0] in forbidden and not found.checking_only
    ]


def test_every_package_has_a_floor() -> None:
    packages = {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert packages == set(FLOORS)


def test_a_package_imports_only_from_the_floors_above_it() -> None:
    wrong = []
    for path in sources():
        floor = floor_of(path)
        if floor in TOPS:
            continue
        allowed = FLOORS[: FLOORS.index(floor) + 1]
        for found in imports(path):
            parts = found.module.split(".")
            if parts[0] == "shoal" and len(parts) > 1 and parts[1] in FLOORS and parts[1] not in allowed:
                wrong.append(f"{path.relative_to(SOURCE)}:{found.line} ({floor}) imports {found.module}")
    assert not wrong, "\n".join(wrong)


def test_the_light_floors_import_no_framework() -> None:
    wrong = violations(LIGHT, HEAVY)
    assert not wrong, "\n".join(wrong)


def test_what_a_simulation_shares_knows_no_event_loop() -> None:
    """A simulation runs in virtual time: nothing it is made of may wait for a real clock."""
    wrong = violations(("workload", "sim"), {"asyncio", "threading", "time"})
    assert not wrong, "\n".join(wrong)


def test_the_engine_knows_no_http() -> None:
    wrong = violations(("engine",), HTTP)
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    """In a circle, none of the modules can be read or changed alone; imports inside functions count."""
    modules = {module_of(path): path for path in sources()}
    graph = {
        name: {target for found in imported_names(path) if (target := known(found, modules)) not in (None, name)}
        for name, path in modules.items()
    }
    circles = [sorted(circle) for circle in strongly_connected(graph) if len(circle) > 1]
    assert not circles, circles


def test_policy_is_pure() -> None:
    wrong = violations(("policy",), IMPURE)
    assert not wrong, "\n".join(wrong)


def test_no_module_of_the_public_front_door_is_heavy() -> None:
    front = SOURCE / "__init__.py"
    at_import = {
        node for node in ast.parse(front.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {ast.unparse(node) for node in at_import} <= {"from typing import TYPE_CHECKING, Any"}


def test_files_are_short() -> None:
    long = {
        str(p.relative_to(SOURCE)): n
        for p in sources()
        if (n := len(p.read_text().splitlines())) > LONGEST_FILE_LINES
    }
    assert not long, f"over {LONGEST_FILE_LINES} lines: {long}"


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by name: of two, one would shadow the other's module."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1 and name != "__init__.py"] == []


def test_every_module_says_what_it_is() -> None:
    silent = [str(p.relative_to(SOURCE)) for p in sources() if not ast.get_docstring(ast.parse(p.read_text()))]
    assert not silent, f"no docstring: {silent}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch.nn", ["torch.nn"]),
        ("def f():\n    from shoal import fleet", ["shoal.fleet", "shoal"]),
        ("from .. import engine", ["shoal.engine", "shoal"]),
        ("from ..fleet import x", ["shoal.fleet"]),
        ("import importlib\nimportlib.import_module('shoal.cli')", ["importlib", "shoal.cli"]),
    ],
)
def test_the_checker_sees_every_way_to_import(
    code: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_floors.SOURCE", tmp_path)
    file = tmp_path / "specs" / "module.py"
    file.parent.mkdir()
    file.write_text(code)
    assert [i.module for i in imports(file)] == expected
