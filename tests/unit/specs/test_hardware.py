"""The catalogue: provenance, names, links, and what a user's own file may and may not say."""

from pathlib import Path

import pytest

from shoal.specs.catalog import load_catalog
from shoal.specs.errors import SpecError
from shoal.specs.hardware import FIGURE_CLASSES
from shoal.specs.quantities import parse_quantity
from shoal.specs.traffic import Lengths, Slo, Workload

OWN = """
accelerators:
  my_card:
    vendor: Me
    architecture: homemade
    memory: {value: 48 GB, source: my bench, date: 2026-11-01, class: measured}
    bandwidth: {value: 1 TB/s, source: my bench, date: 2026-11-01, class: measured}
    rates:
      bf16: {value: 100 TFLOP/s, source: my bench, date: 2026-11-01, class: measured}
    scale_up: {name: PCIe, bandwidth: {value: 32 GB/s, source: my bench, date: 2026-11-01, class: measured}}
    devices_per_node: {value: 4, source: my bench, date: 2026-11-01, class: measured}
prices:
  h100: {owned: {value: 0.90 USD/h, source: our contract, date: 2026-11, class: published}}
clusters:
  lab: {accelerator: my_card, nodes: 2}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "own.yaml"
    path.write_text(text)
    return path


def test_every_figure_has_a_source_a_date_and_a_class() -> None:
    catalog = load_catalog()
    assert len(catalog.accelerators) >= 18
    for accelerator in catalog.accelerators.values():
        names = {name for name, _ in accelerator.figures}
        assert {"memory", "bandwidth", "scale_up.bandwidth", "devices_per_node"} <= names
        for dtype, rate in accelerator.rates:
            assert dict(accelerator.figures)[f"rates.{dtype}"].value == rate
        for _, figure in accelerator.figures:
            assert figure.source
            assert figure.date[:2] == "20"
            assert figure.kind in FIGURE_CLASSES
    for engine in catalog.engines:
        assert all(figure.source and figure.kind in FIGURE_CLASSES for _, figure in engine.figures)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("h100_sxm", "h100_sxm"),
        ("H100", "h100_sxm"),
        ("b300-sxm", "b300_sxm"),
        ("gb200", "gb200"),
        ("GB300 NVL72", "gb300"),
        ("RTX4090", "rtx_4090"),
        ("RTXPRO6000", "rtx_pro_6000"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
    ],
)
def test_names_and_aliases(name: str, known: str) -> None:
    assert load_catalog().accelerator(name).name == known


def test_figures_of_parts_by_name_say_where_they_were_read_or_that_they_were_not() -> None:
    """A label such as "product data sheet" names no document that a reader could open."""
    parts = [part for part in load_catalog().accelerators.values() if part.by_name_only]
    assert len(parts) == 26
    for part in parts:
        for name, figure in part.figures:
            if figure.kind == "calculated":
                words = ("check before relying on it", "assumed", "computed", " x ", "twice", "half of")
            else:
                words = ("https://", ".py at ", ".ts at ", "gpu_configs/ at ", "in public logs")
            assert any(word in figure.source for word in words), f"{part.name}: {name}: {figure.source}"


def test_no_name_stands_for_two_accelerators() -> None:
    seen: dict[str, str] = {}
    for accelerator in load_catalog().accelerators.values():
        for name in (accelerator.name, *accelerator.aliases):
            folded = name.lower().replace("-", "_").replace(" ", "_")
            assert seen.setdefault(folded, accelerator.name) == accelerator.name


def test_unknown_names_suggest_near_ones() -> None:
    with pytest.raises(SpecError, match="h100_sxm"):
        load_catalog().accelerator("h1000_sxm")
    with pytest.raises(SpecError, match="vllm"):
        load_catalog().engine("vlm")


def test_rates_fall_back_to_the_next_wider_dtype() -> None:
    catalog = load_catalog()
    assert catalog.accelerator("h100").rate("fp4") == 1979e12
    assert catalog.accelerator("a100").rate("fp8") == 312e12
    assert catalog.accelerator("cpu").rate("bf16") == catalog.accelerator("cpu").rate("fp32")
    assert not catalog.accelerator("h100").supports("fp4")
    with pytest.raises(SpecError, match="fp2"):
        catalog.accelerator("h100").rate("fp2")


def test_the_scale_up_link_joins_a_server_or_a_whole_rack() -> None:
    catalog = load_catalog()
    domains = [catalog.accelerator(name).domain for name in ("h100", "gb200", "rtx_4090")]
    assert domains == [8, 72, catalog.accelerator("rtx_4090").devices_per_node]


def test_a_users_file_adds_and_replaces(tmp_path: Path) -> None:
    catalog = load_catalog([written(tmp_path, OWN)])
    own = catalog.accelerator("my-card")
    assert (own.memory_bytes, own.nic, own.watts, own.price()) == (48e9, None, None, None)
    assert catalog.accelerator("h100").price("owned") == 0.90
    assert catalog.accelerator("h100").price("rented") == 2.00
    assert dict(catalog.accelerator("h100").figures)["price_owned"].source == "our contract"
    assert catalog.clusters["lab"].devices == 8
    assert load_catalog().accelerator("h100").price("owned") == 1.17


@pytest.mark.parametrize(
    ("find", "put", "expected"),
    [
        ("memory: {value: 48 GB,", "memory: {value: 48 GBs,", ["my_card", "memory", "48 GBs", "80 GB"]),
        ("memory: {value: 48 GB,", "memory: {value: 48,", ["my_card", "memory", "48", "80 GB"]),
        ("memory: {value: 48 GB,", "memory: {value: -48 GB,", ["memory", "-48 GB", "greater than zero"]),
        ("value: 1 TB/s", "value: 1 TB", ["bandwidth", "'1 TB'", "'TB' is a unit of bytes"]),
        ("value: 1 TB/s", "value: 1 tb/s", ["bandwidth", "case matters"]),
        ("bf16: {", "fp16: {", ["rates", "fp16", "bf16"]),
        ("    vendor: Me\n", "", ["my_card", "vendor", "required"]),
        ("vendor: Me", "vendr: Me", ["vendr", "vendor"]),
        ("date: 2026-11, class: published", "class: published", ["h100", "date", "YYYY"]),
        ("class: published", "class: rumour", ["class", "rumour", "measured"]),
        ("0.90 USD/h", "0.90 EUR/h", ["owned", "0.90 EUR/h", "USD/h"]),
        ("  h100: {owned", "  h10: {owned", ["prices", "h10", "h100"]),
        ("nodes: 2", "nodes: 0", ["lab", "nodes", "0"]),
        ("accelerators:", "accelerator:", ["accelerator", "accelerators"]),
        ("value: 4, source", "value: 4.5, source", ["devices_per_node", "4.5", "whole"]),
    ],
)
def test_a_users_mistake_is_named(tmp_path: Path, find: str, put: str, expected: list[str]) -> None:
    path = written(tmp_path, OWN.replace(find, put, 1))
    assert OWN.replace(find, put, 1) != OWN
    with pytest.raises(SpecError) as caught:
        load_catalog([path])
    message = str(caught.value)
    assert "own.yaml" in message
    for part in expected:
        assert part in message


def test_files_that_are_no_catalogue(tmp_path: Path) -> None:
    for text in ("[1, 2]", "a: b: c", "accelerators: 5", "engines: {}"):
        with pytest.raises(SpecError, match=r"own\.yaml"):
            load_catalog([written(tmp_path, text)])
    with pytest.raises(SpecError, match="readable"):
        load_catalog([tmp_path / "absent.yaml"])


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("79.18GiB", "bytes", 79.18 * 2**30),
        ("400 Gb/s", "bytes/s", 50e9),
        ("400 GB/s", "bytes/s", 400e9),
        ("3.35 TB/s", "bytes/s", 3.35e12),
        ("989 TFLOP/s", "flop/s", 989e12),
        ("20.48 TOP/s", "flop/s", 20.48e12),
        ("1.2 kW", "watts", 1200),
        ("1.17 USD/h", "usd/h", 1.17),
        ("35 µs", "seconds", 35e-6),
    ],
)
def test_quantities(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension, "field") == pytest.approx(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["80", "GB", "80 G B", "0 GB", "-1 GB", "1e400 GB", "nan GB", "80 W", "", 80])
def test_quantities_refused(text: object) -> None:
    with pytest.raises(SpecError, match="memory"):
        parse_quantity(text, "bytes", "memory")


def test_workloads_and_objectives() -> None:
    workload = Workload(Lengths(1000, 500), Lengths(200), users=10)
    assert workload.mean_context == 1100
    assert workload.longest_context == pytest.approx(Lengths(1000, 500).quantile(0.99) + 200)
    assert Lengths(1000, 500).quantile(0.5) < 1000 < Lengths(1000, 500).quantile(0.9)
    assert Lengths(1000).quantile(0.9) == 1000


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Lengths(0), "lengths.mean"),
        (lambda: Lengths(float("nan")), "lengths.mean"),
        (lambda: Lengths(10, -1), "lengths.std"),
        (lambda: Lengths(10, 0, 5), "lengths.maximum"),
        (lambda: Workload(Lengths(1), Lengths(1)), "workload"),
        (lambda: Workload(Lengths(1), Lengths(1), users=-5), "workload.users"),
        (lambda: Workload(Lengths(1), Lengths(1), rate=1, prefix_hit=1.0), "workload.prefix_hit"),
        (lambda: Workload(Lengths(1), Lengths(1), rate=1, peak_to_mean=0.5), "workload.peak_to_mean"),
        (lambda: Slo(ttft=0), "slo.ttft"),
        (lambda: Slo(tpot=float("inf")), "slo.tpot"),
        (lambda: Slo(percentile=100), "slo.percentile"),
    ],
)
def test_impossible_traffic_is_refused_by_field(make: object, field: str) -> None:
    assert callable(make)
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.field == field


def test_the_example_in_the_documentation_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "catalog.md").read_text()
    example = page.split("```yaml\n", 1)[1].split("```", 1)[0]
    catalog = load_catalog([written(tmp_path, example)])
    assert catalog.accelerator("mine").price("owned") == 0.40
    assert catalog.accelerator("h100").price("rented") == 1.85
    assert catalog.clusters["lab"].devices == 8
