"""The planner as one call: names and plain numbers in, a plan out.

from shoal.plan import plan
from shoal.plan.explain import explain

answer = plan("llama-3.1-70b", gpu=["h200", "b200"], users=200, context=8192, tpot=0.05)
print(answer.best.name, "\\n".join(explain(answer).lines()))
"""

import re
from collections.abc import Sequence
from pathlib import Path

from shoal.plan.artifact import read_artifact
from shoal.plan.designs import Plan
from shoal.plan.question import Assurance, PriceBasis, Question, SplitMode, capabilities_of, engines_of
from shoal.plan.search import search
from shoal.specs.catalog import load_catalog
from shoal.specs.catalog.models import catalog_model
from shoal.specs.errors import SpecError, UnknownModel
from shoal.specs.hardware import Accelerator
from shoal.specs.load import load_model_spec
from shoal.specs.model import ModelSpec
from shoal.specs.traffic import MAX_TOKENS, Lengths, Slo, Workload, positive

ASSUMED_TTFT = 5.0
"""Seconds, where no target is given: what people wait before they suspect a fault."""
ASSUMED_TPOT = 0.05
"""Seconds, where no target is given: 20 tokens a second, faster than anyone reads."""
ASSUMED_CONTEXT = 8192
ASSUMED_OUTPUT = 512


_FILE_NAME = re.compile(r"^(\.{1,2}(/|$)|/|~)|\.(json|gguf|ya?ml)$", re.IGNORECASE)


def find_model(name: str, catalogs: Sequence[Path | str] = ()) -> ModelSpec:
    """The model at a path (directory, config.json, GGUF), or of this name in the catalogue.

    Raises `UnreadableModel` for what is written like a path and is none, `UnknownModel` for any other name.
    """
    if not name.strip():
        raise SpecError("model", name, "a model: a catalogued name, a Hugging Face id, or a path")
    try:
        return catalog_model(name, catalogs)
    except UnknownModel:
        # Second, so that a directory that happens to bear a model's name does not hide the model.
        if Path(name).expanduser().exists() or _FILE_NAME.search(name):
            return load_model_spec(str(Path(name).expanduser()) if name.startswith("~") else name)
        raise


def lengths(
    context: float | None, input_tokens: float | None, output_tokens: float | None, most: int
) -> tuple[Lengths, Lengths]:
    """Input and output of a request from what is known of them.

    `context` alone is held full by everybody; next to lengths it is the longest request to provide for. `most` is
    what the model was made for.
    """
    for field, value in (("context", context), ("input", input_tokens), ("output", output_tokens)):
        if value is not None:
            positive(field, value, MAX_TOKENS)
    if input_tokens is None:
        whole = context or min(ASSUMED_CONTEXT, most)
        output = output_tokens or max(1.0, min(ASSUMED_OUTPUT, whole // 4))
        if whole <= output:
            raise SpecError("context", whole, f"more than the output of {output:g} tokens")
        return Lengths(whole - output), Lengths(output)
    output = output_tokens or ASSUMED_OUTPUT
    if context is None:
        return Lengths(input_tokens), Lengths(output)
    if input_tokens + output > context:
        raise SpecError("context", context, f"at least input and output together, {input_tokens + output:g} tokens")
    return Lengths(input_tokens, maximum=context - output), Lengths(output)


def ask(
    model: str | ModelSpec,
    *,
    gpu: Sequence[str | Accelerator] = (),
    users: float | None = None,
    rate: float | None = None,
    context: float | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
    ttft: float | None = ASSUMED_TTFT,
    tpot: float | None = ASSUMED_TPOT,
    percentile: float = 50.0,
    prefix_hit: float = 0.0,
    peak_to_mean: float = 1.0,
    headroom: float = 0.1,
    spares: int = 0,
    max_devices: int | None = None,
    engine: str = "vllm",
    engine_version: str | None = None,
    weights: Sequence[str] = (),
    kv_dtypes: Sequence[str] = (),
    split: SplitMode = "auto",
    basis: PriceBasis = "owned",
    assurance: Assurance = "mean",
    memory_utilization: float | None = None,
    max_num_seqs: int | None = None,
    catalogs: Sequence[Path | str] = (),
    constants: Path | str | None = None,
) -> Question:
    """A question from names and numbers: tokens, seconds, shares. Empty `gpu`: every accelerator of the catalogue
    but those that are considered by name only. `constants` is a file of `shoal plan calibrate`.

    Raises `SpecError` (or a kind of it) naming the field, the value and what would be accepted.
    """
    spec = find_model(model, catalogs) if isinstance(model, str) else model
    catalog = load_catalog(catalogs)
    named = [catalog.accelerator(part) if isinstance(part, str) else part for part in gpu]
    found = named or list(catalog.considered)
    into, out = lengths(context, input_tokens, output_tokens, spec.max_position)
    if users is None and rate is None:
        users = 1.0
    workload = Workload(into, out, users, rate, prefix_hit, peak_to_mean)
    return Question(
        spec, workload, Slo(ttft, tpot, percentile), tuple(dict.fromkeys(found)),
        engines_of(catalog, engine, engine_version),
        tuple(weights), tuple(kv_dtypes), basis, split, headroom, spares, max_devices, assurance=assurance,
        capabilities=capabilities_of(catalog, engine, engine_version), memory_fraction=memory_utilization,
        max_sequences=max_num_seqs,
        constants=None if constants is None else read_artifact(Path(constants)),
    )  # fmt: skip


def plan(
    model: str | ModelSpec,
    *,
    gpu: Sequence[str] = (),
    users: float | None = None,
    rate: float | None = None,
    context: float | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
    ttft: float | None = ASSUMED_TTFT,
    tpot: float | None = ASSUMED_TPOT,
    prefix_hit: float = 0.0,
    peak_to_mean: float = 1.0,
    spares: int = 0,
    max_devices: int | None = None,
) -> Plan:
    """`search(ask(...))` with the arguments most questions need; see `ask` for all of them."""
    return search(
        ask(
            model, gpu=gpu, users=users, rate=rate, context=context, input_tokens=input_tokens,
            output_tokens=output_tokens, ttft=ttft, tpot=tpot, prefix_hit=prefix_hit, peak_to_mean=peak_to_mean,
            spares=spares, max_devices=max_devices,
        )
    )  # fmt: skip
