"""A question as a person types it: every field a text, read here for the command line, the page and files alike.

    read = read_asked(Asked(model="llama-3.1-70b", users="10k", ttft="5s", gpu="8xh100"))
    plan = search(read.question)

All fields are read before anything is refused, so that one error names everything that is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from shoal.plan.api import ASSUMED_TPOT, ASSUMED_TTFT, ask, find_model
from shoal.plan.given import NamedLayout, parse_layouts
from shoal.plan.growth import MAX_MONTHS, Growth, parse_growth
from shoal.plan.kv import kv_dtype_name
from shoal.plan.question import Assurance, PriceBasis, Question, SplitMode
from shoal.specs.catalog import Catalog, load_catalog
from shoal.specs.catalog.part_names import Owned, parse_owned
from shoal.specs.errors import SpecError, UnknownArchitecture, UnknownModel, UnreadableModel, unknown_name
from shoal.specs.hardware import Accelerator
from shoal.specs.model import ModelSpec
from shoal.specs.quantities import (
    parse_choice,
    parse_count,
    parse_list,
    parse_percentile,
    parse_rate,
    parse_ratio,
    parse_seconds,
    parse_share,
    parse_tokens,
    parse_whole,
)
from shoal.specs.quantization import format_name

Value = TypeVar("Value")
Default = TypeVar("Default")
FindModel = Callable[[str], ModelSpec]

SPLITS: Mapping[str, SplitMode] = {"auto": "auto", "never": "never", "only": "only"}
PRICES: Mapping[str, PriceBasis] = {"owned": "owned", "rented": "rented"}
SIZED_FOR: Mapping[str, Assurance] = {"mean": "mean", "high": "high"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One question in words. None: not given, so that the default holds; see docs/planning.md for each field."""

    model: str | None = None
    gpu: str | None = None
    """Accelerators, counts or both, separated by commas: "h100, h200", "8xh100", "8", a cluster's name."""
    users: str | None = None
    rate: str | None = None
    context: str | None = None
    input: str | None = None
    output: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    percentile: str | None = None
    prefix_hit: str | None = None
    peak_to_mean: str | None = None
    headroom: str | None = None
    spares: str | None = None
    max_devices: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    memory_utilization: str | None = None
    max_num_seqs: str | None = None
    weights: str | None = None
    kv_dtype: str | None = None
    split: str | None = None
    prices: str | None = None
    sized_for: str | None = None
    layout: str | None = None
    """Designs to evaluate instead of searching: "tp=8", "tp=4,pp=2 x2; tp=8"."""
    growth: str | None = None
    """How users grow by month: "15%/month", or users of each month."""
    months: str | None = None


FIELDS = tuple(field.name for field in fields(Asked))


class Refused(SpecError):
    """Everything that is wrong with a question, one error per field."""

    def __init__(self, problems: Sequence[SpecError]) -> None:
        first = problems[0]
        super().__init__(first.field, first.value, first.accepted)
        self.problems = tuple(problems)
        self.args = ("\n".join(str(problem) for problem in problems),)


@dataclass(frozen=True, slots=True)
class Read:
    """A question that was understood."""

    question: Question
    owned: tuple[tuple[Accelerator, int], ...]
    """Devices that the asker has, where `gpu` or `max_devices` counts them."""
    inverse: bool
    """Devices were counted and no traffic was given: the question is how much they carry."""
    layouts: tuple[NamedLayout, ...] = ()
    """Designs that were named."""
    growth: Growth | None = None
    months: int | None = None


def asked_from(values: Mapping[str, object], where: str = "question") -> Asked:
    """A question of a JSON or YAML mapping: texts as they are typed, and plain numbers, lists and nulls.

    Raises `SpecError` for a name that is no field.
    """
    texts: dict[str, str | None] = {}
    for name, value in values.items():
        field = str(name).replace("-", "_")
        if field not in FIELDS:
            raise unknown_name(f"{where}: field", name, FIELDS)
        if isinstance(value, list):
            texts[field] = ", ".join(str(item) for item in value)
        elif value is None or isinstance(value, str):
            texts[field] = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            texts[field] = f"{value:.12g}" if isinstance(value, float) else str(value)
        else:
            raise SpecError(field, value, "a text, a number or a list of them")
    return Asked(**texts)


