"""The calculators: the arithmetic one does on an envelope before planning, as pure functions.

Memory is decimal here (80 GB = 80e9 bytes), as on data sheets. Every function refuses what cannot be: negative,
zero, absurd. None of them knows about activations, fragmentation or an engine's rules; `shoal.plan.memory` does.
"""

import math
from dataclasses import dataclass

from shoal.specs.errors import SpecError
from shoal.specs.traffic import MAX_TOKENS, positive

HEADROOM = 0.2
"""Share of a device kept free for runtime and activations unless said otherwise."""
CLOSE = 0.005
"""A count this near a whole number, in devices, is too close to call: published sizes are rounded to about 1 %."""
MAX_PARAMETERS = 1e15
MAX_BYTES = 1e18
MAX_DEVICES = 1 << 20
MAX_USERS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """How many devices of one size hold something."""

    exact: float
    """Memory over usable memory of a device."""
    count: int
    """Devices to plan for: `exact` rounded up, or one more than the whole number it is too close to."""
    too_close: bool
    """The inputs' rounding decides on which side of a whole number `exact` is: `count - 1` or `count`."""

    def label(self) -> str:
        """`7`, or `6 or 7 (too close to call)`."""
        return f"{self.count - 1} or {self.count} (too close to call)" if self.too_close else str(self.count)


@dataclass(frozen=True, slots=True)
class UsableCount:
    """A count of devices that engines can run, and why the ones below it were passed over."""

    count: int
    tp: int
    pp: int
    passed_over: tuple[tuple[int, str], ...]
    """(count, reason), ascending."""


