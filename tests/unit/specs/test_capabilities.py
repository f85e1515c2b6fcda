"""Fault 2 of issue 14: what each engine version can do restricts search, fit and emit; a test per line.

Each line (engine, version, field) is checked against a design or a refusal that it decides. A field without a check
here fails the test.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.plan.api import ask
from shoal.plan.candidates import Candidate, gate, shapes
from shoal.plan.designs import Miss
from shoal.plan.search import search
from shoal.specs import catalog_model
from shoal.specs.catalog import EngineCapability, load_catalog
from shoal.specs.catalog.capabilities import ARCHITECTURES, format_family
from shoal.specs.catalog.hand_over import hand_over_problem, shared_backend
from shoal.specs.catalog.models import known_models
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import AXES, Layout

CATALOG = load_catalog()
DENSE, MOE = "llama-3.1-8b", "qwen3-30b-a3b"
LINES = [(row, fact.field) for row in CATALOG.capabilities for fact in row.facts]


def part(architecture: str) -> Accelerator:
    return next(a for a in CATALOG.accelerators.values() if a.architecture == architecture)


def _parts(row: EngineCapability) -> None:
    for architecture in ARCHITECTURES:
        assert row.runs_on(part(architecture)) == (architecture in row.parts)
    # One that the table was not made for, from a user's own catalogue, has nothing held against it.
    assert row.runs_on(replace(part("hopper"), architecture="homemade"))


def _axes(row: EngineCapability) -> None:
    for axis in AXES:
        layout = Layout(ep=2, tp=2) if axis == "ep" else Layout(dp=2, ep=2) if axis == "dp" else Layout(**{axis: 2})
        problem = row.layout_problem(catalog_model(MOE), layout)
        assert (problem is None) == (axis in row.axes), (axis, problem)


def _heads(row: EngineCapability) -> None:
    uneven = row.layout_problem(catalog_model(DENSE), Layout(tp=3))
    assert (uneven is None) == (row.heads == "groups")
    assert row.layout_problem(catalog_model(DENSE), Layout(tp=4)) is None


def _experts(row: EngineCapability) -> None:
    part_of_stage = row.layout_problem(catalog_model(MOE), Layout(tp=4, ep=2))
    assert (part_of_stage is None) == (row.experts != "stage")
    # 128 experts over three ranks.
    undivided = row.layout_problem(catalog_model(MOE), Layout(dp=3, ep=3))
    assert (undivided is None) == (row.experts != "divides")


def _weights(row: EngineCapability) -> None:
    methods = {"bf16": "bfloat16", "int8": "int8", "int4": "int4_symmetric", "fp8": "fp8_channel"}
    for family, architectures in row.weights:
        method = methods.get(family, family)
        assert format_family(method) == family
        for architecture in ARCHITECTURES:
            refused = row.format_problem(method, part(architecture))
            assert (refused is None) == (architecture in architectures or row.engine == "shoal")


def _caches(row: EngineCapability) -> None:
    for dtype in ("fp32", "bf16", "fp8", "int8"):
        allowed = dict(row.caches).get(dtype, ())
        for architecture in ARCHITECTURES:
            assert (row.cache_problem(dtype, part(architecture)) is None) == (architecture in allowed)


def _rounds(row: EngineCapability) -> None:
    known = {name for name, _ in row.weights}
    assert set(row.rounds) <= known


def _connector(row: EngineCapability) -> None:
    assert row.layout_problem(catalog_model(DENSE), Layout(), role="decode") is None
    without = replace(row, connector=())
    assert "hands no KV over" in (without.layout_problem(catalog_model(DENSE), Layout(), role="prefill") or "")


def _reach(row: EngineCapability) -> None:
    gpu = "cpu" if row.engine == "shoal" else "h100"
    question = ask(
        "smollm2-135m", gpu=[gpu], users=4000, input_tokens=2000, output_tokens=200, split="only", tpot=1.0,
        engine=row.engine, engine_version=row.version or None, ttft=60.0,
    )  # fmt: skip
    found = search(question)
    wide = [d for d in found.designs if d.devices > d.accelerator.devices_per_node]
    assert bool(wide) == (row.reach == "network")


def _role_axes(role: str) -> Callable[[EngineCapability], None]:
    def check(row: EngineCapability) -> None:
        allowed = row.prefill_axes if role == "prefill" else row.decode_axes
        for axis in ("tp", "pp"):
            layout = Layout(**{axis: 2})
            refused = row.layout_problem(catalog_model(DENSE), layout, role=role)  # type: ignore[arg-type]
            assert (refused is None) == (axis in allowed), (axis, refused)
            assert row.layout_problem(catalog_model(DENSE), layout) is None

    return check


def _degrees(row: EngineCapability) -> None:
    dense, window, latent = (catalog_model(name) for name in (DENSE, "gpt-oss-20b", "deepseek-v3"))
    narrower = hand_over_problem(row, dense, Layout(tp=4), Layout(tp=2))
    assert (narrower is not None) == ("decode_wider" in row.degrees)
    assert hand_over_problem(row, dense, Layout(tp=2), Layout(tp=4)) is None
    windows = hand_over_problem(row, window, Layout(tp=2), Layout(tp=4))
    assert (windows is not None) == ("equal_windows" in row.degrees)
    state = next(m for m in map(catalog_model, known_models()) if any(x.attention.linear for x in m.layers))
    states = hand_over_problem(row, state, Layout(tp=1), Layout(tp=2))
    assert (states is not None) == ("equal_states" in row.degrees)
    # A latent cache is whole on every rank: the degrees may differ either way.
    assert hand_over_problem(row, latent, Layout(tp=4), Layout(tp=2)) is None
    for model in (dense, window, latent, state):
        assert hand_over_problem(row, model, Layout(tp=2, dp=2), Layout(tp=2)) is None


def _mixes(row: EngineCapability) -> None:
    dense = catalog_model(DENSE)
    for one, other in itertools.permutations(ARCHITECTURES, 2):
        found = shared_backend(row, dense, part(one), part(other), "bf16")
        allowed = [name for name, parts in row.mixes if {one, other} <= set(parts)]
        assert found == (allowed[0] if allowed and part(one).vendor == part(other).vendor else None)
    assert shared_backend(row, dense, part("hopper"), part("hopper"), "fp8") == ""
    # Sinks, windows and latents have backends of their own on each architecture.
    assert shared_backend(row, catalog_model("gpt-oss-20b"), part("hopper"), part("ada"), "bf16") is None
    eight = shared_backend(row, dense, part("hopper"), part("ada"), "fp8")
    assert eight in ((None, "FLASHINFER") if row.engine == "vllm" else (None, "any"))


def _speculation(row: EngineCapability) -> None:
    assert set(row.speculation) <= {"ngram", "eagle", "mtp"}


def _images(row: EngineCapability) -> None:
    for vendor, _ in row.images:
        image = row.image(vendor) or ""
        assert ":" in image
        assert not image.endswith(":latest")
        assert "{" not in image
    assert row.image("Nobody") is None


def _release(row: EngineCapability) -> None:
    assert CATALOG.capability(row.engine, row.version).version == row.version


CHECKS: dict[str, Callable[[EngineCapability], None]] = {
    "parts": _parts, "axes": _axes, "heads": _heads, "experts": _experts, "weights": _weights, "caches": _caches,
    "rounds": _rounds, "connector": _connector, "reach": _reach, "prefill_axes": _role_axes("prefill"),
    "decode_axes": _role_axes("decode"), "degrees": _degrees, "mixes": _mixes,
    "speculation": _speculation, "images": _images, "release": _release,
}  # fmt: skip


@pytest.mark.parametrize(("row", "field"), LINES, ids=[f"{r.engine}-{r.since}-{f}" for r, f in LINES])
def test_every_line_decides(row: EngineCapability, field: str) -> None:
    CHECKS[field](row)
    (fact,) = (fact for fact in row.facts if fact.field == field)
    assert fact.source
    assert fact.date


def test_the_table_was_made_for_every_part_that_ships() -> None:
    assert {a.architecture for a in CATALOG.accelerators.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("version", ["0.12.0", "0.22.1", "0.33.0"])
@pytest.mark.parametrize("gpu", ["h100", "b200", "mi300x"])
def test_no_split_of_vllm_has_stages(version: str, gpu: str) -> None:
    """Decode with pp over NIXL was recommended, which vLLM's source says is not supported (vllm#40674)."""
    plan = search(ask("llama-3.1-70b", gpu=[gpu], users=100, context=8192, split="only", engine_version=version))
    assert plan.designs
    assert all(d.prefill is not None and d.prefill.pp == 1 and d.layout.pp == 1 for d in plan.designs)