def read_asked(
    asked: Asked, find: FindModel | None = None, catalogs: Sequence[Path | str] = (), engine: str = "vllm",
    shared: bool = False,
) -> Read:  # fmt: skip
    """Read every field and make the question of them.

    Args:
        find: finds the model of a name; default: the catalogue and the file system.
        engine: the engine where the question names none.
        shared: the devices counted are shared with other questions, so each part has its own count.

    Raises:
        Refused: with an error for each field that was not understood.
    """
    reader = _Reader(asked)
    catalog = load_catalog(catalogs)
    spec = reader.model(find or (lambda name: find_model(name, catalogs)))
    parts, counts = reader.parts(catalog)
    max_devices = reader.take("max_devices", lambda text, field: parse_whole(text, field, 1), None)
    users = reader.take("users", lambda text, field: parse_count(text, field, "200, 8,192 or 10k"), None)
    rate = reader.take("rate", parse_rate, None)
    values = {
        "users": users,
        "rate": rate,
        "context": reader.take("context", parse_tokens, None),
        "input_tokens": reader.take("input", parse_tokens, None),
        "output_tokens": reader.take("output", parse_tokens, None),
        "ttft": reader.take("ttft", parse_seconds, ASSUMED_TTFT),
        "tpot": reader.take("tpot", parse_seconds, ASSUMED_TPOT),
        "percentile": reader.take("percentile", parse_percentile, 50.0),
        "prefix_hit": reader.take("prefix_hit", parse_share, 0.0),
        "peak_to_mean": reader.take("peak_to_mean", parse_ratio, 1.0),
        "headroom": reader.take("headroom", parse_share, 0.1),
        "spares": reader.take("spares", parse_whole, 0),
        "memory_utilization": reader.take("memory_utilization", lambda t, f: parse_share(t, f, whole=True), None),
        "max_num_seqs": reader.take("max_num_seqs", lambda text, field: parse_whole(text, field, 1), None),
        "weights": reader.take("weights", lambda text, field: parse_list(text, field, _weights), ()),
        "kv_dtypes": reader.take("kv_dtype", lambda text, field: parse_list(text, field, _cache), ()),
        "split": reader.take("split", lambda text, field: parse_choice(text, field, SPLITS), "auto"),
        "basis": reader.take("prices", lambda text, field: parse_choice(text, field, PRICES), "owned"),
        "assurance": reader.take("sized_for", lambda text, field: parse_choice(text, field, SIZED_FOR), "mean"),
        "engine": asked.engine if asked.engine is not None else engine,
        "engine_version": asked.engine_version,
    }
    layouts = reader.take("layout", parse_layouts, ())
    growth = reader.take("growth", parse_growth, None)
    months = reader.take("months", lambda text, field: parse_whole(text, field, 1, MAX_MONTHS), None)
    if growth is not None and (layouts or (users is None and rate is None)):
        accepted = "users or a rate, and no layout: growth is that of a question that is searched"
        reader.problems.append(SpecError("growth", asked.growth, accepted))
    if months is not None and growth is None and asked.growth is None:
        reader.problems.append(SpecError("months", asked.months, "growth too, such as 15%/month"))
    if "" in counts and not parts and users is None and rate is None:
        accepted = "the accelerator too, such as 8xh100, or the traffic (users) that they are to carry"
        reader.problems.append(SpecError("gpu", asked.gpu, accepted))
    if counts and max_devices is None:
        max_devices = reader.one_count(counts, inverse=shared or (users is None and rate is None))
    if reader.problems or spec is None:
        raise Refused(reader.problems)
    try:
        question = ask(spec, gpu=parts, max_devices=max_devices, catalogs=catalogs, **values)  # type: ignore[arg-type]
    except SpecError as error:
        raise Refused([_in_users_terms(error, asked)]) from None
    owned = _owned(question.accelerators, parts, counts, max_devices)
    return Read(
        question, owned, bool(owned) and users is None and rate is None and not layouts, layouts, growth, months
    )


