"""Read one rank's share of a model, and say how much KV memory it could have."""

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from shoal.engine.errors import InvalidOption
from shoal.engine.kv.budget import KvBudget, available_memory, kv_budget
from shoal.engine.kv.cache import KvCache, kv_block_bytes
from shoal.engine.models.adapters import install_adapters
from shoal.engine.models.build import build_model
from shoal.engine.models.decoder import CausalLM
from shoal.engine.models.overlap import autotune_overlap
from shoal.engine.models.quantize import quantize_model
from shoal.engine.ops.native_library import backend
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.placement import held
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.sampler import Sampler
from shoal.engine.weights import open_weights
from shoal.engine.worker import Worker
from shoal.specs.model import ModelSpec

log = logging.getLogger("shoal.engine")


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """A rank that has its weights and no KV memory yet: how much it gets is the least that any rank can have."""

    options: EngineOptions
    mesh: Mesh
    spec: ModelSpec
    model: CausalLM
    sampler: Sampler | None
    """On ranks that sample."""
    dtype: torch.dtype
    device: torch.device
    budget: KvBudget
    """What this rank alone could have."""

    def worker(self, num_blocks: int) -> Worker:
        """Allocate `num_blocks` KV blocks, the null block included, and be ready for steps."""
        own = held(self.spec, self.mesh)
        dtype = cache_dtype(self.options, self.spec, self.dtype)
        kv = KvCache(own, num_blocks, self.options.block_size, dtype, self.device)
        autotune_overlap(
            self.model, self.mesh, self.options.overlap, self.device, self.options.max_num_batched_tokens
        )
        return Worker(self.model, kv, self.sampler, self.device, self.mesh)


def load_worker(
    options: EngineOptions,
    mesh: Mesh,
    path: Path,
    spec: ModelSpec,
    guided: GuidedCompiler | None,
    eos_token_ids: tuple[int, ...],
) -> LoadedRank:
    """Read one rank's share of the weights. `guided` compiles grammars, on ranks that sample.

    Raises UnsupportedModel, WeightsError or OutOfMemory.
    """
    device, dtype = torch.device(options.device), compute_dtype(options, spec)
    if mesh.samples and device.type == "cpu" and backend().library is None:
        log.warning("slower than it could be: no compiled kernels, because %s", backend().detail)
    limit = longest_context(spec)
    if options.max_model_len is not None and options.max_model_len > limit:
        raise InvalidOption("max_model_len", options.max_model_len, f"at most {limit}, the limit of {spec.name}")
    longest = options.max_model_len or spec.max_position
    model = build_model(spec, dtype, device, longest, mesh, options.spare_experts)
    if options.quantize is not None:
        quantize_model(model, options.quantize)
    model.load(open_weights(path))
    install_adapters(model, options.loras)
    kept = cache_dtype(options, spec, dtype)
    block_bytes = kv_block_bytes(held(spec, mesh), options.block_size, kept)
    # The scheduler's block is as long as the blocks of all context-parallel ranks together.
    logical = msgspec.structs.replace(options, block_size=options.block_size * mesh.layout.cp)
    budget = kv_budget(
        logical,
        block_bytes,
        options.max_model_len or spec.max_position,
        _memory_of(device) // _sharers(mesh, device),
    )
    sampler = Sampler(spec.vocab, device, guided, eos_token_ids) if mesh.samples else None
    return LoadedRank(options, mesh, spec, model, sampler, dtype, device, budget)


def longest_context(spec: ModelSpec) -> int:
    """Tokens the model can be served with. Dynamic RoPE is made to go beyond `max_position`, by its factor."""
    ropes = [layer.attention.rope for layer in spec.layers]
    stretch = max((rope.factor for rope in ropes if rope is not None and rope.kind == "dynamic"), default=1.0)
    return int(spec.max_position * stretch)


def _sharers(mesh: Mesh, device: torch.device) -> int:
    """Ranks that take from the same memory. On CPU as if all were on this host, which is at worst too careful."""
    return mesh.layout.world if device.type == "cpu" else 1


def _memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()


def cache_dtype(options: EngineOptions, spec: ModelSpec, compute: torch.dtype) -> torch.dtype:
    """The dtype keys and values are kept in. Raises InvalidOption where the model's can't be kept in it."""
    if options.kv_dtype == "auto":
        return compute
    if any(layer.attention.kind == "mla" for layer in spec.layers):
        raise InvalidOption("kv_dtype", options.kv_dtype, f"auto for {spec.name}, which caches latents")
    return torch.int8


def compute_dtype(options: EngineOptions, spec: ModelSpec) -> torch.dtype:
    """The dtype to compute in. `auto` on a CPU is float32: without bf16 instructions, bf16 is the slower one."""
    name = options.dtype
    if name == "auto":
        name = "float32" if options.device == "cpu" or spec.dtype == "float32" else "bfloat16"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidOption("dtype", options.dtype, "auto, float32 or bfloat16")
    return dtype
