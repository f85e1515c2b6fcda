"""From options to a running replica: find the model, size its memory, read its weights."""

from pathlib import Path

import torch

from shoal.engine.core import EngineCore, KvEventSink
from shoal.engine.errors import ChatTemplateError, EngineError, InvalidOption
from shoal.engine.executor import Executor, InProcessExecutor
from shoal.engine.frontend import Frontend
from shoal.engine.kv.blocks import KvBlocks
from shoal.engine.lora.config import adapter_digest
from shoal.engine.machine import usable_cores
from shoal.engine.options import EngineOptions
from shoal.engine.outputs import Observer
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.engine.ranks.load import load_worker
from shoal.engine.ranks.rank import join
from shoal.engine.ranks.rendezvous import LaunchEnv
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sources import model_of
from shoal.engine.text.tokenizer import load_tokenizer
from shoal.policy.batching import LaneScheduler, Scheduler, SchedulerConfig
from shoal.policy.experts import ExpertBalancer, initial_placement
from shoal.specs import load_model_spec
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec


def load_engine(options: EngineOptions, observer: Observer | None = None) -> tuple[EngineCore, Frontend]:
    """A replica in this process. Raises InvalidOption, SourceError, WeightsError or OutOfMemory before serving.

    In a process that a launcher started as a rank other than 0, this is that rank's whole life: SystemExit when the
    replica has ended.
    """
    options.validate()
    layout = options.layout
    if options.rendezvous == "env" and (launched := LaunchEnv.of()).rank > 0:
        raise SystemExit(join(launched))
    found = model_of(options)
    spec = load_model_spec(found.path)
    template = Path(options.chat_template) if options.chat_template is not None else None
    try:
        tokenizer = load_tokenizer(found.path, chat_template=template)
    except ChatTemplateError as error:
        raise InvalidOption("chat_template", options.chat_template, f"a Jinja template ({error})") from None
    guided = GuidedCompiler(tokenizer.json, spec.vocab, tuple(tokenizer.eos_token_ids))
    guided.prepare()
    executor: Executor
    blocks: KvBlocks | None = None
    if layout.world == 1 and options.rendezvous == "local":
        torch.set_num_threads(options.threads or usable_cores())
        loaded = load_worker(options, Mesh.single(), found.path, spec, guided, tuple(tokenizer.eos_token_ids))
        budget = loaded.budget
        worker = loaded.worker(budget.num_blocks)
        executor = InProcessExecutor(worker)
        if options.kv_transfer is not None:
            blocks = KvBlocks(worker.kv, spec, _numerics(options, spec, loaded.dtype))
    else:
        _check_layout(layout, spec)
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
        sampling_defaults=tokenizer.meta.sampling_defaults if options.generation_config == "auto" else None,
        reasoning=options.reasoning,
    )
    config = SchedulerConfig(
        num_blocks=budget.num_blocks,
        block_size=options.block_size * layout.cp,
        max_model_len=budget.max_model_len,
        token_budget=options.max_num_batched_tokens,
        max_sequences=options.max_num_seqs,
        chunk_size=options.prefill_chunk,
        prefix_caching=options.prefix_caching,
        max_plans_in_flight=executor.max_in_flight,
        record_events=options.kv_events is not None,
    )
    scheduler = Scheduler(config) if layout.dp == 1 else LaneScheduler(config, layout.dp)
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
    from shoal.engine.kv.publisher import KvEventPublisher

    try:
        return KvEventPublisher(options.kv_events)
    except EngineError:
        executor.close()
        raise


def _check_layout(layout: Layout, spec: ModelSpec) -> None:
    """Raises SpecError with the rules that the layout breaks. Columns of an expert are split unevenly here."""
    if any(problem.rule != "expert-width" for problem in layout.problems(spec)):
        layout.validate(spec)


def _balancer(options: EngineOptions, spec: ModelSpec) -> ExpertBalancer | None:
    if options.balance_steps is None:
        return None
    routers = [(index, router) for index, layer in enumerate(spec.layers) if (router := layer.ffn.router)]
    placements = [
        (index, initial_placement(router.experts, options.layout.ep, options.spare_experts))
        for index, router in routers
    ]
    return ExpertBalancer(placements, options.balance_steps)