def _owned(
    accelerators: Sequence[Accelerator], named: Sequence[Accelerator], counts: Mapping[str, int], limit: int | None
) -> tuple[tuple[Accelerator, int], ...]:
    if not named:
        return ()
    found = ((part, counts.get(part.name, counts.get("", limit or 0))) for part in accelerators)
    return tuple((part, count) for part, count in found if count)


def _weights(text: str, field: str) -> str:
    if text.lower() in ("checkpoint", "native", "as published", "published", "original", "auto"):
        return "checkpoint"
    name = format_name(text, field)
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(name, name)


def _cache(text: str, field: str) -> str:
    return kv_dtype_name(text, field)


class _Reader:
    """Reads fields one by one and keeps what is wrong with each."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.problems: list[SpecError] = []

    def take(self, field: str, read: Callable[[str, str], Value], default: Default) -> Value | Default:
        """The field's value; the default where it is not given or wrong."""
        text: str | None = getattr(self.asked, field)
        if text is None:
            return default
        try:
            return read(text, field)
        except SpecError as error:
            self.problems.append(error)
            return default

    def model(self, find: FindModel) -> ModelSpec | None:
        if self.asked.model is None:
            self.problems.append(
                SpecError("model", None, "a model: a catalogued name, a Hugging Face id or a path")
            )
            return None
        try:
            return find(self.asked.model)
        except SpecError as error:
            if not isinstance(error, UnknownModel | UnknownArchitecture | UnreadableModel):
                error.field = error.field or "model"
            self.problems.append(error)
            return None

    def parts(self, catalog: Catalog) -> tuple[list[Accelerator], dict[str, int]]:
        """(accelerators named, devices there are by name; "" for those of a bare number)."""
        entries = self.take("gpu", lambda text, field: _entries(text, field), ())
        parts: list[Accelerator] = []
        counts: dict[str, int] = {}
        for entry in entries:
            if not entry.name and entry.count is not None:
                counts[""] = entry.count
                continue
            try:
                part, count = _part(catalog, entry)
            except SpecError as error:
                self.problems.append(error)
                continue
            parts.append(part)
            if count is not None:
                counts[part.name] = count
        return parts, counts

    def one_count(self, counts: Mapping[str, int], inverse: bool) -> int | None:
        """The number of devices that there are; one number unless each part is asked about by itself."""
        values = set(counts.values())
        if len(values) == 1:
            return values.pop()
        if not inverse:
            accepted = (
                "one count for all, as traffic is not spread over different parts: 8xh100, or --users left out"
            )
            self.problems.append(SpecError("gpu", self.asked.gpu, accepted))
        return max(values)


def _entries(text: str, field: str) -> tuple[Owned, ...]:
    if not text.strip():
        raise SpecError(field, text, "an accelerator such as h100, or 8xh100; leave it out for all of them")
    return parse_list(text, field, parse_owned)


def _part(catalog: Catalog, entry: Owned) -> tuple[Accelerator, int | None]:
    cluster = catalog.clusters.get(entry.name)
    if cluster is None:
        return catalog.accelerator(entry.name), entry.count
    part = replace(cluster.accelerator, devices_per_node=cluster.devices_per_node)
    return part, cluster.devices * (entry.count or 1)


_TERMS: Mapping[str, str] = {
    "workload.users": "users", "workload.rate": "rate", "workload.prefix_hit": "prefix_hit",
    "workload.peak_to_mean": "peak_to_mean", "slo.ttft": "ttft", "slo.tpot": "tpot", "slo.percentile": "percentile",
    "lengths.mean": "input", "lengths.maximum": "context", "engine version": "engine_version",
    "quantization": "weights",
}  # fmt: skip


def _in_users_terms(error: SpecError, asked: Asked) -> SpecError:
    """The error with the field and the text that the person knows it by."""
    field = _TERMS.get(error.field, error.field)
    if field not in FIELDS:
        return error
    typed = getattr(asked, field)
    return SpecError(field, error.value if typed is None else typed, error.accepted)
