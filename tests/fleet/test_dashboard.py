"""The dashboard: what `/` and `/api/fleet` say of a fleet and of a single replica, and how it looks."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2ekit import eventually
from fleet_kit import Served, fleet_process

from shoal.observe.dashboard import grafana


@pytest.fixture(scope="module")
def single(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    with fleet_process(str(tiny_folder), "--served-name", "tiny", "--num-blocks", "300", home=home) as served:
        yield served


def test_a_fleet_shows_replicas_latency_hits_and_decisions(pair: Served) -> None:
    prompt = "a prompt that is longer than a block of sixteen tokens, so that it can be reused"
    for _ in range(6):
        # So many that not all of them can come in one piece.
        assert pair.stream(prompt, 48).done
    view = pair.view()
    assert view["title"] == "tiny"
    assert view["status"] == "ready"
    assert [r["name"] for r in view["replicas"]] == ["tiny-0", "tiny-1"]
    assert all(r["kv_capacity_tokens"] == 299 * 16 for r in view["replicas"])
    assert view["totals"]["outcomes"]["ok"] >= 6
    assert 0 < view["totals"]["actual_hit_ratio"] < 1
    latency = view["latency"]
    assert 0 < latency["ttft"]["p50"] <= latency["ttft"]["p99"] <= latency["e2e"]["p99"]
    assert latency["tpot"]["p50"] > 0
    newest = view["decisions"][0]
    assert newest["outcome"] == "ok"
    assert newest["replica"] in ("tiny-0", "tiny-1")
    assert newest["reason"].startswith("default:")
    assert newest["actual_hit"] > 0
    assert newest["prompt_tokens"] == len(prompt)


def test_metrics_of_a_fleet(pair: Served) -> None:
    pair.stream("measured", 7)
    assert pair.metric("shoal_fleet_generated_tokens_total", model_name="tiny") >= 7
    assert pair.metric("shoal_fleet_requests_total", outcome="ok", status="200") >= 1
    assert pair.metric("shoal_fleet_time_to_first_token_seconds_count") >= 1
    assert pair.metric("shoal_fleet_inter_token_latency_seconds_count") >= 1
    assert pair.metric("shoal_fleet_replica_healthy") == 2
    assert pair.metric("shoal_fleet_replica_devices") == 2
    assert pair.metric("shoal_fleet_leases") == 0
    taken = pair.metric("shoal_fleet_leases_taken_total")
    assert taken == pair.metric("shoal_fleet_legs_total") > 0


def test_a_single_replica_has_the_same_page(single: Served) -> None:
    assert f"dashboard  {single.url}/" in single.said()
    assert single.stream("Hello", 6).done
    view = single.view()
    assert view["status"] == "ready"
    assert view["title"] == "tiny"
    (only,) = view["replicas"]
    assert (only["state"], only["pid"]) == ("ready", single.process.pid)
    assert only["kv_capacity_tokens"] == 299 * 16
    assert view["totals"]["outcomes"] == {"ok": 1}
    assert view["latency"]["ttft"]["p50"] > 0
    page = httpx.get(f"{single.url}/", trust_env=False)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    # Nothing of it comes from elsewhere.
    assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page.text
    # It uses the terms of the metrics, and explains each.
    for words in ("first token,", "gap between", "at the door", "whole answer"):
        assert words not in page.text
    for term in ("TTFT", "ITL", "E2E", "queue"):
        assert re.search(rf"^  {term}: \"", page.text, re.MULTILINE), term


def test_the_numbers_need_the_key_where_there_is_one(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_folder), "--served-name", "tiny", "--replicas", "2", "--num-blocks", "50"]
    with fleet_process(*arguments, "--api-key", "s3cret-key", home=tmp_path) as served:
        assert httpx.get(f"{served.url}/", trust_env=False).status_code == 200
        assert httpx.get(f"{served.url}/api/fleet", trust_env=False).status_code == 401
        assert httpx.get(f"{served.url}/metrics", trust_env=False).status_code == 401
        headers = {"Authorization": "Bearer s3cret-key"}
        view = httpx.get(f"{served.url}/api/fleet", headers=headers, trust_env=False).json()
        assert [r["state"] for r in view["replicas"]] == ["ready", "ready"]
        # Nor is there a way around the gateway.
        log = next(tmp_path.rglob("tiny-0.log")).read_text()
        assert "s3cret-key" not in log + served.said()


@pytest.mark.browser
@pytest.mark.parametrize(("name", "width", "height"), [("desktop", 1200, 900), ("phone", 390, 844)])
def test_in_a_browser(pair: Served, name: str, width: int, height: int, tmp_path: Path) -> None:
    """The picture is kept where SHOAL_SCREENSHOTS says, for people to look at."""
    for n in range(24):
        pair.stream(f"request {n}: a prompt that is longer than a block of sixteen tokens", 20)
    with browser_page(width, height) as page:
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{pair.url}/")
        page.wait_for_selector("body[data-shown]", timeout=20_000)
        assert page.inner_text("#status") == "ready"
        assert page.locator("[data-replica]").count() == 2
        assert page.locator("#decisions tbody tr").count() >= 24
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
        visible = page.locator("#decisions tbody tr:visible")
        if name == "phone":
            assert visible.count() == 8
            height_of = "document.querySelector('#decisions').getBoundingClientRect().height"
            assert page.evaluate(height_of) < 1.2 * height, "the list of decisions is longer than a screen"
            page.click("#more")
        assert visible.count() >= 24
        page.locator("#latency [data-tip]", has_text="queue").hover()
        assert "admission queue" in page.inner_text("#tip")
        folder = Path(os.environ.get("SHOAL_SCREENSHOTS", tmp_path))
        page.screenshot(path=str(folder / f"{name}.png"), full_page=True)
        assert errors == []


@pytest.mark.browser
def test_a_death_is_seen_in_the_browser(pair: Served) -> None:
    eventually(lambda: pair.whole(2), "both replicas are ready", 60)
    with browser_page(1200, 900) as page:
        page.goto(f"{pair.url}/")
        page.wait_for_selector("body[data-shown]", timeout=20_000)
        os.kill(pair.replica("tiny-1")["pid"], signal.SIGKILL)
        eventually(lambda: page.inner_text("#status") == "degraded", "the page says that one is missing", 20)
        eventually(lambda: page.inner_text("#status") == "ready", "the page says that it is back", 90)


class browser_page:
    """A page of headless Chromium."""

    def __init__(self, width: int, height: int) -> None:
        self._size = {"width": width, "height": height}

    def __enter__(self) -> Any:
        from playwright.sync_api import sync_playwright

        names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        path = next(found for name in names if (found := shutil.which(name)))
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        return self._browser.new_page(viewport=self._size)

    def __exit__(self, *exception: object) -> None:
        self._browser.close()
        self._playwright.stop()


def test_the_grafana_dashboard_asks_for_metrics_that_there_are(pair: Served) -> None:
    """Every metric that a panel names is served, by its name and with the labels that the panel uses."""
    pair.stream("one request, so that there are outcomes", 2)
    panels = json.loads(grafana())["panels"]
    text = httpx.get(f"{pair.url}/metrics", trust_env=False).text
    known = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    asked = {name for p in panels for t in p["targets"] for name in re.findall(r"shoal_fleet_\w+", t["expr"])}
    assert len(panels) > 10
    new = ("step_sequences", "step_tokens", "rank_waiting_seconds")
    assert {f"shoal_fleet_replica_{name}_total" for name in new} | {"shoal_fleet_prefill_queue_length"} <= asked
    for name in asked:
        assert {name, name.removesuffix("_bucket"), name.removesuffix("_total")} & known, name
    labels = set(re.findall(r'(\w+)="', text))
    grouped = {label for p in panels for t in p["targets"] for by in re.findall(r"by \(([^)]*)\)", t["expr"])
               for label in by.split(", ")}  # fmt: skip
    assert grouped - {"le"} <= labels


def test_ranks_waiting_reaches_metrics_and_dashboard(tiny_folder: Path, tmp_path: Path) -> None:
    """Of two replicas, the one with two ranks says how long they waited for each other, the other nothing."""
    options = {"num_blocks": 100}
    pools = [
        {"name": "two", "engine": "shoal", "model": str(tiny_folder), "options": options, "layout": {"tp": 2}},
        {"name": "one", "engine": "shoal", "model": str(tiny_folder), "options": options},
    ]
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"pools": [{**pool, "served_name": "tiny"} for pool in pools]}))
    with fleet_process("--config", str(file), home=tmp_path) as served:
        for _ in range(4):
            assert served.stream("ranks wait for each other", 8).done
        name = "shoal_fleet_replica_rank_waiting_seconds_total"
        eventually(lambda: served.metric(name) > 0, "the gauges were read", 20)
        assert served.metric(name, pool="one") == 0
        assert served.metric(name) < served.metric("shoal_fleet_replica_rank_seconds_total", pool="two")
        shown: list[float] = []

        def seen() -> bool:
            served.stream("lately", 8)
            view = {r["pool"]: r for r in served.view()["replicas"]}
            assert view["one"]["rank_waiting"] is None
            if (share := view["two"]["rank_waiting"]) is not None:
                shown.append(share)
            return bool(shown)

        eventually(seen, "the dashboard shows the share", 20)
        assert 0 < shown[0] < 1


def test_other_apis_pass_through_to_replicas(pair: Served) -> None:
    def post(path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(pair.url + path, json={"model": "tiny"} | body, timeout=60, trust_env=False)

    made = pair.metric("shoal_fleet_generated_tokens_total")
    first = post("/v1/responses", {"input": "Hello", "max_output_tokens": 4})
    assert first.status_code == 200, first.text
    again = {"input": "and", "max_output_tokens": 4, "previous_response_id": first.json()["id"]}
    for _ in range(3):
        second = post("/v1/responses", again)
        assert second.status_code == 200, second.text
        assert second.headers["x-shoal-replica"] == first.headers["x-shoal-replica"]
    kept = f"{pair.url}/v1/responses/{first.json()['id']}"
    got = httpx.get(kept + "/", timeout=60, trust_env=False)
    assert (got.status_code, got.json()) == (200, first.json())
    assert got.headers["x-shoal-replica"] == first.headers["x-shoal-replica"]
    deleted = httpx.delete(kept, timeout=60, trust_env=False)
    assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)
    assert httpx.get(kept, timeout=60, trust_env=False).status_code == 404
    message = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    streamed = post("/v1/messages/", message | {"stream": True})
    assert streamed.text.rstrip().splitlines()[-2] == "event: message_stop", streamed.text
    counted = post("/v1/messages/count_tokens", {"messages": message["messages"]})
    assert counted.json()["input_tokens"] > 0
    tokens = post("/tokenize", {"prompt": "Hello"}).json()["tokens"]
    assert post("/detokenize", {"tokens": tokens}).json()["prompt"] == "Hello"
    assert pair.metric("shoal_fleet_generated_tokens_total") > made + 4


def test_batch_sizes_and_handoffs_reach_the_fleets_metrics(pair: Served) -> None:
    pair.stream("how large are steps", 9)
    eventually(lambda: pair.metric("shoal_fleet_replica_steps_total") > 0, "the gauges were read", 20)
    # Not one or more per step: a step may only tell ranks what has ended.
    assert pair.metric("shoal_fleet_replica_step_sequences_total") > 0
    assert pair.metric("shoal_fleet_replica_step_tokens_total") > 0
    assert pair.metric("shoal_fleet_handoffs_total", event="handed") == 0
    assert pair.metric("shoal_fleet_prefill_queue_length") == 0
    shown = pair.view()["replicas"][0]
    assert shown["role"] == "both"
    assert shown["pending_tokens"] == 0
    assert "batch_sequences" in shown
