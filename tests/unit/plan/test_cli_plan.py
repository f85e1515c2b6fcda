"""`shoal plan` as a user types it, and the planner's server."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shoal.cli.entry import main
from shoal.cli.ui import make_server
from shoal.specs.errors import SpecError

QUICK = ("--gpu", "h100", "--split", "never", "--quick")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["plan", *arguments])
    captured = capsys.readouterr()
    code = done.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_a_plan_is_a_table_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "llama-3.1-8b", "--users", "20", "--context", "4K", *QUICK)
    assert (code, err) == (0, "")
    for expected in (
        "h100_sxm",
        "The ladder",
        "What binds",
        "Figures and where they come from",
        "tpot",
    ):
        assert expected.lower() in out.lower()


def test_json_is_whole_and_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "llama-3.1-8b", "--users", "20", "--context", "4K", "--tpot", "40ms", "--json", *QUICK
    )
    found = json.loads(out)
    assert code == 0
    assert found["feasible"] is True
    assert found["question"]["tpot_seconds"] == 0.04
    first = found["designs"][0]
    assert first["devices"] >= 1
    assert first["tpot_seconds"]["low"] <= first["tpot_seconds"]["mean"] <= first["tpot_seconds"]["high"]
    assert first["cost"]["usd_per_million_output_tokens"]["mean"] > 0
    assert [r["rung"] for r in found["explanation"]["ladder"]] == [1, 2, 3, 4, 5, 6]
    assert "rejected" in found


def test_an_impossible_target_fails_with_the_best_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "llama-3.1-70b", "--users", "1", "--tpot", "1ms", *QUICK)
    assert code == 1
    assert "TPOT 1 ms is impossible" in out
    assert "the best is" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lama-3.1-8b"], "llama-3.1-8b"),
        (["llama-3.1-8b", "--gpu", "h10"], "h100"),
        (["llama-3.1-8b", "--users", "-5"], "--users"),
        (["llama-3.1-8b", "--users", "0"], "users"),
        (["llama-3.1-8b", "--context", "0"], "context"),
        (["llama-3.1-8b", "--context", "9M"], "context"),
        (["llama-3.1-8b", "--tpot", "0"], "tpot"),
        (["llama-3.1-8b", "--ttft", "-1"], "ttft"),
        (["llama-3.1-8b", "--tpot", "5 parsecs"], "tpot"),
        (["llama-3.1-8b", "--split", "maybe"], "split"),
        (["llama-3.1-8b", "--emit", "vlm"], "vllm"),
        (["llama-3.1-8b", "--weights", "fp7"], "--weights"),
        (["llama-3.1-8b", "--prefix-hit", "1"], "--prefix-hit"),
        (["llama-3.1-8b", "--ttft", "2"], "2ms or 2s"),
        (["llama-3.1-8b", "--gpu", ""], "--gpu"),
        (["./missing.json"], "./missing.json: no such file"),
        (["llama-3.1-8b", "--model", "llama-3.1-70b"], "the model once"),
        (["llama-3.1-8b", "--users", "x", "--tpot", "9"], "--users"),
        (["--users", "5"], "MODEL"),
        (["llama-3.1-8b", "--headroom", "200%"], "headroom"),
        (["llama-3.1-8b", "--catalog", "/nowhere.yaml"], "nowhere"),
    ],
)
def test_bad_input_names_the_field(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert expected in err
    assert "Traceback" not in err


def test_an_own_accelerator_and_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.yaml"
    source = 'source: "an offer", date: 2026-11, class: published'
    own.write_text(f"prices:\n  h100_sxm:\n    owned: {{value: 9.00 USD/h, {source}}}\n")
    arguments = ("llama-3.1-8b", "--users", "2", "--context", "2K", "--json", *QUICK)
    _, out, _ = run(capsys, *arguments, "--catalog", str(own))
    first = json.loads(out)["designs"][0]
    assert first["cost"]["usd_per_hour"] == pytest.approx(9.0 * first["devices"])


def test_a_config_file_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.specs.catalog.models import catalog_entry

    config = tmp_path / "config.json"
    config.write_text(json.dumps(dict(catalog_entry("llama-3.1-8b").config)))
    for path in (config, tmp_path):
        code, out, _ = run(capsys, str(path), "--users", "2", "--context", "2K", "--json", *QUICK)
        assert code == 0
        assert json.loads(out)["designs"]


def test_emit_prints_commands_only(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "llama-3.1-8b", "--users", "2", "--context", "2K", "--emit", "vllm", *QUICK)
    assert code == 0
    assert "vllm serve meta-llama/Llama-3.1-8B" in out
    assert "The ladder" not in out


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]


def test_the_report_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    code, _, _ = run(capsys, "llama-3.1-8b", "--users", "20", "--context", "4K", "--html", str(report), *QUICK)
    assert code == 0
    page = _Page()
    text = report.read_text(encoding="utf-8")
    page.feed(text)
    assert page.links == []
    assert "script" not in page.tags
    assert page.tags.count("svg") >= 3
    assert 'name="viewport"' in text
    code, _, err = run(capsys, "llama-3.1-8b", "--users", "2", "--html", str(tmp_path / "no" / "r.html"), *QUICK)
    assert code == 2
    assert "html" in err


def test_score_and_calibrate_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("score", "calibrate"):
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert "constants" in out.lower()
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "--users" in out


def test_the_library_imports_next_to_nothing() -> None:
    script = (
        "import sys, shoal.plan; early = [m for m in ('numpy', 'torch', 'yaml') if m in sys.modules]; "
        "from shoal.plan import plan, replica_memory, search, explain, emit, memory; "
        "found = [callable(f) for f in (plan, replica_memory, search.search, explain.explain, emit.emit)]; "
        "print(early, 'torch' in sys.modules, all(found))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[] False True"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = make_server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(10)


def request(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


JSON = {"Content-Type": "application/json"}


def test_the_server_plans(port: int) -> None:
    body = json.dumps(
        {"model": "llama-3.1-8b", "gpu": ["h100"], "users": 4, "context": 2048, "split": "never"}
    ).encode()
    status, content = request(port, "POST", "/api/plan", body, JSON)
    assert status == 200
    found = json.loads(content)
    assert found["designs"][0]["accelerator"] == "h100_sxm"
    assert "4 users at once" in found["question"]["text"]
    assert found["command"] == "shoal plan llama-3.1-8b --gpu h100 --users 4 --context 2048 --split never"


def test_the_page_and_the_command_line_read_alike(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 14, fault 1: the page sent null for `10k`, `5s` and `50%`, and answered for one user."""
    typed = {
        "gpu": "8xh100",
        "users": "0.1k",
        "context": "4k",
        "ttft": "5S",
        "prefix_hit": "50%",
        "percentile": "p95",
    }
    body = json.dumps({"model": "llama-3.1-8b", "split": "never", "quick": True, **typed}).encode()
    status, content = request(port, "POST", "/api/plan", body, JSON)
    assert status == 200
    options = [word for name, value in typed.items() for word in (f"--{name.replace('_', '-')}", value)]
    code, out, _ = run(capsys, "llama-3.1-8b", "--split", "never", "--quick", "--json", *options)
    assert code == 0
    page, line = json.loads(content), json.loads(out)
    assert page["question"] == line["question"]
    assert page["designs"] == line["designs"]
    assert page["question"]["users"] == 100
    assert page["question"]["prefix_hit"] == 0.5
    assert "prefix cache hits 50%" in page["question"]["text"]


