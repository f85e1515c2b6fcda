"""The page's calculators: fields as typed in, one line of answer, a note and the figures of a chart out."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from shoal.cli.calc_inputs import cache_of, device_of, weights_of
from shoal.cli.model_spec import page_model
from shoal.plan import calc
from shoal.plan.asked import Refused
from shoal.plan.kv import kv_dtype_bytes, kv_dtype_name
from shoal.plan.words import plural, usd
from shoal.specs.errors import SpecError
from shoal.specs.quantities import parse_count, parse_quantity, parse_share, parse_tokens, parse_whole
from shoal.specs.quantization import format_name
from shoal.specs.units import decimal_bytes, duration

Data = dict[str, object]
Value = TypeVar("Value")
_POINTS = 60


class Fields:
    """The fields of one form; what is wrong is kept until all of them were read."""

    def __init__(self, values: Mapping[str, object], catalogs: tuple[Path, ...]) -> None:
        self._values = values
        self.catalogs = catalogs
        self.problems: list[SpecError] = []

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        return str(value).strip()

    def attempt(self, read: Callable[[], Value], default: Value) -> Value:
        """What `read` returns; the default, and the error kept, where it refuses."""
        try:
            return read()
        except SpecError as error:
            field = error.field.removeprefix("--").replace("-", "_")
            known = "model" if field == "MODEL" or type(error) is not SpecError else field
            self.problems.append(SpecError(known, error.value, error.accepted))
            return default

    def number(self, name: str, read: Callable[[str, str], float]) -> float:
        """The field's value; NaN where it is wrong."""
        return self.attempt(lambda: read(self.text(name), name), math.nan)

    def whole(self, name: str, most: int = 100_000) -> int:
        return self.attempt(lambda: parse_whole(self.text(name), name, 1, most), 1)

    def check(self) -> None:
        if self.problems:
            raise Refused(self.problems)


def calculator_answer(body: bytes, catalogs: tuple[Path, ...]) -> Data:
    """One calculator's answer, for `{"calculator": name, "fields": {name: text}}`.

    Raises `Refused` with an error for each field, or `SpecError` for a calculator that there is not.
    """
    asked = msgspec.json.decode(body)
    name, fields = (asked.get("calculator"), asked.get("fields")) if isinstance(asked, dict) else (None, None)
    if not isinstance(name, str) or name not in _CALCULATORS or not isinstance(fields, dict):
        raise SpecError("calculator", name, f"one of {', '.join(_CALCULATORS)}, with its fields")
    return _CALCULATORS[name](Fields(fields, catalogs))


def _fit(fields: Fields) -> Data:
    name, gpu, stored_as = fields.text("model"), fields.text("gpu"), fields.text("dtype")
    model = fields.attempt(lambda: page_model(name, fields.catalogs) if name else None, None)
    as_stored = stored_as.lower() in ("", "as stored", "checkpoint", "native")
    dtype = fields.attempt(lambda: None if as_stored else format_name(stored_as, "dtype"), None)
    cache_dtype = fields.attempt(lambda: kv_dtype_name(fields.text("kv_dtype") or "bf16"), "bf16")
    shown, weights = "", math.nan
    if model is not None or not name:
        params = None if name else fields.text("params")
        shown, weights = fields.attempt(lambda: weights_of(model, params, dtype, fields.catalogs), (shown, weights))
    context = fields.number("context", parse_tokens)
    users = fields.number("users", lambda text, field: parse_count(text, field, "200 or 10k"))
    device, memory = fields.attempt(
        lambda: device_of(gpu or None, None if gpu else fields.text("memory"), fields.catalogs), ("", math.nan)
    )
    free = fields.number("headroom", parse_share)
    token = 0.0 if name else fields.number("token", lambda text, field: parse_count(text, field, "327,680"))
    fields.check()
    cache = token * context * users
    if model is not None:
        _, _, cache = cache_of(model, (None, None, None), cache_dtype, f"{context:.0f}", f"{users:.12g}", None)
    count = calc.devices_needed(weights + cache, memory, free)
    stored = f" in {dtype or 'bf16'}"
    if dtype is None and model is not None:
        stored = f" as stored ({model.quantization.method if model.quantization else model.dtype})"
    ratio = f" The cache is {cache / weights:.1f} times the weights." if cache > 1.1 * weights else ""
    usable = memory * (1 - free)
    note = (
        f"{shown}: weights{stored} {decimal_bytes(weights)}; cache of {plural(users, 'user')} × {context:,.0f} "
        f"tokens in {cache_dtype} {decimal_bytes(cache)}; {decimal_bytes(usable)} usable of {device} "
        f"({free:.0%} kept free): {count.exact:.3f} of them.{ratio}"
    )
    answer = f"{count.label()} devices" if count.too_close or count.count > 1 else "1 device"
    parts = [["weights", weights], ["cache", cache]]
    return {
        "answer": answer,
        "note": note,
        "parts": parts,
        "limit": [f"usable on {count.count}", usable * count.count],
    }


