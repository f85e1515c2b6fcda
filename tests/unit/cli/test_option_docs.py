"""The table of engine options in docs/fleet-config.md is made of the fields. Run as a program, this writes it."""

import re
from pathlib import Path

import msgspec

from shoal.engine.options import EngineOptions
from shoal.fleet.config_checks import POOL_FIELDS
from shoal.specs.option import option_fields

PAGE = Path(__file__).parents[3] / "docs" / "fleet-config.md"
BEGIN, END = "<!-- Generated: python tests/unit/cli/test_option_docs.py -->\n", "<!-- End -->\n"


def shown(default: object) -> str:
    """Return a default as it stands in a file of YAML."""
    if default is None or default == ():
        return "none"
    return f"`{default}`" if isinstance(default, str) else str(default).lower()


def table() -> str:
    defaults = {field.name: field.default for field in msgspec.structs.fields(EngineOptions)}
    lines = ["| option | default | command line | meaning |", "|---|---|---|---|"]
    for name, field in option_fields(EngineOptions).items():
        if name not in POOL_FIELDS:
            spelled = f"`--{field.parameter.replace('_', '-')}`" if field.option.on_command_line else ""
            lines.append(f"| `{name}` | {shown(defaults[name])} | {spelled} | {field.help} |")
    return "\n".join(lines) + "\n"


def parts(page: str) -> tuple[str, str, str]:
    """Return what stands before the table, the table, and what stands behind it."""
    before, _, rest = page.partition(BEGIN)
    written, _, after = rest.partition(END)
    return before, written.strip("\n") + "\n", after


def test_the_documented_options_are_the_fields() -> None:
    assert parts(PAGE.read_text())[1] == table(), "run this file as a program"


def test_every_field_states_its_option() -> None:
    missing = set(EngineOptions.__struct_fields__) - set(option_fields(EngineOptions))
    assert missing == {"model", "served_name"}, "they are the command's own"


def test_help_names_every_choice() -> None:
    for field in option_fields(EngineOptions).values():
        unnamed = [choice for choice in field.choices if not re.search(rf"\b{choice}\b", field.help)]
        assert not unnamed, field.name


def write() -> None:
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    write()
