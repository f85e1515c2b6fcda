"""`fleet.yaml`: what is accepted, and that every error names path, value and what would do."""

import hashlib
import json
import math
import os
from pathlib import Path

import pytest
from rich.console import Console

from shoal.cli.serve_fleet import serve_file, show_plan
from shoal.fleet.config import ConfigError
from shoal.fleet.config_file import load_config, parse_config
from shoal.specs.errors import SpecError
from shoal.specs.layout import AXES

DIGEST = hashlib.sha256(b"secret").hexdigest()
KEYS = [{"name": "a", "sha256": DIGEST}, {"name": "b", "sha256": DIGEST}]
POOL = {"name": "small", "model": "smollm2-135m"}


def pool(**fields: object) -> dict[str, object]:
    return {"pools": [POOL | fields]}


def test_one_pool_is_enough() -> None:
    config = parse_config(pool())
    only = config.pools[0]
    assert (only.engine, only.count, only.models, only.ranks) == ("shoal", 1, ("smollm2-135m",), 1)
    assert config.router.policy == "default"
    assert config.listen.host == "127.0.0.1"
    assert config.gateway_config().keys == ()


def test_everything_at_once() -> None:
    config = parse_config(
        {
            "listen": {"port": 0, "cors_origins": ["https://app.example"]},
            "pools": [
                POOL | {"replicas": 3, "layout": {"tp": 2}, "options": {"num_blocks": 100}, "aliases": ["chat"]},
                {"name": "big", "model": "big", "engine": "vllm", "urls": ["http://a:1", "http://b:2"],
                 "kv_events_urls": ["tcp://a:5557", "tcp://b:5557"]},
            ],
            "router": {"policy": "prefix", "temperature": 0.1},
            "admission": {"ttft_target": 2.5},
            "health": {"hang_seconds": 5},
            "breaker": {"consecutive": 5},
            "keys": [{"name": "team", "sha256": DIGEST, "models": ["chat"], "tokens_per_minute": 1000}],
            "gateway": {"attempts": 2, "redact": [r"\d{16}"]},
            "supervisor": {"stop_seconds": 3},
        }
    )  # fmt: skip
    assert [p.count for p in config.pools] == [3, 2]
    assert (config.local_ranks, config.local_replicas) == (6, 3)
    gateway = config.gateway_config()
    assert (gateway.attempts, gateway.router.policy, gateway.admission.ttft_target) == (2, "prefix", 2.5)
    assert gateway.keys[0].models == ("chat",)


def split(**decode: object) -> dict[str, object]:
    """A prefill pool, and a decode pool that differs from it."""
    return {"pools": [POOL | {"role": "prefill"}, POOL | {"name": "other", "role": "decode"} | decode]}


def two(**second: object) -> dict[str, object]:
    """Two pools of one name."""
    return {"pools": [POOL, POOL | {"name": "other"} | second]}


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"engine": "vllm", "model": "HuggingFaceTB/SmolLM2-135M", "served_name": "smollm2-135m"},
        {"model": "other", "served_name": "smollm2-135m", "fallback": True},
        {"model": "other", "served_name": "smollm2-135m", "fallback": 2},
        {"options": {"quantize": "int8"}, "fallback": True},
        {"options": {"quantize": "int8"}, "served_name": "small-int8"},
        {"options": {"dtype": "bfloat16"}},
        {"engine": "vllm", "urls": ["http://h:1"]},
    ],
)
def test_pools_that_may_share_a_name(second: dict[str, object]) -> None:
    parse_config(two(**second))


def test_pools_may_be_declared_to_hold_the_same_weights() -> None:
    first = POOL | {"weights": "w"}
    other = {"name": "other", "model": "/m/x.gguf", "engine": "llamacpp", "served_name": "smollm2-135m"}
    parse_config({"pools": [first, other | {"weights": "w"}]})
    with pytest.raises(ConfigError, match="model"):
        parse_config({"pools": [first, other | {"weights": "v"}]})


