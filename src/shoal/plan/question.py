"""What a planner is asked: a model, its traffic, the latency promised, and what may be bought."""

from dataclasses import dataclass
from typing import Literal

from shoal.plan.kv import kv_dtype_bytes
from shoal.specs.catalog import Catalog, EngineMemory
from shoal.specs.errors import SpecError
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec
from shoal.specs.quantization import quantization
from shoal.specs.traffic import Slo, Workload, positive

PriceBasis = Literal["owned", "rented"]
SplitMode = Literal["auto", "never", "only"]
Assurance = Literal["mean", "high"]

MAX_DEVICES = 1 << 20
DEFAULT_REPLICA_LIMIT = 128
CPU_ENGINE = "shoal"
NVIDIA_ONLY = ("trtllm",)


@dataclass(frozen=True, slots=True)
class Question:
    """One planning question. Defaults leave every choice to the search."""

    model: ModelSpec
    workload: Workload
    slo: Slo
    accelerators: tuple[Accelerator, ...]
    engines: tuple[EngineMemory, ...]
    """Memory constants of the engine for accelerators with tensor cores, and of Shoal's own for processors."""
    weights: tuple[str, ...] = ()
    """How weights may be stored, by name (`checkpoint`, `bf16`, `fp8`, `int4`, …); empty: whatever the hardware
    multiplies."""
    kv_dtypes: tuple[str, ...] = ()
    """How the cache may be stored; empty: bf16, and fp8 where the hardware has it."""
    basis: PriceBasis = "owned"
    split: SplitMode = "auto"
    """Whether prefill and decode may (`auto`), must not or must have pools of their own."""
    headroom: float = 0.1
    """Share of a replica's capacity that stays free at the peak."""
    spares: int = 0
    """Replicas beyond those needed, so that this many may fail at the peak (N+1 is one)."""
    max_devices: int | None = None
    """Devices that there are; None: as many as it takes."""
    replica_limit: int = DEFAULT_REPLICA_LIMIT
    """Most devices of one replica."""
    assurance: Assurance = "mean"
    """`mean`: sized for the estimate; `high`: for the upper end of its interval."""
    layouts: tuple[Layout, ...] = ()
    """The layouts to consider; empty: every one that could be."""

    def __post_init__(self) -> None:
        if not self.accelerators:
            raise SpecError("gpu", "", "at least one accelerator")
        if not 0 <= self.headroom < 1:
            raise SpecError("headroom", self.headroom, "a share from 0 up to, not including, 1 (10 % is 0.1)")
        counts = (("spares", self.spares, 0), ("max_devices", self.max_devices, 1))
        for field, value, least in (*counts, ("replica_limit", self.replica_limit, 1)):
            if value is not None and (isinstance(value, bool) or not least <= value <= MAX_DEVICES):
                raise SpecError(field, value, f"a whole number from {least} to {MAX_DEVICES:,}")
        for name in self.weights:
            if name != "checkpoint":
                quantization(name)
        for name in self.kv_dtypes:
            kv_dtype_bytes(name)
        positive("held_tokens", self.held_tokens)
        longest, trained = self.workload.longest_context, self.model.max_position
        if longest > trained:
            accepted = (
                f"at most {trained:,} tokens of input and output together, what {self.model.name} was made for"
            )
            raise SpecError("context", round(longest), accepted)

    @property
    def held_tokens(self) -> float:
        """Tokens that a request in flight is provided for: all of its input and output."""
        return self.workload.input.mean + self.workload.output.mean

    def engine_for(self, accelerator: Accelerator) -> EngineMemory:
        """The engine that would run there: processors run Shoal's, whatever was asked for."""
        wanted = CPU_ENGINE if is_processor(accelerator) else self.engines[0].engine
        return next(engine for engine in self.engines if engine.engine == wanted)


def is_processor(accelerator: Accelerator) -> bool:
    """A CPU: no matrix rate below fp32 but int8."""
    return not accelerator.supports("bf16")


def engines_of(catalog: Catalog, name: str = "vllm", version: str | None = None) -> tuple[EngineMemory, ...]:
    """The engine of this name and Shoal's own. Raises `SpecError` for an unknown name."""
    chosen = catalog.engine(name, version)
    return (chosen,) if chosen.engine == CPU_ENGINE else (chosen, catalog.engine(CPU_ENGINE))


@dataclass(frozen=True, slots=True)
class WeightOption:
    """One way of storing the weights."""

    name: str
    """`checkpoint`, or a quantization's name."""
    method: str | None
    """For `specs.sizes`: None is the checkpoint's own."""
    precision: str
    """What the time model knows it as."""
    bits: float
    native: bool
    """As the checkpoint is published, or wider: no further loss."""


_PRECISIONS = ("nvfp4", "mxfp4", "mxfp8", "fp8", "int8", "int4", "nf4")


def precision_label(method: str, bits: float) -> str:
    """The time model's word for a method: `bf16`, `fp32`, `fp8`, `int8`, `fp4` or `int4`."""
    if method == "float32":
        return "fp32"
    found = next((word for word in _PRECISIONS if method.startswith(word)), None)
    if found is not None:
        return {"nvfp4": "fp4", "mxfp4": "fp4", "nf4": "int4", "mxfp8": "fp8"}.get(found, found)
    return "bf16" if bits >= 12 else "fp8" if bits >= 6 else "int4"


def weight_options(question: Question, accelerator: Accelerator) -> list[WeightOption]:
    """The ways of storing weights to consider on this accelerator, the checkpoint's own first."""
    own = published_option(question.model)
    if question.weights:
        names = [name for name in question.weights if name != "checkpoint"]
        asked = [own] if "checkpoint" in question.weights else []
    elif is_processor(accelerator):
        # Widening loses nothing, and a processor without bf16 multiplies would widen at every step.
        names, asked = (["float32"], []) if own.bits >= 12 else ([], [own])
    else:
        names, asked = _narrower(accelerator, own), [own]
    made = [own if quantization(n).method == own.name else _option(n, own) for n in names]
    return list(dict.fromkeys([*asked, *made]))


def _narrower(accelerator: Accelerator, own: WeightOption) -> list[str]:
    """Conversions that save memory and that the hardware can multiply."""
    fp4 = [] if not accelerator.supports("fp4") else ["mxfp4" if accelerator.vendor == "AMD" else "nvfp4"]
    if own.bits < 6:
        return []
    if own.bits < 12:
        return fp4
    eight = ["fp8"] if accelerator.supports("fp8") else ["int8"] if accelerator.supports("int8") else []
    return [*eight, *fp4, "int4"]


def published_option(model: ModelSpec) -> WeightOption:
    """The checkpoint's own weights."""
    stored = model.quantization or quantization(model.dtype)
    return WeightOption(stored.method, None, precision_label(stored.method, stored.bits), stored.bits, True)


def _option(name: str, own: WeightOption) -> WeightOption:
    stored = quantization(name)
    lossless = stored.bits >= max(own.bits, 16.0)
    return WeightOption(name, name, precision_label(stored.method, stored.bits), stored.bits, lossless)


def kv_options(question: Question, accelerator: Accelerator) -> list[str]:
    """The cache dtypes to consider on this accelerator, widest first."""
    if question.kv_dtypes:
        return list(question.kv_dtypes)
    if is_processor(accelerator):
        return ["fp32"]
    return ["bf16", "fp8"] if accelerator.supports("fp8") else ["bf16"]