def test_a_pasted_config_is_a_model_on_the_page(port: int) -> None:
    from shoal.specs.catalog.models import catalog_entry

    config = json.dumps(dict(catalog_entry("llama-3.1-8b").config))
    body = {"model": "mine", "config": config, "gpu": "h100", "context": "2k", "split": "never", "quick": True}
    status, content = request(port, "POST", "/api/plan", json.dumps(body).encode(), JSON)
    assert status == 200
    assert json.loads(content)["question"]["model"] == "mine"


def test_problems_come_by_field(port: int) -> None:
    body = {"model": "llama-3.1-8b", "users": "many", "tpot": "50", "gpu": "h999"}
    status, content = request(port, "POST", "/api/plan", json.dumps(body).encode(), JSON)
    assert status == 400
    problems = json.loads(content)["problems"]
    assert [(p["field"], p["value"]) for p in problems] == [("gpu", "h999"), ("users", "many"), ("tpot", "50")]
    assert all(p["accepted"] for p in problems)


@pytest.mark.parametrize("form", [("-m", "shoal"), ("-m", "shoal.cli")])
def test_shoal_is_a_module(form: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *form, "plan", "-h"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--isl" in done.stdout


def test_options_people_type(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "llama-3.1-8b", "--isl", "1k", "--osl", "128", "--rps", "5/s", "--gpus", "h100")
    code, out, _ = run(capsys, *arguments, "--json", "--quick", "--split", "never")
    asked = json.loads(out)["question"]
    assert code == 0
    assert (asked["input_tokens"], asked["output_tokens"], asked["requests_per_second"]) == (1024, 128, 5)


def test_the_server_lists_the_catalogue(port: int) -> None:
    found = json.loads(request(port, "GET", "/api/catalog")[1])
    models = {model["name"]: model for model in found["models"]}
    assert models["deepseek-v3"]["kv_bytes_per_token"] == 70272
    assert any(device["name"] == "h100_sxm" for device in found["accelerators"])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model": "llama-3.1-8b", "users": -1}', "users"),
        (b'{"model": "lama-3.1-8b"}', "llama-3.1-8b"),
        (b'{"model": "/etc/passwd"}', "unknown model"),
        (b'{"model": "src/shoal"}', "config.json"),
        (b'{"model": "llama-3.1-8b", "ttft": "5"}', "5ms or 5s"),
        (b'{"model": "llama-3.1-8b", "users": "ten"}', "10k"),
        (b'{"model": "mine", "config": "{}"}', "architectures"),
        (b'{"model": "llama-3.1-8b", "usres": 1}', "usres"),
        (b"{", "error"),
    ],
)
def test_the_server_refuses_by_field(port: int, body: bytes, expected: str) -> None:
    status, content = request(port, "POST", "/api/plan", body, JSON)
    assert status == 400
    assert expected in content.decode()


