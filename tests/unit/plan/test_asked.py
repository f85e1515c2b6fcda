"""Issue 14, faults 1 and 12: one reader of a question for page, command line and files; every answer repeats it."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli.model_spec import model_spec
from shoal.plan.asked import FIELDS, Asked, Refused, asked_from, read_asked
from shoal.plan.restate import command, restate
from shoal.specs.catalog import load_catalog
from shoal.specs.catalog.part_names import parse_owned
from shoal.specs.errors import SpecError, UnknownModel
from shoal.specs.load import load_model_spec, parse_config_text
from shoal.specs.quantization import format_name

MODEL = "llama-3.1-70b"


def test_what_people_type_is_understood() -> None:
    read = read_asked(
        Asked(
            model=MODEL, gpu="8xH100", users="10k", rate="5/s", input="8k", output="1,024", ttft="5S", tpot="500ms",
            percentile="p95", prefix_hit="50%", peak_to_mean="3x", headroom="20 %", spares="1", weights="w4a16",
            kv_dtype="fp8_e4m3", split="Never", prices="rented",
        )
    )  # fmt: skip
    question, load, slo = read.question, read.question.workload, read.question.slo
    assert (load.users, load.rate, load.input.mean, load.output.mean) == (10_000, 5, 8192, 1024)
    assert (slo.ttft, slo.tpot, slo.percentile) == (5, 0.5, 95)
    assert (load.prefix_hit, load.peak_to_mean, question.headroom, question.spares) == (0.5, 3, 0.2, 1)
    assert (question.weights, question.kv_dtypes, question.split, question.basis) == (
        ("int4",), ("fp8",), "never", "rented",
    )  # fmt: skip
    assert [a.name for a in question.accelerators] == ["h100_sxm"]
    assert question.max_devices == 8
    assert not read.inverse


def test_everything_wrong_is_said_at_once_by_field() -> None:
    with pytest.raises(Refused) as caught:
        read_asked(Asked(model=MODEL, users="many", ttft="2", prefix_hit="100%", gpu="h999", kv_dtype="fp7"))
    problems = {problem.field: problem for problem in caught.value.problems}
    assert set(problems) == {"users", "ttft", "prefix_hit", "gpu", "kv_dtype"}
    assert "2ms or 2s" in problems["ttft"].accepted
    assert problems["users"].value == "many"


@pytest.mark.parametrize(
    ("asked", "field", "said"),
    [
        (Asked(model=MODEL, gpu=""), "gpu", "an accelerator such as h100"),
        (Asked(model=MODEL, users="-5"), "users", "200, 8,192 or 10k"),
        (Asked(model=MODEL, context="9M"), "context", "131,072"),
        (Asked(model=MODEL, input="4k", output="8k", context="2k"), "context", "at least input and output"),
        (Asked(model=MODEL, headroom="200%"), "headroom", "100%"),
        (Asked(model=MODEL, weights="w8a8"), "weights", "fp8 or int8"),
        (Asked(model=MODEL, engine="vlm"), "engine", "vllm"),
        (Asked(model=MODEL, gpu="4xh100, 8xa100", users="8"), "gpu", "one count for all"),
        (Asked(model=MODEL, gpu="8"), "gpu", "8xh100"),
        (Asked(), "model", "a model"),
        (Asked(model=""), "model", "a model"),
    ],
)
def test_a_field_that_cannot_be_is_named_as_it_was_typed(asked: Asked, field: str, said: str) -> None:
    with pytest.raises(Refused) as caught:
        read_asked(asked)
    problem = caught.value.problems[0]
    assert problem.field == field
    assert said in problem.accepted
    assert problem.value == getattr(asked, field)


shares = st.integers(min_value=0, max_value=99).map(lambda p: f"{p}%")
questions = st.fixed_dictionaries(
    {"model": st.sampled_from([MODEL, "gpt-oss-120b", "deepseek-v3"])},
    optional={
        "gpu": st.sampled_from(["h100", "8xH200", "b200, mi300x", "4x A100 40GB", "rtx 4090"]),
        "users": st.sampled_from(["1", "10k", "8,192", "0.5k"]),
        "rate": st.sampled_from(["5/s", "300/min", "2.5 rps"]),
        "input": st.sampled_from(["1k", "4,000", "512"]),
        "output": st.sampled_from(["128", "1k"]),
        "ttft": st.sampled_from(["2s", "800ms", "none", "0.5 S"]),
        "tpot": st.sampled_from(["50ms", "33MS", "none"]),
        "percentile": st.sampled_from(["p95", "99.9", "median"]),
        "prefix_hit": shares,
        "peak_to_mean": st.sampled_from(["1", "2.5x"]),
        "headroom": shares,
        "spares": st.sampled_from(["0", "2"]),
        "weights": st.sampled_from(["fp8", "checkpoint, w4a16", "nvfp4"]),
        "kv_dtype": st.sampled_from(["bf16", "fp8_e5m2"]),
        "split": st.sampled_from(["auto", "never", "only"]),
        "prices": st.sampled_from(["owned", "rented"]),
        "sized_for": st.sampled_from(["mean", "high"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(questions)
def test_a_question_restated_is_the_same_question(texts: dict[str, str]) -> None:
    asked = asked_from(texts)
    question = read_asked(asked).question
    program, verb, model, *options = shlex.split(command(asked))
    assert (program, verb, model) == ("shoal", "plan", asked.model)
    typed = {name.removeprefix("--"): value for name, value in zip(options[::2], options[1::2], strict=True)}
    assert read_asked(asked_from({"model": model, **typed})).question == question
    words = restate(question)
    assert f"{question.workload.input.mean:,.0f} tokens in" in words
    assert f"p{question.slo.percentile:g}" in words
    assert f"{question.headroom:.0%} headroom" in words


def test_a_file_of_numbers_and_lists_says_the_same() -> None:
    typed = asked_from({"model": MODEL, "users": 200, "prefix-hit": 0.5, "gpu": ["h100", "h200"], "rate": None})
    assert typed == Asked(model=MODEL, users="200", prefix_hit="0.5", gpu="h100, h200")
    with pytest.raises(SpecError, match="usres"):
        asked_from({"usres": 1})
    with pytest.raises(SpecError, match="a text, a number"):
        asked_from({"users": {"a": 1}})
    assert "model" in FIELDS


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100 PCIe", "h100_pcie"), ("h100-nvl", "h100_nvl"), ("A100 40 GB", "a100_sxm_40gb"), ("a100", "a100_sxm"),
        ("A100 80GB PCIe", "a100_pcie"), ("A10G", "a10g"), ("Tesla T4", "t4"), ("3090", "rtx_3090"),
        ("GeForce RTX 4090", "rtx_4090"), ("DGX Spark", "gb10"), ("GB10", "gb10"), ("gb200 nvl72", "gb200"),
        ("Mac Studio M3 Ultra", "m3_ultra"), ("M4 Max 64GB", "m4_max_64gb"), ("AMD Instinct MI300X", "mi300x"),
        ("H100-SXM5-80GB", "h100_sxm"), ("RTX PRO 6000 Blackwell", "rtx_pro_6000"), ("6000 Ada", "rtx_6000_ada"),
    ],
)  # fmt: skip
def test_parts_by_the_names_people_use(typed: str, name: str) -> None:
    assert load_catalog().accelerator(typed).name == name


def test_a_part_in_a_size_it_is_not_made_in_lists_its_sizes() -> None:
    with pytest.raises(SpecError, match=r"a100_sxm_40gb \(40 GB\)"):
        load_catalog().accelerator("a100 60gb")
    with pytest.raises(SpecError, match="h100"):
        load_catalog().accelerator("h10")


@pytest.mark.parametrize(
    ("typed", "count", "name"),
    [
        ("8", 8, ""), ("8xh100", 8, "h100"), ("4 × H100 SXM", 4, "H100 SXM"), ("8 h100", 8, "h100"),
        ("h100:8", 8, "h100"), ("h100x8", 8, "h100"), ("rtx4090", None, "rtx4090"), ("rtx4090x2", 2, "rtx4090"),
        ("2x8xh100", 16, "h100"), ("3090", None, "3090"),
        ("2x3090", 2, "3090"), ("h100", None, "h100"), ("1,024xh100", 1024, "h100"),
    ],
)  # fmt: skip
def test_counted_parts(typed: str, count: int | None, name: str) -> None:
    found = parse_owned(typed)
    assert (found.count, found.name) == (count, name)


def test_devices_without_traffic_ask_the_inverse_question(tmp_path: Path) -> None:
    read = read_asked(Asked(model=MODEL, gpu="4xh100, 8xa100"))
    assert read.inverse
    assert [(part.name, count) for part, count in read.owned] == [("h100_sxm", 4), ("a100_sxm", 8)]
    own = tmp_path / "own.yaml"
    own.write_text("clusters:\n  lab: {accelerator: h100, nodes: 2, devices_per_node: 4}\n")
    read = read_asked(Asked(model=MODEL, gpu="lab"), catalogs=[own])
    assert [(part.name, part.devices_per_node, count) for part, count in read.owned] == [("h100_sxm", 4, 8)]
    assert not read_asked(Asked(model=MODEL, gpu="4xh100", users="8")).inverse


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("w4a16", "int4"), ("W4A16", "int4"), ("fp8_e4m3", "fp8"), ("FP8-E4M3", "fp8"), ("4-bit", "int4"),
        ("half", "float16"), ("bf16", "bfloat16"), ("gptq", "int4"), ("nvfp4", "nvfp4"), ("w8a8-fp8", "fp8"),
    ],
)  # fmt: skip
def test_formats(typed: str, name: str) -> None:
    assert format_name(typed) == name


def _config(**more: object) -> dict[str, object]:
    from shoal.specs.catalog.models import catalog_entry

    return {**catalog_entry("llama-3.1-8b").config, **more}


def test_any_hugging_face_id_is_fetched_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"config.json": json.dumps(_config(num_hidden_layers=7)), "hf_quant_config.json": None}
    asked: list[tuple[str, str, str]] = []

    def fetch(repo: str, revision: str, name: str) -> str | None:
        asked.append((repo, revision, name))
        return files[name]

    found = model_spec("someone/My-Own-7B@abc", fetch=fetch)
    assert (found.name, len(found.layers)) == ("someone/My-Own-7B", 7)
    assert asked[0] == ("someone/My-Own-7B", "abc", "config.json")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SpecError, match="give the path of its") as caught:
        model_spec("mistralai/Mistral-Small-24B")
    assert "did you mean" not in str(caught.value)


def test_a_hub_that_does_not_answer_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from shoal.cli import model_spec as module

    monkeypatch.setattr(module, "FETCH_SECONDS", 0.2)
    for name in ("HF_HUB_OFFLINE", "SHOAL_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    never = threading.Event()

    def hang(repo: str, revision: str, name: str) -> str | None:
        never.wait(30)
        return None

    with pytest.raises(SpecError, match="did not answer within"):
        model_spec("someone/Slow-7B", fetch=hang)
    never.set()


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("lama-3.1-70b", "llama-3.1-70b"), ("llama-3.1-60b", None), ("qwen3-9b", None), ("gpt-4o", None),
        ("deepsek-v3", "deepseek-v3"),
    ],
)  # fmt: skip
def test_only_the_same_model_misspelled_is_suggested(typed: str, suggested: str | None) -> None:
    with pytest.raises(UnknownModel) as caught:
        model_spec(typed)
    if suggested is None:
        assert caught.value.suggestions == ()
    else:
        assert suggested in caught.value.suggestions


def test_a_missing_file_is_called_as_it_was_typed() -> None:
    with pytest.raises(SpecError, match=r"^\./missing\.json: no such file"):
        model_spec("./missing.json")


@pytest.mark.parametrize(
    ("quant", "method"),
    [
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8"),
        ({"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}, "nvfp4"),
        ({"quant_algo": "fp8_pb_wo"}, "fp8_block"),
        ({"quant_algo": "MXFP8"}, "mxfp8"),
        ({"quant_algo": "W4A8_AWQ"}, "int4"),
    ],
)
def test_modelopt_sidecars_and_compute_formats_are_read(
    tmp_path: Path, quant: dict[str, object], method: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_config()))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": quant})
    )
    stored = load_model_spec(tmp_path).quantization
    assert stored is not None
    assert stored.method == method
    inline = parse_config_text(json.dumps(_config(quantization_config=quant)), "inline").quantization
    assert inline is not None
    assert inline.method == method


def test_compressed_tensors_under_their_older_name_are_read() -> None:
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}}
    config = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": group}}
    stored = parse_config_text(json.dumps(_config(compression_config=config)), "older").quantization
    assert stored is not None
    assert stored.method == "nvfp4"
