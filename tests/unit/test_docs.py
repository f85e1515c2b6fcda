"""Commands, options, fields of fleet.yaml, files and variables that the docs and the README name exist."""

import ast
import dataclasses
import importlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import typer
import yaml

from shoal.cli.registry import COMMANDS
from shoal.fleet.config import FleetConfig
from shoal.fleet.config_file import parse_config

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
FENCE = re.compile(r"^(```|~~~)(\w*)[^\n]*\n(.*?)^\1", re.MULTILINE | re.DOTALL)
OTHERS_OPTIONS = frozenset(
    {
        "--mem-fraction-static",  # of SGLang
        "--lora-modules",  # of vLLM
        "--attention-backend",  # of vLLM
    }
)


@dataclass(frozen=True)
class Text:
    """A page cut into fenced blocks (language, text), inline code and what is left."""

    blocks: tuple[tuple[str, str], ...]
    inline: tuple[str, ...]
    prose: str


@cache
def read(page: Path) -> Text:
    raw = page.read_text()
    blocks = tuple((language, text) for _, language, text in FENCE.findall(raw))
    prose = FENCE.sub("", raw)
    return Text(blocks, tuple(re.findall(r"`([^`\n]+)`", prose)), prose)


def command_lines(text: Text) -> Iterator[str]:
    """Lines that run `shoal`, without prompts, variables before it, comments, and what a pipe leads to."""
    lines = [line for _, block in text.blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in (*lines, *text.inline):
        found = re.match(r"^(?:\$ )?(?:\w+=\S* )*(?:\S*/)?shoal((?: .*)?)$", line.strip())
        if found and found.group(1):
            yield re.split(r"\s#|[|;&>]", found.group(1))[0].strip()


@cache
def command(name: str) -> Any:
    """The click command of a `shoal` command, as `shoal.cli.entry` makes it."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command()(target)
        target = app
    return typer.main.get_command(target)


def options(found: Any) -> set[str]:
    return {"--help", *(o for p in found.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-"))}


@cache
def every_option() -> frozenset[str]:
    def of(found: Any) -> set[str]:
        nested = getattr(found, "commands", {})
        return options(found).union(*(of(c) for c in nested.values()))

    return frozenset({"--version"}.union(*(of(command(name)) for name in COMMANDS)))


def faults(line: str) -> list[str]:
    """What of a command line doesn't exist."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    name = words[0]
    if name in ("…", "COMMAND") or name in ("--help", "--version"):
        return []
    if name not in COMMANDS:
        return [f"no command {name!r}"]
    found, rest = command(name), words[1:]
    if hasattr(found, "commands") and rest:
        # `shoal plan MODEL` is `shoal plan model MODEL`, and `shoal simulate FILE` is `shoal simulate run FILE`.
        default = found.commands.get({"plan": "model", "simulate": "run"}.get(name, ""), found)
        if name != "plan" and re.fullmatch(r"[a-z][\w-]*", rest[0]) and rest[0] not in found.commands:
            return [f"no command {name} {rest[0]!r}"]
        found = found.commands.get(rest[0], default)
    given = [word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return [f"no option {option!r} of {name}" for option in given if option not in options(found)]


def test_the_check_finds_what_does_not_exist() -> None:
    assert faults("serve smollm2-135m --replicas 2") == []
    assert faults("bench sweep http://x --ttft=200 -n 3") == []
    assert faults("imagine x") == ["no command 'imagine'"]
    assert faults("simulate fleet.yaml --rate 3") == []
    assert faults("simulate draw") == ["no command simulate 'draw'"]
    assert faults("bench draw") == ["no command bench 'draw'"]
    assert faults("serve --replica 2") == ["no option '--replica' of serve"]
    sample = Text((("", "$ K=1 shoal serve a \\\n  --tp 2 | tee x # --no\nmake serve\n"),), ("shoal pull",), "")
    assert list(command_lines(sample)) == ["serve a    --tp 2", "pull"]


@pages
def test_commands_and_options_exist(page: Path) -> None:
    found = [f"shoal {line}: {fault}" for line in command_lines(read(page)) for fault in faults(line)]
    for span in read(page).inline:
        option = re.match(r"--[a-z][\w-]+", span)
        if option and option.group() not in every_option() | OTHERS_OPTIONS:
            found.append(f"`{span}`: no command has this option")
    assert not found


FOREIGN = ("adapters", "launch", "emit", "readers", "wheels.py", "html.py", "page.py")
"""Folders and files with options of other programs, or with variables of CSS."""


def test_options_that_messages_and_comments_name_exist() -> None:
    unknown = [
        f"{file.relative_to(ROOT)}: {option}"
        for file in (ROOT / "src").rglob("*.py")
        if not set(FOREIGN) & set(file.parts)
        for option in re.findall(r"--[a-z][\w-]+", file.read_text())
        if option not in every_option()
    ]
    assert not unknown


@pages
def test_linked_files_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", read(page).prose)
    local = [t for t in targets if not re.match(r"[a-z]+:", t)]
    missing = [t for t in local if t.split("#")[0] and not (page.parent / t.split("#")[0]).exists()]
    assert not missing
    for target in local:
        file, _, anchor = target.partition("#")
        if anchor and (file.endswith(".md") or not file):
            headings = re.findall(r"^#+ (.+)$", (page.parent / file if file else page).read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}, (
                target
            )


@pages
def test_variables_are_read_somewhere(page: Path) -> None:
    raw = page.read_text()
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.py"), ROOT / "Makefile"]
    source = "\n".join(file.read_text() for file in files)
    assert {name for name in re.findall(r"SHOAL_[A-Z_]+\b", raw) if name not in source} == set()


def test_every_variable_that_is_read_is_documented() -> None:
    raw = "\n".join(page.read_text() for page in PAGES)
    pattern = r"""environ(?:\.get\(|\[)["'](SHOAL_[A-Z_]+)["']"""
    read_ = {n for file in (ROOT / "src").rglob("*.py") for n in re.findall(pattern, file.read_text())}
    assert {name for name in read_ if name not in raw} == set()


@pages
def test_metrics_are_served(page: Path) -> None:
    """Under the name that the source gives them, to which Prometheus adds the suffix of the kind.

    Those of replicas are listed there without their common prefix.
    """
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    named = {n for n in re.findall(r"`(shoal_[a-z_]+)`", page.read_text()) if not n.endswith("_")}
    plain = {re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in named}
    listed = {name: re.sub(r"^shoal_fleet_replica_", "(?:shoal_fleet_replica_)?", name) for name in plain}
    assert {name for name, pattern in listed.items() if not re.search(rf'"{pattern}["_]', source)} == set()


# fleet.yaml


def fields_of(kind: Any) -> Mapping[str, Any]:
    """The fields of the struct in a type such as `tuple[Pool, ...] | None`; none where there is none."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {f.name: f.type for f in msgspec.structs.fields(kind)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return get_type_hints(kind)
    return next((found for part in get_args(kind) if (found := fields_of(part))), {})


def documented(section: str) -> str:
    """The text of the heading that names a section of fleet.yaml."""
    parts = re.split(r"^## ", (ROOT / "docs" / "fleet-config.md").read_text(), flags=re.MULTILINE)
    return next((part for part in parts if f"`{section}`" in part.partition("\n")[0]), "")


@pytest.mark.parametrize("section", [name for name, kind in fields_of(FleetConfig).items() if fields_of(kind)])
def test_every_field_of_a_section_is_documented(section: str) -> None:
    text = documented(section)
    assert text, f"no heading for {section}"
    fields = fields_of(fields_of(FleetConfig)[section]).keys()
    if section == "gateway":  # sections of their own
        fields -= {"router", "admission", "keys"}
    assert {name for name in fields if f"`{name}`" not in text} == set()


def test_documented_fields_exist() -> None:
    """Names in the first column of a table, and names with a default in parentheses behind them."""
    known: dict[str, set[str]] = {}
    for section, kind in fields_of(FleetConfig).items():
        known[section] = {section, *fields_of(kind), *(n for k in fields_of(kind).values() for n in fields_of(k))}
    text = (ROOT / "docs" / "fleet-config.md").read_text()
    unknown = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        names = set().union(*(known.get(s, set()) for s in re.findall(r"`(\w+)`", head)))
        tables = re.findall(r"^\| *field *\|[^\n]*\n(?:\|[^\n]*\n)+", body, re.MULTILINE)
        cells = [line.split("|")[1] for table in tables for line in table.splitlines()[2:]]
        told = {n for cell in cells for n in re.findall(r"`([a-z_]+)`", cell)}
        told |= set(re.findall(r"`([a-z_]+)` \((?=\d|true|false|none)", body))
        unknown += [f"{head}: {name}" for name in sorted(told - names)]
    assert not unknown


@pages
def test_yaml_examples_are_accepted(page: Path) -> None:
    for language, block in read(page).blocks:
        if language in ("yaml", "yml") and "pools" in (parsed := yaml.safe_load(block)):
            parse_config(parsed)


def test_the_example_file_is_accepted() -> None:
    for file in (ROOT / "examples").glob("*.yaml"):
        parse_config(yaml.safe_load(file.read_text()))


# Dependencies.

PACKAGES = {"yaml": "pyyaml", "zmq": "pyzmq", "prometheus_client": "prometheus-client"}
"""Where the name of a package isn't the one it is imported by; `opentelemetry` begins several names."""


def tabled() -> set[str]:
    """The packages that docs/dependencies.md names in its tables."""
    lines = (ROOT / "docs" / "dependencies.md").read_text().splitlines()
    cells = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    return {name.strip() for row in cells for name in row[-2].split(",")}


def test_every_package_that_is_imported_is_documented() -> None:
    imported = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    others = {PACKAGES.get(name, name) for name in imported - set(sys.stdlib_module_names) - {"shoal"}}
    assert {name for name in others if not any(p.startswith(name) for p in tabled())} == set()


def test_every_package_that_is_installed_is_documented() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(p for extra in project["optional-dependencies"].values() for p in extra)]
    names = {re.match(r"[\w-]+", entry).group() for entry in listed} - {"shoal"}  # type: ignore[union-attr]
    assert names - tabled() == set()