def test_the_server_answers_loopback_only(port: int) -> None:
    status, _ = request(port, "GET", "/", headers={"Host": "planner.example.com"})
    assert status == 403
    assert request(port, "GET", "/")[0] == 200
    with pytest.raises(SpecError, match="loopback"):
        make_server("0.0.0.0", 0)
    with pytest.raises(SpecError, match="port"):
        make_server("127.0.0.1", port)


def test_the_server_serves_its_files_and_no_others(port: int) -> None:
    for name in ("/", "/?model=llama-3.1-8b", "/style.css", "/charts.js", "/app.js"):
        assert request(port, "GET", name)[0] == 200
    for name in ("/../api.py", "/%2e%2e/api.py", "/nothing", "/__init__.py"):
        assert request(port, "GET", name)[0] == 404
    assert request(port, "POST", "/api/plan", b"x", {"Content-Type": "text/plain"})[0] == 415
    assert request(port, "POST", "/api/plan", b"x" * 70_000, JSON)[0] == 413


@pytest.mark.parametrize("columns", ["80", None])
def test_eighty_columns_and_pipes_stay_readable(columns: str | None) -> None:
    """Issue 14, fault 12: figures broken in the middle, one word per line."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"COLUMNS": columns} if columns else {}
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "plan", "llama-3.1-8b", "--users", "40", "--isl", "2k", *QUICK],
        capture_output=True, text=True, timeout=120, check=True, env=environment,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= (80 if columns else 1000)
    assert not any("\x1b" in line for line in lines)
    row = next(line for line in lines if "h100_sxm" in line and "×" in line and "(" in line)
    assert re.search(r"\d+ × tp\d+", row)
    assert re.search(r"[\d.]+ \([\d.]+–[\d.]+\)", row)
    short = [line for line in lines if line.strip() and len(line.strip()) < 4]
    assert not short
