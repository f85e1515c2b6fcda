"""Fault 3 of issue 14: what is emitted for vLLM and SGLang is parsed by their own parsers; `make test-peers`."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from peers_kit import vllm_python

from shoal.plan.api import ask
from shoal.plan.emit import emit
from shoal.plan.search import search

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

# Reads a JSON list of argument lists, prints what the parser made of each.
_PARSE = """
import importlib, json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
for place in ("launchers", "common", "openai"):
    try:
        make = importlib.import_module(f"vllm.entrypoints.{place}.cli_args").make_arg_parser
        break
    except ModuleNotFoundError:
        continue
parser = make(FlexibleArgumentParser())
for words in json.load(sys.stdin):
    found = parser.parse_args(words)
    kept = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_num_seqs", "max_model_len",
            "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "quantization")
    values = {k: getattr(found, k) for k in kept}
    print("PARSED " + json.dumps({**values, "split": found.kv_transfer_config is not None}, default=str))
"""


def parsed(commands: list[list[str]]) -> list[dict[str, object]]:
    """What vLLM's parser makes of each command's arguments; it ends with an error where it knows one not."""
    done = subprocess.run(
        [vllm_python(), "-c", _PARSE], input=json.dumps(commands), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("PARSED ")]


def test_every_vllm_text_is_parsed_by_vllm() -> None:
    commands: list[list[str]] = []
    wanted: list[dict[str, object]] = []
    for name, gpu, split in (
        ("llama-3.1-8b", "h100", "never"), ("llama-3.1-70b", "h200", "only"), ("deepseek-v3", "h200", "auto"),
        ("gpt-oss-120b", "b200", "never"), ("llama-3.1-8b", "t4", "never"), ("llama-3.1-70b", "mi300x", "never"),
    ):  # fmt: skip
        plan = search(ask(name, gpu=[gpu], users=40, context=4096, split=split, tpot=None, ttft=None))  # type: ignore[arg-type]
        kinds = {(d.layout, d.weights.name, d.kv_dtype, d.split): d for d in plan.designs}
        for design in [d for d in kinds.values() if d.weights.native or d.weights.name == "fp8"][:12]:
            text = emit(plan, "vllm", design=design).replace(" \\\n", " ")
            lines = [shlex.split(line) for line in text.splitlines() if line.startswith("vllm serve")]
            pods = []
            for document in yaml.safe_load_all(emit(plan, "k8s", design=design)):
                if document["kind"] == "Deployment":
                    pods.append(document["spec"]["template"]["spec"]["containers"][0]["args"])
            expected = {
                "data_parallel_size": design.layout.dp, "max_model_len": 4096, "split": design.split,
                "gpu_memory_utilization": 0.92,
            }  # fmt: skip
            for words in [*(line[2:] for line in lines), *pods]:
                commands.append(words)
                wanted.append(expected)
    assert len(commands) > 40
    found = parsed(commands)
    assert len(found) == len(commands)
    for got, expected in zip(found, wanted, strict=True):
        shown = {key: got[key] for key in expected if key != "data_parallel_size" or not got["split"]}
        assert shown == {key: expected[key] for key in shown}


_PARSE_SGLANG = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
for words in json.load(sys.stdin):
    found = parser.parse_args(words)
    print("PARSED " + json.dumps({"tp": found.tp_size, "sequences": found.max_running_requests}))
"""


def test_every_sglang_text_is_parsed_by_sglang() -> None:
    """It called `--cuda-graph-max-bs` ambiguous."""
    python = os.environ.get("SHOAL_SGLANG", "/opt/peers/sglang/bin/python")
    if not Path(python).exists():
        pytest.skip(f"no SGLang at {python}; set SHOAL_SGLANG to the Python of its environment")
    commands: list[list[str]] = []
    wanted: list[tuple[int, int]] = []
    for name, split in (("llama-3.1-8b", "never"), ("llama-3.1-70b", "only"), ("deepseek-v3", "auto")):
        question = ask(name, gpu=["h200"], users=40, context=4096, split=split, engine="sglang", tpot=None)  # type: ignore[arg-type]
        plan = search(question)
        for design in [d for d in plan.designs if d.weights.native or d.weights.name == "fp8"][:12]:
            text = emit(plan, "sglang", design=design).replace(" \\\n", " ")
            lines = [shlex.split(line) for line in text.splitlines() if "sglang.launch_server" in line]
            decode = [words for words in lines if "prefill" not in words]
            commands += [words[3:] for words in decode]
            wanted += [(design.layout.tp * design.layout.dp, design.sequences * design.layout.dp)] * len(decode)
    done = subprocess.run(
        [python, "-c", _PARSE_SGLANG], input=json.dumps(commands), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("PARSED ")]
    assert [(got["tp"], got["sequences"]) for got in found] == wanted
