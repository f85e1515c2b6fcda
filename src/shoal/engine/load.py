"""From options to a running replica: find the model, size its memory, read its weights."""

import os
from pathlib import Path

import torch

from shoal.engine.core import EngineCore, Observer
from shoal.engine.errors import InvalidOption
from shoal.engine.executor import InProcessExecutor
from shoal.engine.frontend import Frontend
from shoal.engine.kv.budget import KvBudget, available_memory, kv_budget
from shoal.engine.kv.cache import KvCache, kv_block_bytes
from shoal.engine.models import build_model
from shoal.engine.options import EngineOptions
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.sampler import Sampler
from shoal.engine.sources import LocalModel, resolve_model
from shoal.engine.text.tokenizer import load_tokenizer
from shoal.engine.weights import open_weights
from shoal.engine.worker import Worker
from shoal.policy.batching import Scheduler, SchedulerConfig
from shoal.specs import load_model_spec
from shoal.specs.model import ModelSpec


def load_engine(options: EngineOptions, observer: Observer | None = None) -> tuple[EngineCore, Frontend]:
    """A replica in this process. Raises InvalidOption, SourceError, WeightsError or OutOfMemory before serving."""
    options.validate()
    torch.set_num_threads(options.threads or usable_cores())
    cache_dir = Path(options.cache_dir) if options.cache_dir else None
    found = resolve_model(options.model, cache_dir, offline=options.offline or None)
    spec = load_model_spec(found.path)
    tokenizer = load_tokenizer(found.path)
    device, dtype = torch.device(options.device), compute_dtype(options, spec)
    guided = GuidedCompiler(tokenizer.json, spec.vocab, tuple(tokenizer.eos_token_ids))
    worker, budget = _load_worker(options, found, spec, device, dtype, guided, tuple(tokenizer.eos_token_ids))
    frontend = Frontend(
        model_name=options.served_name or found.name,
        spec=spec,
        tokenizer=tokenizer,
        max_model_len=budget.max_model_len,
        guided=guided,
        seed=options.seed,
    )
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=budget.num_blocks,
            block_size=options.block_size,
            max_model_len=budget.max_model_len,
            token_budget=options.max_num_batched_tokens,
            max_sequences=options.max_num_seqs,
            prefix_caching=options.prefix_caching,
        )
    )
    core = EngineCore(scheduler, InProcessExecutor(worker), tokenizer, options.step_timeout, observer)
    return core, frontend


def _load_worker(
    options: EngineOptions,
    found: LocalModel,
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    guided: GuidedCompiler,
    eos_token_ids: tuple[int, ...],
) -> tuple[Worker, KvBudget]:
    limit = min(options.max_model_len or spec.max_position, spec.max_position)
    model = build_model(spec, dtype, device, limit)
    model.load(open_weights(found.path).tensors())
    block_bytes = kv_block_bytes(spec, options.block_size, dtype)
    budget = kv_budget(options, block_bytes, spec.max_position, _memory_of(device))
    kv = KvCache(spec, budget.num_blocks, options.block_size, dtype, device)
    sampler = Sampler(spec.vocab, device, guided, eos_token_ids)
    return Worker(model, kv, sampler, device), budget


def _memory_of(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()


def compute_dtype(options: EngineOptions, spec: ModelSpec) -> torch.dtype:
    """The dtype to compute in. `auto` on a CPU is float32: without bf16 instructions, bf16 is the slower one."""
    name = options.dtype
    if name == "auto":
        name = "float32" if options.device == "cpu" or spec.dtype == "float32" else "bfloat16"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidOption("dtype", options.dtype, "auto, float32 or bfloat16")
    return dtype


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