def test_sglang_splits_have_stages_in_prefill_alone() -> None:
    plan = search(ask("llama-3.1-70b", gpu=["h100"], users=100, context=8192, split="only", engine="sglang"))
    assert plan.designs
    assert all(d.layout.pp == 1 for d in plan.designs)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3"])
def test_search_offers_only_what_the_engine_runs(engine: str, name: str) -> None:
    question = ask(name, gpu=["h100", "b200"], users=50, context=4096, engine=engine)
    able = question.capability_for(question.accelerators[0])
    held = [c for c in gate(question) if isinstance(c, Candidate)]
    assert held
    for c in held:
        assert able.layout_problem(question.model, c.layout) is None
        assert able.format_problem(c.weights.stored, c.accelerator) is None
        assert able.cache_problem(c.kv_dtype, c.accelerator) is None


def test_our_own_engine_is_offered_on_processors_only() -> None:
    question = ask("llama-3.1-8b", gpu=["h100", "cpu"], users=1, context=2048, engine="shoal")
    found = list(gate(question))
    assert {c.accelerator.name for c in found if isinstance(c, Candidate)} == {"cpu_server"}
    (refused,) = [m for m in found if isinstance(m, Miss) and m.accelerator == "h100_sxm"]
    assert "hopper" in refused.detail


def test_tensor_parallelism_of_our_own_engine_may_be_uneven() -> None:
    model = catalog_model("smollm2-135m")
    assert Layout(tp=2) in shapes(model, part("avx512_vnni"), 8)
    assert CATALOG.capability("shoal").layout_problem(model, Layout(tp=2)) is None
    assert "evenly" in (CATALOG.capability("vllm").layout_problem(model, Layout(tp=2)) or "")


@pytest.mark.parametrize(
    ("engine", "version", "accepted"),
    [("vllm", "99", "0.33.0"), ("vllm", "0.9", "0.12"), ("sglang", "0.4", "0.5"), ("vllm", "new", "numbers"),
     ("shoal", "1.0", "own")],
)  # fmt: skip
def test_versions_that_nobody_knows_are_refused(engine: str, version: str, accepted: str) -> None:
    with pytest.raises(SpecError, match=accepted) as caught:
        ask("llama-3.1-8b", gpu=["h100"], users=1, context=2048, engine=engine, engine_version=version)
    assert caught.value.field == "engine_version"


@pytest.mark.parametrize(
    ("given", "release"), [("0.22", "0.22.1"), ("v0.22.0", "0.22.0"), ("0.23", "0.23.0"), (None, "0.33.0")]
)
def test_a_version_is_a_release(given: str | None, release: str) -> None:
    assert CATALOG.capability("vllm", given).version == release
    assert CATALOG.capability("vllm", given).image("NVIDIA") == f"vllm/vllm-openai:v{release}"