def _whole(field: str, value: int, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise SpecError(field, value, f"a whole number from 1 to {limit:,}")
    return value


def _share(field: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SpecError(field, value, "a share from 0 up to, not including, 1 (20 % is 0.2)")
    return value


def weight_bytes(parameters: float, bytes_per_parameter: float) -> float:
    """Bytes of all weights at one width."""
    positive("parameters", parameters, MAX_PARAMETERS)
    positive("bytes_per_parameter", bytes_per_parameter, 8)
    return parameters * bytes_per_parameter


def gqa_bytes_per_token(layers: int, kv_heads: int, head_dim: int, element_bytes: float) -> float:
    """KV bytes of a token with grouped-query attention: keys and values of every layer and KV head."""
    _whole("layers", layers, 100_000)
    _whole("kv_heads", kv_heads, 100_000)
    _whole("head_dim", head_dim, 100_000)
    return 2 * layers * kv_heads * head_dim * positive("element_bytes", element_bytes, 8)


def kv_bytes(bytes_per_token: float, context: float, users: float = 1) -> float:
    """KV bytes of `users` sequences of `context` tokens, where every layer keeps every token."""
    positive("bytes_per_token", bytes_per_token, 1e12)
    positive("context", context, MAX_TOKENS)
    positive("users", users, MAX_USERS)
    return bytes_per_token * context * users


def devices_needed(total_bytes: float, device_bytes: float, headroom: float = HEADROOM) -> DeviceCount:
    """Devices that hold `total_bytes` when a share `headroom` of each is kept free."""
    positive("total_bytes", total_bytes, MAX_BYTES)
    positive("device_bytes", device_bytes, MAX_BYTES)
    exact = total_bytes / (device_bytes * (1 - _share("headroom", headroom)))
    whole = round(exact)
    if whole >= 1 and abs(exact - whole) <= CLOSE:
        return DeviceCount(exact, whole + 1, True)
    return DeviceCount(exact, math.ceil(exact), False)


def usable_count(minimum: int, heads: int, layers: int, devices_per_node: int) -> UsableCount:
    """The smallest count from `minimum` on that splits into tensor parallelism inside a node and pipeline stages
    across nodes: tp divides the heads, every stage has a layer, and beyond one node the nodes are whole.

    Raises `SpecError` where no count can (more devices than a layer each of every node can fill).
    """
    _whole("minimum", minimum, MAX_DEVICES)
    _whole("heads", heads, 1_000_000)
    _whole("layers", layers, 100_000)
    _whole("devices_per_node", devices_per_node, 100_000)
    passed_over: list[tuple[int, str]] = []
    for count in range(minimum, devices_per_node * layers + 1):
        tp = min(count, devices_per_node)
        if count > devices_per_node and count % devices_per_node:
            passed_over.append((count, f"not whole nodes of {devices_per_node}"))
        elif heads % tp:
            passed_over.append((count, f"tensor parallelism over {tp} does not divide {heads} heads"))
        else:
            return UsableCount(count, tp, count // tp, tuple(passed_over))
    raise SpecError("minimum", minimum, f"at most {devices_per_node * layers} devices for {layers} layers")


def bubble(stages: int, micro_batches: int) -> float:
    """Idle share of a pipeline, (K - 1)/(M + K - 1): GPipe (arXiv:1811.06965), an idealized bound for serving."""
    _whole("stages", stages, 100_000)
    _whole("micro_batches", micro_batches, 1_000_000_000)
    return (stages - 1) / (micro_batches + stages - 1)


def handoff_seconds(
    cache_bytes: float,
    bandwidth: float,
    ports: int = 1,
    efficiency: float = 1.0,
    latency: float = 0.0,
    overlapped_layers: int = 1,
) -> float:
    """Seconds until a cache has moved over `ports` links of `bandwidth` bytes/s each, used to `efficiency`.

    With `overlapped_layers` = L, each layer is sent while the next is computed, and only the last layer's share of
    the transfer is waited for: the most that streaming can hide, (L - 1)/L.
    """
    positive("cache_bytes", cache_bytes, MAX_BYTES)
    positive("bandwidth", bandwidth, 1e15)
    positive("latency", latency, 3600, zero=True)
    if not 0 < efficiency <= 1:
        raise SpecError("efficiency", efficiency, "a share above 0 and at most 1")
    exposed = cache_bytes / _whole("overlapped_layers", overlapped_layers, 100_000)
    return latency + exposed / (bandwidth * _whole("ports", ports, 100_000) * efficiency)


def cost_per_day(devices: float, price: float) -> float:
    """US dollars a day of `devices` (a mean may be fractional) at `price` dollars a device-hour."""
    return positive("devices", devices, MAX_DEVICES) * 24 * positive("price", price, 100_000)


def cost_per_million(devices: float, price: float, tokens_per_second: float, utilization: float = 1.0) -> float:
    """US dollars a million tokens. `tokens_per_second` is what all devices together do when busy; `utilization` the
    share of the time that they are (1 over peak-to-mean traffic)."""
    positive("devices", devices, MAX_DEVICES)
    positive("price", price, 100_000)
    positive("tokens_per_second", tokens_per_second, 1e12)
    if not 0 < utilization <= 1:
        raise SpecError("utilization", utilization, "a share above 0 and at most 1")
    return devices * price / (tokens_per_second * 3600) * 1e6 / utilization


@dataclass(frozen=True, slots=True)
class SizingOption:
    """One row of the worked example."""

    weights: str
    cache: str
    weight_bytes: float
    cache_bytes: float
    counts: tuple[tuple[str, DeviceCount], ...]
    """(device, count) for every device asked about."""

    @property
    def total_bytes(self) -> float:
        return self.weight_bytes + self.cache_bytes


def sizing_table(
    parameters: float,
    bytes_per_token: float,
    context: float,
    users: float,
    devices: tuple[tuple[str, float], ...],
    headroom: float = HEADROOM,
) -> list[SizingOption]:
    """Weights and cache each at 16 and at 8 bits, against devices of the given (name, bytes).

    `bytes_per_token` is of a 16-bit cache.
    """
    options = []
    for weights, width in (("BF16", 2.0), ("FP8", 1.0)):
        for cache, factor in (("BF16", 1.0), ("FP8", 0.5)):
            held = weight_bytes(parameters, width)
            cached = kv_bytes(bytes_per_token * factor, context, users)
            counts = tuple((name, devices_needed(held + cached, size, headroom)) for name, size in devices)
            options.append(SizingOption(weights, cache, held, cached, counts))
    return options