@pytest.mark.parametrize(
    ("raw", "field", "value", "accepted"),
    [
        ([], "the file", [], "pools"),
        ({}, "pools", None, "required"),
        ({"pools": []}, "pools", [], "1"),
        (pool(replicas="two"), "pools[0].replicas", "two", "a whole number"),
        (pool(replicas=-1), "pools[0].replicas", -1, ">= 1"),
        (pool(replicas=0), "pools[0].replicas", 0, ">= 1"),
        (pool(name="Small Pool"), "pools[0].name", "Small Pool", "^[a-z0-9]"),
        (pool(engine="tgi"), "pools[0].engine", "tgi", "one of shoal, vllm, llamacpp, sglang, openai"),
        (pool(role="server"), "pools[0].role", "server", "one of both, prefill, decode"),
        (pool(options={"dtype": "float64"}), "pools[0].options.dtype", "float64", "one of auto, float32, bfloat16"),
        (pool(options={"quantize": "fp4"}), "pools[0].options.quantize", "fp4", "one of int8, int4"),
        (pool() | {"keys": [KEYS[0] | {"scopes": ["admin"]}]}, "keys[0].scopes[0]", "(not shown)",
         "one of generate, observe"),
        (pool() | {"keys": [KEYS[0] | {"scopes": []}]}, "keys[0].scopes", "(not shown)", "observe or both"),
        (pool(replica=2), "pools[0].replica", 2, "replicas"),
        (pool(layout={"tq": 2}), "pools[0].layout.tq", 2, "tp"),
        (pool(layout={"tp": 0}), "pools[0].layout.tp", 0, "a whole number from 1 to"),
        (pool(layout={"tp": "two"}), "pools[0].layout.tp", "two", "a whole number"),
        (pool(layout={"tp": True}), "pools[0].layout.tp", True, "a whole number"),
        (pool(layout="tp2"), "pools[0].layout", "tp2", "a mapping"),
        (pool(options={"num_block": 5}), "pools[0].options.num_block", 5, "num_blocks"),
        (pool(options={"block_size": 17}), "pools[0].options.block_size", 17, "power of two"),
        (pool(options={"num_blocks": "many"}), "pools[0].options.num_blocks", "many", "a whole number"),
        (pool(layout={"dp": 3, "ep": 2}), "pools[0].layout.ep", 2, "divisor"),
        (pool(role="prefill"), "pools[0].role", "prefill", "another pool of role decode"),
        (pool(role="decode"), "pools[0].role", "decode", "another pool of role prefill"),
        (pool(role="decode", engine="llamacpp"), "pools[0].role", "decode", "hands no KV over"),
        (pool(role="decode", engine="vllm"), "pools[0].options.kv_transfer_config", None, "a connector"),
        (pool(role="decode", layout={"tp": 2}), "pools[0].layout", "tp2", "one rank"),
        (pool(role="decode", urls=["http://h:1"]), "pools[0].urls", "http://h:1", "share this fleet's key"),
        (split(options={"block_size": 32}), "pools[1].options.block_size", 32, "as in pool small"),
        (split(model="other", served_name="smollm2-135m"), "pools[1].model", "other", "as in pool small"),
        (two(model="other", served_name="smollm2-135m"), "pools[1]", "model other", "fallback: true"),
        (two(options={"quantize": "int8"}), "pools[1]", "quantization int8", "by default as in pool small"),
        (two(model="other", aliases=["smollm2-135m"]), "pools[1]", "model other", "serves 'smollm2-135m' too"),
        (two(model="a/b", served_name="smollm2-135m", engine="vllm", urls=["http://h:1"]), "pools[1]", "model a/b",
         "another served_name"),
        (two(engine="vllm", options={"revision": "x"}), "pools[1]", "revision x", "revision by default"),
        (pool(engine="openai"), "pools[0].urls", None, "at least one URL"),
        (pool(engine="vllm", urls=["localhost:80"]), "pools[0].urls[0]", "localhost:80", "http://host:port"),
        (pool(engine="llamacpp", kv_events=True), "pools[0].kv_events", True, "publishes none"),
        (pool(api_key_env="NO_SUCH_VARIABLE"), "pools[0].api_key_env", "NO_SUCH_VARIABLE", "variable that is set"),
        ({"pools": [POOL, POOL]}, "pools[1].name", "small", "no other pool"),
        (pool() | {"router": {"policy": "best"}}, "router.policy", "best", "one of cache_aware, default"),
        (pool() | {"router": {"temperature": -1}}, "router.temperature", -1, "at least 0 seconds"),
        (pool() | {"gateway": {"attempts": 0}}, "gateway.attempts", 0, "greater than 0"),
        (pool() | {"gateway": {"retry_share": 2.0}}, "gateway.retry_share", 2.0, "from 0 to 1"),
        (pool() | {"gateway": {"down_seconds": math.nan}}, "gateway.down_seconds", math.nan, "from 0"),
        (pool() | {"health": {"check_seconds": 0.0}}, "health.check_seconds", 0.0, "above 0"),
        (pool() | {"breaker": {"probes": -1}}, "breaker.probes", -1, "above 0"),
        (pool() | {"admission": {"ttft_target": 0}}, "admission.ttft_target", 0, "greater than 0 seconds"),
        (pool() | {"keys": KEYS[:1] * 2}, "keys[1].name", "a", "no other key"),
        (pool() | {"keys": KEYS}, "keys[1].sha256", "(not shown)", "another key than that of a"),
        (pool() | {"keys": [KEYS[0] | {"sha256": "s"}]}, "keys[0].sha256", "(not shown)", "64 lower-case hex"),
        (pool() | {"shared": {"redis": "redis://h:1"}}, "shared", "redis://h:1", "a pool with urls"),
        (pool() | {"shared": {"redis": "http://h"}}, "shared.redis", "http://h", "redis://host:port/0"),
        (pool() | {"shared": {"redis": "redis://:pw@h:1"}}, "shared.redis", "(not shown)", "password_env"),
        (pool() | {"shared": {"redis": "redis://h", "password_env": "NO_SUCH"}}, "shared.password_env", "NO_SUCH",
         "a variable that is set"),
        (pool() | {"shared": {}}, "shared.redis", None, "required"),
        (pool() | {"pools": {}}, "pools", {}, "a list"),
        (pool() | {"listen": []}, "listen", [], "a mapping"),
        (pool(kv_events="yes"), "pools[0].kv_events", "yes", "true or false"),
        (pool(fallback="maybe"), "pools[0].fallback", "maybe", "true or false or a whole number"),
        (pool(model=5), "pools[0].model", 5, "text"),
        ({"pools": [{1: "a"}]}, "pools[0]", {1: "a"}, "names that are text"),
        (pool(engine="vllm", urls=["http://h:1", "http://h:1/v1/"]), "pools[0].urls[1]", "http://h:1", "another"),
        (pool() | {"router": {"polcy": "kv"}}, "router.polcy", "kv", "policy"),
        (pool() | {"gateway": {"keys": []}}, "gateway.keys", [], "another field"),
        (pool() | {"gateway": {"redact": ["("]}}, "gateway.redact[0]", "(", "regular expression"),
        (pool() | {"listen": {"port": 70000}}, "listen.port", 70000, "65535"),
        (pool() | {"listen": {"tls_key": "/none"}}, "listen.tls_certificate", None, "go together"),
        (pool() | {"keys": [{"name": "a", "sha256": DIGEST, "models": ["x"]}]}, "keys[0].models", "x", "smollm2"),
        (pool() | {"supervisor": {"crash_limit": 0}}, "supervisor.crash_limit", 0, ">= 1"),
    ],
)  # fmt: skip
def test_every_error_names_path_value_and_what_would_do(
    raw: object, field: str, value: object, accepted: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw)
    assert caught.value.field == field
    assert repr(caught.value.value) == repr(value)
    assert accepted in caught.value.accepted


