"""Requests that Schemathesis makes from the served OpenAPI documents, sent to a live fleet and to a live replica.

Nothing may answer with 5xx, hang, crash a replica or leave anything behind; every answer has the documented shape.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2ekit import eventually, running
from fleet_kit import Served, fleet_process

from shoal.engine.options import EngineOptions
from shoal.fleet.gateway.apis import APIS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="needs schemathesis")
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """The served document, for the model that is there and for answers that end soon.

    Made-up names would all be refused at the first look, and answers to the end of the context take for ever.
    """
    for name, schema in document["components"]["schemas"].items():
        properties = schema.get("properties", {})
        if name.endswith("Request") and "model" in properties:
            properties["model"] = {"enum": ["tiny", "tiny", "tiny", "another"]}
        if name in ("ChatRequest", "CompletionRequest"):
            properties["max_tokens"] = {"type": "integer", "minimum": 0, "maximum": 8}
            properties.pop("max_completion_tokens", None)
            properties["n"] = {"type": "integer", "minimum": 1, "maximum": 3}
            schema["required"] = [*schema["required"], "max_tokens"]
        limit = {"MessagesRequest": "max_tokens", "ResponsesRequest": "max_output_tokens"}.get(name)
        if limit is not None:
            properties[limit] = {"type": "integer", "minimum": 0, "maximum": 8}
            schema["required"] = [*{*schema["required"], limit}]
        # What is always refused would keep the rest of a request from being looked at.
        for refused in ("background", "conversation", "prompt", "previous_response_id", "mcp_servers", "container"):
            if limit is not None:
                properties.pop(refused, None)
        if name == "ResponseTool":
            properties["type"] = {"enum": ["function", "custom", "namespace", "web_search"]}
        if name == "MessagesTool":
            properties["type"] = {"enum": [None, "custom"]}
    return document


def schemathesis(url: str, folder: Path, examples: int) -> str:
    document = narrowed(httpx.get(f"{url}/openapi.json", timeout=20, trust_env=False).json())
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run", str(file)]
    command += ["--url", url, "--checks", CHECKS, "--max-examples", str(examples), "--request-timeout", "60"]
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color", "--seed", "1"]
    command += ["--generation-database", "none", "--suppress-health-check", "all"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False, cwd=folder)
    said = found.stdout + found.stderr
    assert found.returncode == 0, said[-20_000:]
    return said


@pytest.mark.slow
def test_a_fleet_bears_what_its_schema_allows(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_folder), "--served-name", "tiny", "--replicas", "2", "--num-blocks", "200"]
    with fleet_process(*arguments, home=tmp_path) as served:
        before = sorted(served.pids())
        schemathesis(served.url, tmp_path, 60)
        assert sorted(served.pids()) == before, "no replica died of it"
        eventually(lambda: idle(served), "nothing is running, waiting or leased", 60)
        assert "Traceback" not in served.said()
        logs = "".join(path.read_text() for path in tmp_path.rglob("tiny-*.log"))
        assert "Traceback" not in logs


def idle(served: Served) -> bool:
    replicas = served.view()["replicas"]
    return all(r["running"] == r["waiting"] == r["inflight"] == 0 for r in replicas)


@pytest.mark.slow
def test_a_replica_bears_what_its_schema_allows(tiny_folder: Path, tmp_path: Path) -> None:
    options = EngineOptions(model=str(tiny_folder), served_name="tiny", num_blocks=200, threads=1)
    with running(options) as replica:
        schemathesis(replica.url, tmp_path, 60)
        replica.check()


def test_the_served_documents_are_whole(pair: Served) -> None:
    document = httpx.get(f"{pair.url}/openapi.json", timeout=20, trust_env=False).json()
    for path, operations in document["paths"].items():
        if "get" in operations and "{" not in path:
            assert httpx.get(f"{pair.url}{path}", timeout=20, trust_env=False).status_code == 200, path
        if "post" in operations:
            answer = httpx.post(f"{pair.url}{path}", json={"model": "nobody"}, timeout=20, trust_env=False)
            assert answer.json()["error"].get("code") != "not_found", path
    other_names = {"/score", "/rerank", "/v2/rerank"}
    assert set(APIS) - other_names <= set(document["paths"]), "whatever is relayed is described"
    assert set(document["paths"]["/v1/responses/{response_id}"]) == {"get", "delete"}
    assert "kv_transfer_params" not in json.dumps(document["components"]["schemas"]["ChatRequest"])
