"""The planner page in headless Chromium: calculators as in Python, a search from form to table, a phone's width."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.ui import make_server
from shoal.plan import calc
from shoal.specs.errors import SpecError

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(p).exists()), None)
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = make_server("127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(url)
    yield page
    page.close()
    assert faults == []


def in_page(page: Any, expression: str) -> Any:
    return page.evaluate(f"() => {expression}")


def test_calculators_agree_with_python(page: Any) -> None:
    assert in_page(page, "calc.weightBytes(405e9, 2)") == calc.weight_bytes(405e9, 2)
    for layers, heads, width, element in ((80, 8, 128, 2), (126, 8, 128, 2), (32, 8, 128, 1)):
        found = in_page(page, f"calc.gqaBytesPerToken({layers}, {heads}, {width}, {element})")
        assert found == calc.gqa_bytes_per_token(layers, heads, width, element)
    assert in_page(page, "calc.mlaBytesPerToken(61, 512, 64, 2)") == 61 * (512 + 64) * 2
    assert in_page(page, "calc.kvBytes(327680, 8192, 200)") == calc.kv_bytes(327680, 8192, 200)
    cases = [(677e9, 141e9, 0.2), (337e9, 141e9, 0.2), (810e9, 80e9, 0.2), (70e9, 80e9, 0.0), (1e9, 288e9, 0.5)]
    for total, memory, headroom in cases:
        found = in_page(page, f"calc.devicesNeeded({total}, {memory}, {headroom})")
        expected = calc.devices_needed(total, memory, headroom)
        assert found["exact"] == pytest.approx(expected.exact, rel=1e-12)
        assert (found["count"], found["tooClose"]) == (expected.count, expected.too_close)
    for stages, micro in ((4, 4), (4, 16), (4, 32), (1, 1), (16, 3)):
        assert in_page(page, f"calc.bubble({stages}, {micro})") == pytest.approx(calc.bubble(stages, micro))
    for size, bandwidth, ports, layers in ((68e9, 50e9, 1, 1), (68e9, 12.5e9, 1, 1), (68e9, 50e9, 8, 126)):
        found = in_page(page, f"calc.handoffSeconds({size}, {bandwidth}, {ports}, 0.8, {layers})")
        expected_seconds = calc.handoff_seconds(size, bandwidth, ports, 0.8, overlapped_layers=layers)
        assert found == pytest.approx(expected_seconds, rel=1e-12)
    assert in_page(page, "calc.costPerDay(1814, 2)") == pytest.approx(calc.cost_per_day(1814, 2))
    found = in_page(page, "calc.costPerMillion(8, 2, 14800, 0.5)")
    assert found == pytest.approx(calc.cost_per_million(8, 2, 14800, 0.5))


def test_calculators_refuse_what_python_refuses(page: Any) -> None:
    wrong = {
        "calc.weightBytes(-1, 2)": lambda: calc.weight_bytes(-1, 2),
        "calc.kvBytes(1, 0, 1)": lambda: calc.kv_bytes(1, 0, 1),
        "calc.devicesNeeded(1e9, 80e9, 1)": lambda: calc.devices_needed(1e9, 80e9, 1),
        "calc.bubble(0, 4)": lambda: calc.bubble(0, 4),
        "calc.costPerMillion(8, 2, 100, 1.5)": lambda: calc.cost_per_million(8, 2, 100, 1.5),
        "calc.handoffSeconds(1e9, 1e9, 1, 0, 1)": lambda: calc.handoff_seconds(1e9, 1e9, 1, 0),
    }
    for expression, python in wrong.items():
        script = f"{{ try {{ {expression}; return false }} catch (e) {{ return e instanceof calc.Refused }} }}"
        assert page.evaluate(f"() => {script}"), expression
        with pytest.raises(SpecError):
            python()


def test_answers_follow_the_typing(page: Any) -> None:
    page.fill("#bubble [name=micro]", "16")
    assert page.inner_text("#bubble-answer") == "16 % idle"
    page.fill("#bubble [name=micro]", "0")
    assert "micro-batches" in page.inner_text("#bubble-answer")
    page.fill("#handoff [name=bandwidth]", "12.5")
    assert page.inner_text("#handoff-answer") == "5.4 s"
    page.fill("#fit [name=users]", "20")
    assert page.inner_text("#fit-answer") == "4 devices"
    assert page.locator("#fit-chart svg rect").count() >= 2


def test_catalogue_fills_the_calculator(page: Any) -> None:
    page.wait_for_selector("#fit [name=model] option[value='deepseek-v3']", state="attached")
    page.select_option("#fit [name=model]", "deepseek-v3")
    assert page.input_value("#fit [name=token]") == "70272"
    page.select_option("#fit [name=device]", "h200_sxm")
    assert page.input_value("#fit [name=memory]") == "141"


def test_a_search_from_form_to_table(page: Any) -> None:
    page.click("[data-tab=planner]")
    page.fill("#question [name=gpu]", "h200, mi300x")
    page.click("#search")
    page.wait_for_selector("#answer table", timeout=120_000)
    text = page.inner_text("#answer")
    assert "llama-3.1-70b" in text
    assert "The ladder" in text
    assert "one device" in text
    assert page.locator("#answer svg polyline").count() >= 1
    page.fill("#question [name=gpu]", "h200")
    page.fill("#question [name=tpot]", "0.1")
    page.click("#search")
    page.wait_for_selector("#answer h2:has-text('Nothing')", timeout=120_000)
    assert "TPOT 0.1 ms is impossible" in page.inner_text("#answer")


def test_fits_a_phone(browser: Any, url: str) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.click("[data-tab=planner]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_an_error_of_the_server_is_shown(browser: Any, url: str) -> None:
    page = browser.new_page()
    page.goto(url)
    page.click("[data-tab=planner]")
    page.fill("#question [name=model]", "lama-3.1-70b")
    page.click("#search")
    page.wait_for_selector("#plan-error:not(:empty)", timeout=60_000)
    assert "llama-3.1-70b" in page.inner_text("#plan-error")
    assert json.loads(page.evaluate("fetch('api/none').then(r => r.text())"))["error"] == "there is no /api/none"
    page.close()
