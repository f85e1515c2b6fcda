"""docs/api.md: its commands run, and it names every endpoint and field of the APIs it describes."""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from e2ekit import Running

from shoal.server.messages.request import MessagesRequest
from shoal.server.openapi import document
from shoal.server.responses.request import ResponsesRequest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
COMMANDS = [
    command for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for command in block.strip().split("\n\n")
]


@pytest.mark.realmodel
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(smollm2: Running, command: str) -> None:
    served = command.replace("http://127.0.0.1:8000", smollm2.url).replace("smollm2-135m", smollm2.name)
    assert served != command
    found = subprocess.run(
        ["bash", "-c", served.replace("curl ", "curl -sS --fail-with-body --max-time 100 ")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout


def test_every_endpoint_is_named() -> None:
    for path in document()["paths"]:
        assert f"{path}`" in PAGE or f"{path} " in PAGE, path


@pytest.mark.parametrize("kind", [ResponsesRequest, MessagesRequest])
def test_every_field_is_named(kind: type[msgspec.Struct]) -> None:
    section = PAGE.split(f"## `/v1/{'responses' if kind is ResponsesRequest else 'messages'}`")[1].split("\n## ")[0]
    for field in msgspec.structs.fields(kind):
        if field.encode_name != "model":
            assert f"`{field.encode_name}`" in section or f"`{field.encode_name}: " in section, field.encode_name