def test_a_key_in_place_of_its_digest_is_not_shown() -> None:
    with pytest.raises(SpecError) as caught:
        parse_config(pool() | {"keys": [{"name": "team", "sha256": "my-secret-key"}]})
    assert "my-secret-key" not in str(caught.value)
    assert "64" in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, content, says in (
        ("a.yaml", "pools: [", "valid YAML"),
        ("c.yaml", "pools: []\nlisten: {}\npools: []", "the key 'pools' stands twice"),
        ("d.yaml", "pools: [{name: a, model: b, model: c}]", "the key 'model' stands twice"),
        ("b.yaml", "pools:\n- {name: a, model: b, replicas: no}", "b.yaml: pools[0].replicas"),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(ConfigError, match="accepted") as caught:
            load_config(path)
        assert says in str(caught.value)
    with pytest.raises(ConfigError, match="can be read"):
        load_config(tmp_path / "none.yaml")


def test_the_documented_example_is_valid() -> None:
    root = Path(__file__).parents[2]
    config = load_config(root / "examples" / "fleet.yaml")
    assert len(config.pools) >= 2
    # The reference names every field there is.
    reference = (root / "docs" / "fleet-config.md").read_text()
    for section in (config, config.pools[0], config.listen, config.supervisor):
        for field in (*section.__struct_fields__, *AXES):
            assert f"`{field}`" in reference, field


def test_check_says_what_would_run(tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    show_plan(console, parse_config(pool(replicas=3, layout={"tp": 2}, options={"num_blocks": 9})), cores=2)
    said = console.export_text()
    assert "pool small: 3 replicas of smollm2-135m on shoal, tp2, 1 thread a rank" in said
    assert "num_blocks 9" in said
    assert "6 ranks for 2 cores" in said
    assert "everybody may use it" in said


def machine(tmp_path: Path, fields: dict[str, object], sections: dict[str, object]) -> str:
    """What `--check` says of a file, by the command line."""
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps({"pools": [POOL | fields]} | sections))
    with pytest.raises(SpecError) as caught:
        serve_file(Console(), str(path), {}, True, None, None)
    return str(caught.value)


def test_what_is_not_on_this_machine(tmp_path: Path) -> None:
    """A missing program, model or folder is found by `--check`, not by the first replica."""
    file, gguf = tmp_path / "file", tmp_path / "m.gguf"
    file.write_text("")
    gguf.write_text("")
    cases: list[tuple[dict[str, object], dict[str, object], str]] = [
        ({"engine": "vllm", "executable": "/no/such/python"}, {}, "pools[0].executable: '/no/such/python'"),
        ({"engine": "llamacpp", "model": str(gguf), "environment": {"PATH": "/none"}}, {}, "with llama-server"),
        ({"executable": str(file)}, {}, "that may be run"),
        ({"model": "/no/such/folder"}, {}, "pools[0].model: '/no/such/folder'"),
        ({"model": "no.gguf", "engine": "llamacpp", "executable": "python3"}, {}, "pools[0].model: 'no.gguf'"),
        ({}, {"supervisor": {"log_dir": str(file / "logs")}}, f"supervisor.log_dir: '{file}/logs'"),
        ({}, {"gateway": {"prompt_log": str(tmp_path)}}, "gateway.prompt_log"),
        ({}, {"gateway": {"prompt_log": str(file / "a" / "b")}}, f"{file} is a file"),
    ]
    for fields, sections, says in cases:
        assert says in machine(tmp_path, fields, sections)
    if os.geteuid() != 0:
        assert "may not" in machine(tmp_path, {}, {"supervisor": {"log_dir": "/proc/logs"}})
