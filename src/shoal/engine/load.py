"""From options to a running replica: find the model, size its memory, read its weights."""

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from shoal.engine.core import EngineCore, KvEventSink, Observer
from shoal.engine.errors import EngineError, InvalidOption
from shoal.engine.executor import Executor, InProcessExecutor
from shoal.engine.executor_processes import ProcessExecutor
from shoal.engine.frontend import Frontend
from shoal.engine.kv.blocks import KvBlocks
from shoal.engine.kv.budget import KvBudget, available_memory, kv_budget
from shoal.engine.kv.cache import KvCache, kv_block_bytes
from shoal.engine.lora.config import adapter_digest
from shoal.engine.machine import usable_cores
from shoal.engine.models import build_model
from shoal.engine.models.adapters import install_adapters
from shoal.engine.models.decoder import CausalLM
from shoal.engine.models.overlap import settle_overlap
from shoal.engine.models.quantize import quantize_model
from shoal.engine.ops.native_library import backend
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.mesh import Mesh, MeshSpec
from shoal.engine.parallel.placement import held
from shoal.engine.rank import join
from shoal.engine.rendezvous import Launched
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.sampler import Sampler
from shoal.engine.sources import resolve_model
from shoal.engine.text.tokenizer import load_tokenizer
from shoal.engine.weights import open_weights
from shoal.engine.worker import Worker
from shoal.policy.batching import LaneScheduler, Scheduler, SchedulerConfig
from shoal.policy.experts import ExpertBalancer, initial_placement
from shoal.specs import load_model_spec
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec

log = logging.getLogger("shoal.engine")


def load_engine(options: EngineOptions, observer: Observer | None = None) -> tuple[EngineCore, Frontend]:
    """A replica in this process. Raises InvalidOption, SourceError, WeightsError or OutOfMemory before serving.

    In a process that a launcher started as a rank other than 0, this is that rank's whole life: SystemExit when the
    replica has ended.
    """
    options.validate()
    mesh = options.mesh
    if options.rendezvous == "env" and (launched := Launched.of()).rank > 0:
        raise SystemExit(join(launched))
    cache_dir = Path(options.cache_dir) if options.cache_dir else None
    found = resolve_model(options.model, cache_dir, offline=options.offline or None)
    spec = load_model_spec(found.path)
    tokenizer = load_tokenizer(found.path)
    guided = GuidedCompiler(tokenizer.json, spec.vocab, tuple(tokenizer.eos_token_ids))
    executor: Executor
    blocks: KvBlocks | None = None
    if mesh.world == 1 and options.rendezvous == "local":
        torch.set_num_threads(options.threads or usable_cores())
        loaded = load_worker(options, Mesh.single(), found.path, spec, guided, tuple(tokenizer.eos_token_ids))
        budget = loaded.budget
        worker = loaded.worker(budget.num_blocks)
        executor = InProcessExecutor(worker)
        if options.kv_transfer is not None:
            blocks = KvBlocks(worker.kv, spec, _numerics(options, spec, loaded.dtype))
    else:
        _check_layout(mesh, spec)
        # The ranks compute; this process only decides and must not take their cores.
        torch.set_num_threads(1)
        executor = ProcessExecutor.start(options, found.path, cores=usable_cores())
        budget = executor.budget
    frontend = Frontend(
        model_name=options.served_name or found.name,
        spec=spec,
        tokenizer=tokenizer,
        max_model_len=budget.max_model_len,
        guided=guided,
        seed=options.seed,
        adapters=[lora.name for lora in options.loras],
    )
    config = SchedulerConfig(
        num_blocks=budget.num_blocks,
        block_size=options.block_size * mesh.cp,
        max_model_len=budget.max_model_len,
        token_budget=options.max_num_batched_tokens,
        max_sequences=options.max_num_seqs,
        chunk_size=options.prefill_chunk,
        prefix_caching=options.prefix_caching,
        max_plans_in_flight=executor.max_in_flight,
        record_events=options.kv_events is not None,
    )
    scheduler = Scheduler(config) if mesh.dp == 1 else LaneScheduler(config, mesh.dp)
    core = EngineCore(
        scheduler,
        executor,
        tokenizer,
        options.step_timeout,
        observer,
        kv_events=_publisher(options, executor),
        balancer=_balancer(options, spec),
        kv_store=blocks,
    )
    return core, frontend


def _numerics(options: EngineOptions, spec: ModelSpec, dtype: torch.dtype) -> str:
    """What of the options the numbers in a KV block depend on. Long-rope and dynamic RoPE depend on the length."""
    ropes = [layer.attention.rope for layer in spec.layers]
    scaled = any(rope is not None and rope.kind in ("dynamic", "longrope") for rope in ropes)
    longest = (options.max_model_len or spec.max_position) if scaled else 0
    adapters = [f"{lora.name} {adapter_digest(Path(lora.path).expanduser())}" for lora in options.loras]
    return " ".join([f"{dtype} {options.quantize} {longest}", *adapters])


def _publisher(options: EngineOptions, executor: Executor) -> KvEventSink | None:
    if options.kv_events is None:
        return None
    from shoal.engine.server.kv_events import KvEventPublisher

    try:
        return KvEventPublisher(options.kv_events)
    except EngineError:
        executor.close()
        raise


def _check_layout(mesh: MeshSpec, spec: ModelSpec) -> None:
    """Raises SpecError with the rules that the layout breaks. Columns of an expert are dealt unevenly here."""
    layout = Layout(tp=mesh.tp, pp=mesh.pp, ep=mesh.ep, dp=mesh.dp, cp=mesh.cp)
    if any(problem.rule != "expert-width" for problem in layout.problems(spec)):
        layout.validate(spec)


def _balancer(options: EngineOptions, spec: ModelSpec) -> ExpertBalancer | None:
    if options.balance_steps is None:
        return None
    routers = [(index, router) for index, layer in enumerate(spec.layers) if (router := layer.ffn.router)]
    placements = [
        (index, initial_placement(router.experts, options.mesh.ep, options.spare_experts))
        for index, router in routers
    ]
    return ExpertBalancer(placements, options.balance_steps)


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
        settle_overlap(
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
    logical = msgspec.structs.replace(options, block_size=options.block_size * mesh.spec.cp)
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
    return mesh.spec.world if device.type == "cpu" else 1


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
