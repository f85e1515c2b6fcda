"""Measured rows: a CSV of end-to-end serving measurements, read strictly and turned into deployments.

The schema is that of aiconfigurator's silicon measurements: one row a run, either aggregated (`tp_size`, …) or
split (`prefill_*`, `decode_*`), with `silicon_ttft_ms` and `silicon_tpot_ms`. `batch_size` is the offered
concurrency, of one attention rank where `attention_dp_size` says so. Harnesses disagree about what the size
columns multiply, and many split rows do not say how many workers there were; `deployment_of` decides, by rules
that depend on the layout and the load alone, never on the model or the times.
"""

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from shoal.plan.deployment import Deployment, Pool
from shoal.plan.work import ModelWork, guess_work
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator, Link
from shoal.specs.layout import Layout

REQUIRED = (
    "backend", "model_path", "system", "precision", "mode", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip
_SIZES = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
_QUANTIZATIONS: Mapping[str, str] = MappingProxyType(
    {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "fp4": "fp4", "int4_wo": "int4",
     "int4": "int4", "int8": "int8", "int8_wo": "int8", "bf16": "bf16", "float16": "bf16", "fp16": "bf16"}
)  # fmt: skip
SMALL_LOAD = 600.0
"""Requests in flight below which an unstated split deployment is taken for several small decoding workers."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement with what it says about the deployment, times in seconds."""

    line: int
    id: str
    model: str
    system: str
    backend: str
    mode: str
    deployment: Deployment
    ttft: float
    tpot: float


ModelLookup = Callable[[str], ModelWork]
AcceleratorLookup = Callable[[str], Accelerator | None]


@dataclass(frozen=True, slots=True)
class _Record:
    """One line of the file, with errors that name it."""

    path: str
    line: int
    values: dict[str, str]

    def error(self, field: str, accepted: str) -> SpecError:
        return SpecError(f"{self.path}, line {self.line}, {field}", self.values.get(field, ""), accepted)

    def text(self, field: str) -> str:
        return (self.values.get(field) or "").strip()

    def number(self, field: str, minimum: float = 0.0) -> float | None:
        """The number in this field, None where it is empty."""
        text = self.text(field)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(field, "a number") from None
        if not math.isfinite(value) or value < minimum:
            raise self.error(field, f"a finite number, {minimum:g} or more")
        return value

    def positive(self, field: str) -> float:
        value = self.number(field)
        if value is None or value <= 0:
            raise self.error(field, "a number above 0")
        return value


def read_rows(path: Path, models: ModelLookup, accelerators: AcceleratorLookup) -> list[Row]:
    """Every row of the file. Raises `SpecError` naming line, field and value for one that cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            reader = csv.DictReader(handle)
            missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
            if missing:
                raise SpecError(
                    f"{path}: columns", ", ".join(reader.fieldnames or ()), f"a header with {', '.join(missing)}"
                )
            records = [_Record(str(path), reader.line_num, _texts(values)) for values in reader]
    except FileNotFoundError:
        raise SpecError("rows", str(path), "a CSV file that exists") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SpecError("rows", str(path), f"a CSV file in UTF-8 ({error})") from None
    if not records:
        raise SpecError("rows", str(path), "at least one row")
    return [_row(record, models, accelerators) for record in records]


def _texts(values: dict[str | None, object]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key is not None and isinstance(value, str)}


def _row(record: _Record, models: ModelLookup, accelerators: AcceleratorLookup) -> Row:
    mode = record.text("mode")
    if mode not in ("agg", "disagg"):
        raise record.error("mode", "agg or disagg")
    name, system = record.text("model_path"), record.text("system")
    if not name:
        raise record.error("model_path", "a model's name")
    model = models(name)
    accelerator = accelerators(system) or unknown_accelerator(system)
    deployment = deployment_of(record, model, accelerator, mode)
    ttft, tpot = record.positive("silicon_ttft_ms") / 1e3, record.positive("silicon_tpot_ms") / 1e3
    backend = record.text("backend").lower()
    return Row(record.line, record.text("id"), name, system, backend, mode, deployment, ttft, tpot)


def unknown_accelerator(name: str) -> Accelerator:
    """A stand-in for hardware nobody described: an H100-class device, so that every row is answered."""
    link = Link("scale-up", 450e9, 8)
    rates = (("bf16", 989e12), ("fp8", 1979e12))
    return Accelerator(name, "unknown", "unknown", 80e9, 3.35e12, rates, link, Link("nic", 50e9), 8)


@dataclass(frozen=True, slots=True)
class _Shape:
    """One pool's columns, normalised: devices of a worker, attention DP and expert groups."""

    devices: int
    attention_dp: int
    ep: int
    fleet: bool = False
    """The size is that of the whole fleet, both pools together."""

    def layout(self) -> Layout:
        dp = max(1, min(self.attention_dp, self.devices))
        ep = self.ep if self.devices % max(1, self.ep) == 0 else 1
        return Layout(tp=max(1, self.devices // dp), dp=dp, ep=max(1, ep))


def _square_root(value: int) -> int:
    root = math.isqrt(value)
    return root if root > 1 and root * root == value else 0


def _shape(record: _Record, prefix: str, scale_up: int) -> _Shape:
    """Devices of a worker from its size columns.

    tp × attention_dp devices, as a rule. Two harness habits are undone: devices squared, because tp was multiplied
    by the attention DP or expert degree that is spread over the same devices; and, on a rack-scale machine, the
    whole fleet's devices written as one pool's tp.
    """
    tp, _, dp, moe_tp, ep = (int(record.number(prefix + name) or 0) for name in _SIZES)
    stated = dp > 0
    tp, dp, moe_tp, ep = max(tp, 1), max(dp, 1), max(moe_tp, 1), max(ep, 1)
    devices, moe = tp * dp, moe_tp * ep
    root = _square_root(devices)
    squared_experts = moe_tp == ep == root and (dp > 1 or devices > 8)
    squared_tensor = tp == dp == root and ep == devices
    if stated and root and moe == devices and (squared_experts or squared_tensor):
        return _Shape(root, min(dp, root), root)
    fleet = devices >= 12 and moe_tp == devices and scale_up > 8
    return _Shape(devices, dp, ep if moe == devices else min(ep, devices), fleet)


def deployment_of(record: _Record, model: ModelWork, accelerator: Accelerator, mode: str) -> Deployment:
    """What a row describes, with what it leaves out assumed from layout and load."""
    backend = record.text("backend").lower()
    precision = _precision(record, model)
    isl, osl = record.positive("isl"), record.positive("osl")
    domain = accelerator.domain

    def deployment(pool: Pool, prefill: Pool | None, concurrency: float, assumed: bool) -> Deployment:
        return Deployment(model, accelerator, precision, backend, pool, isl, osl, concurrency, prefill, assumed)

    if mode == "agg":
        shape = _shape(record, "", domain)
        batch = record.number("batch_size")
        offered = _offered(record)
        if batch is None and offered is None:
            raise record.error("batch_size", "the offered concurrency, a number above 0")
        concurrency = offered or (batch or 1.0) * shape.attention_dp
        if shape.fleet:
            pools = _fleet_pools(shape.devices, concurrency)
            return deployment(pools[1], pools[0], concurrency, True)
        replicas = 1
        if batch and offered:
            replicas = max(1, round(offered / (batch * shape.attention_dp)))
        return deployment(Pool(shape.layout(), replicas), None, concurrency, False)
    first, then = _shape(record, "prefill_", domain), _shape(record, "decode_", domain)
    workers = record.number("decode_num_workers")
    prefillers = record.number("prefill_num_workers")
    batch = record.number("decode_batch_size")
    concurrency = _offered(record) or (batch or 32.0) * (workers or 1.0) * then.attention_dp
    if workers and prefillers:
        pools = Pool(first.layout(), max(1, int(prefillers))), Pool(then.layout(), max(1, int(workers)))
        return deployment(pools[1], pools[0], concurrency, False)
    if first.fleet and then.fleet and first.devices == then.devices:
        pools = _fleet_pools(then.devices, concurrency)
    else:
        pools = _assumed_pools(first, then, model, accelerator, backend, concurrency, isl, osl)
    return deployment(pools[1], pools[0], concurrency, True)


def _offered(record: _Record) -> float | None:
    """Requests in flight over the whole deployment, where the row's provenance names them."""
    found = _CONCURRENCY.search(record.text("silicon_data_source"))
    return float(found[1]) if found and int(found[1]) > 0 else None


def _precision(record: _Record, model: ModelWork) -> str:
    """The weights' precision: as a column, else the checkpoint's name, else its publisher says."""
    for field in ("gemm_quant_mode", "precision", "moe_quant_mode"):
        text = record.text(field).lower()
        if text in _QUANTIZATIONS:
            return _QUANTIZATIONS[text]
    name = record.text("model_path").lower()
    named = next((value for mark, value in (("nvfp4", "fp4"), ("fp8", "fp8")) if mark in name), "")
    return named or _QUANTIZATIONS.get(model.native, "bf16")


def _fleet_pools(devices: int, concurrency: float) -> tuple[Pool, Pool]:
    """(prefill, decode) of a rack where only the total is known: wide decoders under load, else several of 8."""
    wide = concurrency >= SMALL_LOAD
    decode = min(32, 8 * max(1, (devices - 4) // 8)) if wide else 8
    prefill = 8 if devices - decode >= 8 else 4
    if wide:
        count = max(1, (devices - decode) // prefill)
        return (
            Pool(Layout(dp=prefill, ep=prefill), count),
            Pool(Layout(dp=decode, ep=decode), 1),
        )
    return Pool(Layout(tp=prefill, ep=prefill)), Pool(Layout(tp=8, ep=8), max(1, (devices - prefill) // 8))


def _assumed_pools(
    first: _Shape,
    then: _Shape,
    model: ModelWork,
    accelerator: Accelerator,
    backend: str,
    concurrency: float,
    isl: float,
    osl: float,
) -> tuple[Pool, Pool]:
    """(prefill, decode) where worker counts are not stated, as published recipes match the pools' rates.

    Wide expert-parallel decoders come one at a time, fed by more prefill workers the longer the prompts; small
    ones come several to one prefill worker. A size that cannot hold the weights is taken for unknown.
    """
    small = concurrency < SMALL_LOAD
    if model.total_weights * 0.55 > then.devices * accelerator.memory_bytes:
        wide = 4 if small else 32
        first, then = _Shape(4, 4, 4), _Shape(wide, wide, wide)
    rack = (accelerator.scale_up.domain or 8) > 8 or accelerator.architecture == "blackwell"
    spread = (
        (then.devices >= 16 and rack)
        or (then.devices == 8 and not small)
        or (then.devices == 8 and backend == "sglang" and concurrency >= 128)
    )
    workers, prefillers = 1, 1
    if then.devices >= 24:
        prefillers = 5 if isl > 2 * osl else 1 if osl > 2 * isl else 2
    elif then.devices == 16:
        workers = 2 if rack else 3
    elif then.devices <= 4:
        workers = 4 if small else 2
    elif backend == "trtllm" and small:
        workers = 7 if osl > 2 * isl else 4
    if spread:
        then = _Shape(then.devices, then.devices, then.ep)
        if model.top_k:
            first = _Shape(first.devices, first.devices, first.ep)
    return Pool(first.layout(), prefillers), Pool(then.layout(), workers)


def distinct(rows: Iterable[Row], by_name: bool = False) -> list[tuple[Row, float]]:
    """Rows with copies of one measurement merged, and how many there were.

    Measurements are re-published in several dumps and under several names of the same weights; `by_name` keeps
    those of different names apart.
    """
    counts: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        d = row.deployment
        what = (row.model if by_name else "", row.system, row.backend, d.precision, d.pool, d.prefill)
        load = (d.input_tokens, d.output_tokens, d.concurrency, round(row.ttft, 4), round(row.tpot, 6))
        key = (*what, *load, d.model.hidden, d.model.layers, d.model.experts)
        counts.setdefault(key, []).append(row)
    return [(group[0], float(len(group))) for group in counts.values()]


def plain_lookup(known: Callable[[str], ModelWork | None]) -> ModelLookup:
    """A lookup that answers for every name: the catalogue's model, or one guessed from the name."""
    cache: dict[str, ModelWork] = {}

    def lookup(name: str) -> ModelWork:
        if name not in cache:
            cache[name] = known(name) or guess_work(name)
        return cache[name]

    return lookup
