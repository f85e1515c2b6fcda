"""What a planner is asked: a model, its traffic, the latency promised, and what may be bought."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from shoal.plan.artifact import Artifact
from shoal.plan.kv import kv_dtype_bytes
from shoal.specs.catalog import Catalog, EngineCapability, EngineMemory, load_catalog
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
MAX_SEQUENCES = 1 << 16


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
    capabilities: tuple[EngineCapability, ...] = ()
    """What each of `engines` can do; of others, what the shipped table says of their newest release."""
    memory_fraction: float | None = None
    """The engine's own memory fraction (`gpu_memory_utilization` and its like); None: its default."""
    max_sequences: int | None = None
    """Most sequences that the engine may be told to run on one attention rank; None: its default."""
    constants: Artifact | None = None
    """Constants of the time model, from `shoal plan calibrate`; None: those that ship."""

    def __post_init__(self) -> None:
        if not self.accelerators:
            raise SpecError("gpu", "", "at least one accelerator")
        if not 0 <= self.headroom < 1:
            raise SpecError("headroom", self.headroom, "a share from 0 up to, not including, 1 (10 % is 0.1)")
        counts = (("spares", self.spares, 0), ("max_devices", self.max_devices, 1))
        for field, value, least in (*counts, ("replica_limit", self.replica_limit, 1)):
            if value is not None and (isinstance(value, bool) or not least <= value <= MAX_DEVICES):
                raise SpecError(field, value, f"a whole number from {least} to {MAX_DEVICES:,}")
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise SpecError("memory_utilization", self.memory_fraction, "a share above 0, at most 1 (90 % is 0.9)")
        if self.max_sequences is not None and not 1 <= self.max_sequences <= MAX_SEQUENCES:
            raise SpecError("max_num_seqs", self.max_sequences, f"a whole number from 1 to {MAX_SEQUENCES:,}")
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

    def capability_for(self, accelerator: Accelerator) -> EngineCapability:
        """What the engine that would run there can do."""
        name = self.engine_for(accelerator).engine
        found = next((known for known in self.capabilities if known.engine == name), None)
        return found or load_catalog().capability(name)


def is_processor(accelerator: Accelerator) -> bool:
    """A CPU: no matrix rate below fp32 but int8."""
    return not accelerator.supports("bf16")


def engines_of(catalog: Catalog, name: str = "vllm", version: str | None = None) -> tuple[EngineMemory, ...]:
    """The engine of this name and Shoal's own. Raises `SpecError` for an unknown name."""
    chosen = catalog.engine(name, version)
    return (chosen,) if chosen.engine == CPU_ENGINE else (chosen, catalog.engine(CPU_ENGINE))


def capabilities_of(
    catalog: Catalog, name: str = "vllm", version: str | None = None
) -> tuple[EngineCapability, ...]:
    """What that engine and Shoal's own can do. Raises `SpecError` for an unknown name or version."""
    chosen = catalog.capability(name, version)
    return (chosen,) if chosen.engine == CPU_ENGINE else (chosen, catalog.capability(CPU_ENGINE))


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

    @property
    def stored(self) -> str:
        """The format in memory: the method's, or the checkpoint's own."""
        return self.method or self.name


_PRECISIONS = ("nvfp4", "mxfp4", "mxfp8", "fp8", "int8", "int4", "nf4")


def precision_label(method: str, bits: float) -> str:
    """The time model's word for a method: `bf16`, `fp32`, `fp8`, `int8`, `fp4` or `int4`."""
    if method == "float32":
        return "fp32"
    found = next((word for word in _PRECISIONS if method.startswith(word)), None)
    if found is not None:
        return {"nvfp4": "fp4", "mxfp4": "fp4", "nf4": "int4", "mxfp8": "fp8"}.get(found, found)
    return "bf16" if bits >= 12 else "fp8" if bits >= 6 else "int4"


OWN_FORMATS = ("float32", "bf16", "int8", "int4")
"""How Shoal's engine holds weights on a processor, whatever the checkpoint: `--dtype` and `--quantize`."""
OWN_METHODS: Mapping[str, str] = MappingProxyType({"int8": "shoal_int8", "int4": "shoal_int4"})
"""The bytes of what `--quantize` rounds to, as `specs.quantization` knows them."""


def weight_options(question: Question, accelerator: Accelerator) -> list[WeightOption]:
    """The ways of storing weights to consider on this accelerator, the checkpoint's own first."""
    own = published_option(question.model)
    if is_processor(accelerator):
        # Our engine widens every checkpoint to its compute dtype, or rounds it: it never holds it as published.
        same = {"checkpoint": "float32", "fp32": "float32", "bfloat16": "bf16"}
        asked = [same.get(name, name) for name in question.weights or OWN_FORMATS]
        return list(dict.fromkeys(_option(name, own, OWN_METHODS.get(name, name)) for name in asked))
    if question.weights:
        names = [name for name in question.weights if name != "checkpoint"]
        first = [own] if "checkpoint" in question.weights else []
    else:
        names, first = _narrower(accelerator, own), [own]
    made = [own if quantization(n).method == own.name else _option(n, own, n) for n in names]
    return list(dict.fromkeys([*first, *made]))


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


def _option(name: str, own: WeightOption, method: str) -> WeightOption:
    stored = quantization(method)
    lossless = stored.bits >= max(own.bits, 16.0)
    return WeightOption(
        name, method, precision_label(quantization(name).method, stored.bits), stored.bits, lossless
    )


def kv_options(question: Question, accelerator: Accelerator, weights: WeightOption | None = None) -> list[str]:
    """The cache dtypes to consider on this accelerator, widest first. On a processor the cache is in the compute
    dtype, which follows the weights, or in int8."""
    if question.kv_dtypes:
        return list(question.kv_dtypes)
    if is_processor(accelerator):
        latent = any(layer.attention.mla is not None for layer in question.model.layers)
        wide = "bf16" if weights is not None and weights.name in ("bf16", "bfloat16") else "fp32"
        return [wide] if latent else [wide, "int8"]
    return ["bf16", "fp8"] if accelerator.supports("fp8") else ["bf16"]
