"""The planner page in headless Chromium, typed as people type (issue 14, faults 1 and 12)."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.ui import make_server
from shoal.plan import calc
from shoal.plan.question_file import read_question_file
from shoal.specs.catalog.models import catalog_entry

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
def faults() -> list[str]:
    """What the browser complained of while a page was open."""
    return []


@pytest.fixture
def page(browser: Any, url: str, faults: list[str]) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(url)
    yield page
    page.close()
    assert faults == []


def answered(page: Any, calculator: str, expected: str) -> None:
    """Wait until a calculator answers so."""
    page.wait_for_selector(f"#{calculator}-answer:has-text({json.dumps(expected)})", timeout=30_000)


def test_calculators_agree_with_python(page: Any) -> None:
    count = calc.devices_needed(141.1e9 + 200 * 2.6843e9, 80e9)
    answered(page, "fit", count.label())
    answered(page, "kv", "328 KB per token")
    answered(page, "bubble", f"{calc.bubble(4, 4):.1%} idle")
    answered(page, "handoff", f"{calc.handoff_seconds(68e9, 50e9):.1f} s")
    answered(page, "cost", f"${calc.cost_per_million(8, 2, 14_800):.2f} per million")


def test_answers_follow_the_typing(page: Any) -> None:
    page.fill("#bubble [name=micro]", "16")
    answered(page, "bubble", "15.8% idle")
    page.fill("#handoff [name=bandwidth]", "100gbps")
    answered(page, "handoff", "5.4 s")
    page.fill("#fit [name=users]", "0.02k")
    answered(page, "fit", "4 devices")
    assert page.locator("#fit-chart svg rect").count() >= 2
    page.fill("#cost [name=price]", "$1,460/month")
    answered(page, "cost", "$0.30 per million")
    page.select_option("#kv [name=kind]", "mla")
    page.fill("#kv [name=layers]", "61")
    answered(page, "kv", "70.3 KB per token")


def test_fit_uses_the_stored_precision(page: Any) -> None:
    """Issue 14, fault 1: gpt-oss-120b took 234 GB on the page, and 65 as it is stored."""
    page.fill("#fit [name=model]", "gpt-oss-120b")
    page.fill("#fit [name=users]", "1")
    answered(page, "fit", "2 devices")
    assert "as stored (mxfp4) 65.2 GB" in page.inner_text("#fit-note")
    page.fill("#fit [name=dtype]", "bf16")
    page.wait_for_selector("#fit-note:has-text('in bfloat16 234 GB')", timeout=30_000)


def test_what_is_not_understood_stands_beside_the_field(page: Any, faults: list[str]) -> None:
    page.fill("#bubble [name=micro]", "0")
    page.wait_for_selector("#bubble [name=micro].bad + .problem", timeout=30_000)
    assert "from 1 to" in page.inner_text("#bubble .problem")
    page.fill("#bubble [name=micro]", "4")
    answered(page, "bubble", "42.9% idle")
    assert page.locator("#bubble .problem").count() == 0
    page.click("[data-tab=planner]")
    for name, text in (("users", "ten"), ("ttft", "5"), ("prefix_hit", "150%"), ("gpu", "h999")):
        page.fill(f"#question [name={name}]", text)
    page.click("#search")
    page.wait_for_selector("#question [name=ttft].bad + .problem", timeout=60_000)
    notes = page.locator("#question .problem").all_inner_texts()
    assert len(notes) == 4
    assert any("5ms or 5s" in note for note in notes)
    assert page.is_hidden("#answer")
    page.fill("#question [name=ttft]", "5S")
    assert page.locator("#question .problem").count() == 3
    faults.clear()  # the browser reports each refused request


def test_a_question_is_saved_loaded_and_linked(page: Any, browser: Any, tmp_path: Path) -> None:
    """A saved question asks what the form asked, whatever stands in the form when it is loaded."""
    page.click("[data-tab=planner]")
    typed = {"model": "llama-3.1-8b", "gpu": "l40s", "users": "4", "input": "2k", "output": "256", "ttft": "2s"}
    for name, text in typed.items():
        page.fill(f"#question [name={name}]", text)
    page.click("#question summary")
    page.fill("#question [name=memory_utilization]", "85%")
    page.select_option("#question [name=split]", "never")
    with page.expect_download() as saved:
        page.click("#save")
    path = tmp_path / "question.yaml"
    saved.value.save_as(path)
    asked = read_question_file(path).question.asked
    assert (asked.model, asked.ttft, asked.split, asked.memory_utilization) == (
        "llama-3.1-8b",
        "2s",
        "never",
        "85%",
    )

    for name in typed:
        page.fill(f"#question [name={name}]", "")
    page.select_option("#question [name=split]", "only")
    page.set_input_files("#load-file", path)
    page.wait_for_selector("#answer table", timeout=60_000)
    assert page.input_value("#question [name=ttft]") == "2s"
    assert page.input_value("#question [name=split]") == "never"
    assert "memory utilization 85%" in page.inner_text("#answer .asked")
    # The link in the answer carries the whole question.
    again = browser.new_page()
    again.goto(page.url)
    again.wait_for_selector("#answer table", timeout=60_000)
    assert again.inner_text("#answer .asked") == page.inner_text("#answer .asked")
    again.close()


def test_growth_is_a_row_for_each_month(page: Any, url: str) -> None:
    fields = "model=llama-3.1-8b&gpu=l40s&users=60&input=2k&output=256&split=never&prices=rented"
    page.goto(f"{url}?{fields}&growth=25%25/month&months=4")
    page.wait_for_selector("#answer table", timeout=60_000)
    assert page.locator("#answer table tr").count() == 5
    assert "Total: $" in page.inner_text("#answer")


def test_a_file_that_is_no_question_is_named_by_line(page: Any, faults: list[str], tmp_path: Path) -> None:
    page.click("[data-tab=planner]")
    path = tmp_path / "wrong.yaml"
    path.write_text("model: llama-3.1-8b\nuser: 3\n")
    page.set_input_files("#load-file", path)
    page.wait_for_selector("#plan-error:has-text('wrong.yaml:2')", timeout=30_000)
    assert page.is_hidden("#answer")
    faults.clear()  # the browser reports each refused request
    path.write_text("model: llama-3.1-8b\nlayout: tp=1\n")
    page.set_input_files("#load-file", path)
    page.wait_for_selector("#plan-error:has-text('no field for layout')", timeout=30_000)


def test_a_search_from_form_to_table(page: Any) -> None:
    page.click("[data-tab=planner]")
    typed = {
        "gpu": "H200, mi300x",
        "users": "0.2k",
        "input": "8k",
        "ttft": "5S",
        "prefix_hit": "50%",
        "percentile": "p95",
    }
    for name, text in typed.items():
        page.fill(f"#question [name={name}]", text)
    page.press("#question [name=percentile]", "Enter")
    page.wait_for_selector("#answer table", timeout=120_000)
    text = page.inner_text("#answer")
    for part in (
        "llama-3.1-70b",
        "200 users at once",
        "8,192 tokens in",
        "TTFT ≤ 5 s",
        "p95",
        "prefix cache hits 50%",
    ):
        assert part in text
    assert "The ladder" in text
    assert "What would change" in text
    assert page.locator("#answer svg polyline").count() >= 1
    command = page.locator("#answer pre").all_inner_texts()
    assert any("shoal plan llama-3.1-70b --gpu H200,mi300x --users 0.2k" in line for line in command)
    page.fill("#question [name=gpu]", "h200")
    page.fill("#question [name=tpot]", "0.1ms")
    page.click("#search")
    page.wait_for_selector("#answer h2:has-text('Nothing')", timeout=120_000)
    assert "TPOT 0.1 ms is impossible" in page.inner_text("#answer")


def test_a_link_carries_the_question(page: Any, browser: Any) -> None:
    page.click("[data-tab=planner]")
    page.fill("#question [name=model]", "llama-3.1-8b")
    page.fill("#question [name=gpu]", "h100")
    page.fill("#question [name=users]", "10")
    page.click("#question summary")
    page.select_option("#question [name=split]", "never")
    page.click("#search")
    page.wait_for_selector("#answer table", timeout=120_000)
    asked = page.inner_text("#answer .asked")
    other = browser.new_page()
    other.goto(page.url)
    other.wait_for_selector("#answer table", timeout=120_000)
    assert other.inner_text("#answer .asked") == asked
    assert other.input_value("#question [name=users]") == "10"
    other.close()


@pytest.mark.parametrize("width", [360, 390, 1400])
def test_fits_the_screen(browser: Any, url: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(f"{url}?model=llama-3.1-8b&gpu=h100&users=10&split=never&quick=1")
    page.wait_for_selector("#answer table", timeout=120_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_an_unknown_model_asks_for_its_config(browser: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    page = browser.new_page()
    page.goto(url)
    page.click("[data-tab=planner]")
    page.fill("#question [name=model]", "lama-3.1-70b")
    page.press("#question [name=model]", "Enter")
    page.wait_for_selector("#question [name=model].bad + .problem", timeout=60_000)
    assert "llama-3.1-70b" in page.inner_text("#question .problem")
    page.fill("#question [name=model]", "someone/my-own-8b")
    page.fill("#question [name=gpu]", "h100")
    page.click("#search")
    page.wait_for_selector("#config-field:not([hidden])", timeout=60_000)
    page.fill("#question [name=config]", json.dumps(dict(catalog_entry("llama-3.1-8b").config)))
    page.click("#search")
    page.wait_for_selector("#answer .asked:has-text('someone/my-own-8b')", timeout=120_000)
    assert json.loads(page.evaluate("fetch('api/none').then(r => r.text())"))["error"] == "there is no /api/none"
    page.close()