def _kv(fields: Fields) -> Data:
    element = fields.number("element", _element_bytes)
    layers = fields.whole("layers")
    if fields.text("kind") == "mla":
        latent, rope = fields.whole("latent"), fields.whole("rope")
        fields.check()
        token = layers * (latent + rope) * element
    else:
        heads, width = fields.whole("heads"), fields.whole("width")
        fields.check()
        token = calc.gqa_bytes_per_token(layers, heads, width, element)
    note = f"8K tokens: {decimal_bytes(token * 8192)}; 128K tokens: {decimal_bytes(token * 131_072)}."
    return {"answer": f"{decimal_bytes(token)} per token", "note": note}


def _element_bytes(text: str, field: str) -> float:
    """Bytes of an element of a cache: a dtype's name, or a plain number of bytes."""
    return kv_dtype_bytes(text, field) if not text[:1].isdigit() else parse_count(text, field, "bf16, fp8 or 2")


def _bubble(fields: Fields) -> Data:
    stages, micro = fields.whole("stages"), fields.whole("micro", 1_000_000)
    fields.check()
    last = max(8 * stages, micro)
    step = max(1, last // _POINTS)
    curve = [[m, calc.bubble(stages, m)] for m in range(1, last + 1, step)]
    idle = calc.bubble(stages, micro)
    return {"answer": f"{idle:.1%} idle", "note": "", "curve": curve, "mark": [micro, idle]}


def _handoff(fields: Fields) -> Data:
    size = fields.number("size", lambda text, field: parse_quantity(text, "bytes", field))
    rate = fields.number("bandwidth", lambda text, field: parse_quantity(text, "bytes/s", field))
    ports, layers = fields.whole("ports"), fields.whole("layers")
    efficiency = fields.number("efficiency", lambda text, field: parse_share(text, field, whole=True))
    fields.check()

    def seconds(bandwidth: float) -> float:
        return calc.handoff_seconds(size, bandwidth, ports, efficiency, 0.0, layers)

    points = [10.0 * 1.3**step for step in range(18)]
    note = f"{decimal_bytes(size)} over {plural(ports, 'port')} of {rate / 1e9:g} GB/s ({rate * 8 / 1e9:g} Gb/s)."
    return {"answer": duration(seconds(rate)), "note": note, "curve": [[b, seconds(b * 1e9)] for b in points]}


def _cost(fields: Fields) -> Data:
    devices = fields.number("devices", lambda text, field: parse_count(text, field, "8 or 1,814"))
    price = fields.number("price", lambda text, field: parse_quantity(text, "usd/h", field))
    tokens = fields.number("tokens", lambda text, field: parse_count(text, field, "14,800 or 15k"))
    busy = fields.number("utilization", lambda text, field: parse_share(text, field, whole=True))
    fields.check()
    million = calc.cost_per_million(devices, price, tokens, busy)
    note = f"{usd(calc.cost_per_day(devices, price))} a day at {usd(price)} per device-hour, busy {busy:.0%} of it."
    return {"answer": f"{usd(million)} per million tokens", "note": note}


_CALCULATORS: Mapping[str, Callable[[Fields], Data]] = {
    "fit": _fit, "kv": _kv, "bubble": _bubble, "handoff": _handoff, "cost": _cost,
}  # fmt: skip
