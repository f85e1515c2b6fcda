"""`shoal serve MODEL`: one replica behind an OpenAI-compatible endpoint.

Nothing heavy is imported until the command runs: `shoal --help` must stay instant.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from shoal.cli.loops import loop_factory
from shoal.cli.serve_config import given_options
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.engine.options import EngineOptions, LoraModule
    from shoal.server.lifecycle import Replica
    from shoal.server.state import ServerOptions

_KV_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class MissingExtra(ValueError):
    """The packages for serving are not installed."""


def serve(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(help="Catalog name, directory, GGUF file, hub id or object-store URL.")
    ] = "smollm2-135m",
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Replicas behind one endpoint; more than one makes a fleet.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Serve the fleet that this file (fleet.yaml) describes, instead of MODEL.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what would run, and don't.")] = False,
    router: Annotated[
        str, typer.Option(help="How a fleet chooses replicas: default, prefix, least_load, round_robin, …")
    ] = "default",
    host: Annotated[
        str | None,
        typer.Option(show_default="127.0.0.1", help="Address to listen on; 0.0.0.0 opens it to the network."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, show_default="8000", help="0: any free port.")
    ] = None,
    served_name: Annotated[
        list[str] | None, typer.Option(help="Model name that clients use; several times for several names.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web page's origin that may call from a browser; several times, or *.")
    ] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="File with a Jinja chat template, in place of the model's own.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="SHOAL_API_KEY", show_default=False, help="Key that clients must send; better by environment."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="How keys and values are kept: auto or int8.")] = "auto",
    quantize: Annotated[
        str | None, typer.Option(help="Hold the weights in fewer bits: int8 or int4 (docs/quantization.md).")
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR", help="A LoRA adapter that requests choose by model name; repeatable (docs/lora.md)."
        ),
    ] = None,
    reasoning: Annotated[
        str, typer.Option(help="auto: a model's reasoning is a field of its own; none: it stays in the content.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …")] = "cpu",
    kv_memory: Annotated[str | None, typer.Option(help="Memory for keys and values, e.g. 512M or 2G.")] = None,
    num_blocks: Annotated[int | None, typer.Option(min=2, help="KV blocks, instead of --kv-memory.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block.")] = 16,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt plus output, in tokens.")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most sequences in one step.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.")] = 512,
    prefix_caching: Annotated[bool, typer.Option(help="Reuse KV of shared prefixes.")] = True,
    tp: Annotated[int, typer.Option(min=1, help="Ranks that share every layer (tensor parallel).")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Ranks that hold consecutive layers (pipeline parallel).")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="Ranks that share a sequence (context parallel).")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Lanes that serve different requests in one replica.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Ranks that share the experts (expert parallel).")] = 1,
    spare_experts: Annotated[
        int, typer.Option(min=0, help="With --ep: slots per rank and layer for replicas of hot experts.")
    ] = 0,
    balance_steps: Annotated[
        int | None, typer.Option(min=1, help="With --ep: steps after which experts may move to even out the load.")
    ] = None,
    collectives: Annotated[str, typer.Option(help="How ranks talk: auto, shm, gloo or nccl.")] = "auto",
    overlap: Annotated[
        str, typer.Option(help="With --ep: whether rows travel while others are computed: auto, on or off.")
    ] = "auto",
    rank_timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent or late rank has failed.")
    ] = 5.0,
    rendezvous: Annotated[
        str, typer.Option(help="local: ranks are started here. env: by a launcher, such as torchrun, on any hosts.")
    ] = "local",
    seed: Annotated[int | None, typer.Option(help="Makes requests that bring no seed repeatable.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads.")] = None,
    generation_config: Annotated[
        str, typer.Option(help="auto: the model's own sampling defaults where a request is silent; none: not.")
    ] = "auto",
    cache_dir: Annotated[str | None, typer.Option(help="Where models are kept.")] = None,
    offline: Annotated[bool, typer.Option(help="Never use the network.")] = False,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest request body, MiB.")] = 16,
    drain_seconds: Annotated[float, typer.Option(min=0, help="Time for requests in flight on shutdown.")] = 30.0,
    heartbeat_seconds: Annotated[
        float, typer.Option(min=0, help="A stream silent for so long gets an SSE comment; 0: never.")
    ] = 10.0,
    access_log: Annotated[bool, typer.Option(help="One JSON line per request on standard error.")] = False,
    demo_prompt: Annotated[
        str | None, typer.Option(help="When ready, ask this over HTTP, show the answer, and keep serving.")
    ] = None,
) -> None:
    """Serve a model behind an OpenAI-compatible HTTP endpoint."""
    console = Console(highlight=False)
    from shoal.engine.options import EngineOptions, served_names

    _set_up_logging(access_log, fleet=config is not None or (replicas or 1) > 1)
    if config is not None:
        from shoal.cli.serve_fleet import serve_file

        serve_file(console, config, given_options(context), check, demo_prompt, api_key or None)
        return
    if "router" in given_options(context) and (replicas or 1) == 1 and not check:
        raise SpecError("--router", router, "nothing for a single replica; --replicas or --config makes a fleet")
    names = served_names(model, served_name or ())
    engine = EngineOptions(
        model=model,
        served_name=names[0],
        chat_template=chat_template,
        dtype=_dtype(dtype),
        quantize=quantize,  # type: ignore[arg-type]  # checked by validate
        reasoning=reasoning,  # type: ignore[arg-type]  # checked by validate
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by validate
        loras=_loras(lora or []),
        device=device,
        block_size=block_size,
        num_blocks=num_blocks,
        kv_memory=_bytes(kv_memory),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_caching=prefix_caching,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=ep,
        spare_experts=spare_experts,
        balance_steps=balance_steps,
        collectives=collectives,  # type: ignore[arg-type]  # checked by validate, as is rendezvous
        overlap=overlap,  # type: ignore[arg-type]
        rank_timeout=rank_timeout,
        rendezvous=rendezvous,  # type: ignore[arg-type]
        seed=seed,
        threads=threads,
        generation_config=generation_config,  # type: ignore[arg-type]  # checked by validate
        cache_dir=cache_dir,
        offline=offline,
    )
    engine.validate()
    if engine.rendezvous == "env" and not check:
        _join_unless_serving(engine, replicas or 1)
    try:
        from shoal.server.state import ServerOptions
    except ImportError as error:
        raise MissingExtra(f"serving needs more packages: pip install 'shoal[serve]' ({error})") from None
    server = ServerOptions(
        host=host or "127.0.0.1",
        port=8000 if port is None else port,
        api_key=api_key or None,
        max_body_bytes=max_body_mb * 2**20,
        drain_seconds=drain_seconds,
        heartbeat_seconds=heartbeat_seconds,
        access_log=access_log,
        aliases=names[1:],
        cors_origins=tuple(cors_origin or ()),
    )
    if (replicas or 1) > 1 or check:
        from shoal.cli.serve_fleet import serve_copies

        serve_copies(console, engine, server, replicas or 1, router, check, demo_prompt)
        return
    _run(engine, server, console, demo_prompt)


def _join_unless_serving(engine: EngineOptions, replicas: int) -> None:
    """Return in the process that serves; in one that a launcher made another rank, be that rank for life.

    Before a port is bound: every process of the launch has the same command line, and one host may run several.
    """
    from shoal.engine.errors import InvalidOption
    from shoal.engine.ranks.rank import join
    from shoal.engine.ranks.rendezvous import LaunchEnv

    if replicas > 1:
        raise InvalidOption("rendezvous", engine.rendezvous, "local with more than one replica")
    launched = LaunchEnv.of()
    if launched.world != engine.layout.world:
        accepted = f"dp·pp·cp·tp = {engine.layout.world}, the ranks of this layout"
        raise InvalidOption("WORLD_SIZE", launched.world, accepted)
    if launched.rank > 0:
        raise typer.Exit(join(launched))


def _run(engine: EngineOptions, server: ServerOptions, console: Console, demo_prompt: str | None) -> None:
    from shoal.http.listening import bind, url_of

    # Before torch is imported, let alone a model loaded: a port in use must not cost a minute.
    sock = bind(server.host, server.port)
    from shoal.observe.replica import ReplicaDashboard
    from shoal.server.lifecycle import Replica, signals_stop

    url = url_of(sock)
    name = engine.served_name or engine.model

    async def greet(replica: Replica) -> None:
        show_ready(console, replica, url, server, engine.block_size)
        if demo_prompt is not None:
            from shoal.cli.demo import ask

            await ask(console, url, name, demo_prompt, server.api_key)
        console.print("[dim]Ctrl-C stops.[/dim]")

    async def main() -> None:
        dashboard = ReplicaDashboard()
        replica = Replica(engine, server, name, pages=dashboard.routes, observers=[dashboard])
        with signals_stop(replica), console.status(f"Loading {engine.model} …") as status:

            async def ready(replica: Replica) -> None:
                status.stop()
                await greet(replica)

            await replica.run(sock, ready)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    console.print("Stopped.")


def show_ready(console: Console, replica: Replica, url: str, server: ServerOptions, block_size: int) -> None:
    """Say where the endpoint is, what it holds, and how to ask it something."""
    key = ' -H "Authorization: Bearer $SHOAL_API_KEY"' if server.api_key else ""
    model = replica.state.model_name
    console.print(f"[bold green]Ready[/bold green]      {url}/v1")
    console.print(f"  dashboard  {url}/")
    console.print(f"  model      {model}, context {replica.state.max_model_len or 0:,} tokens")
    if replica.engine is not None:
        blocks = replica.engine.stats().kv_total_blocks
        console.print(f"  KV         {blocks * block_size:,} tokens ({blocks:,} blocks of {block_size})")
    console.print(f"  metrics    {url}/metrics   API {url}/openapi.json")
    path, ask = "chat/completions", f'"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]'
    if replica.pooling is not None:
        pair = f'"model": "{model}", "query": "a fish", "documents": ["a shoal", "a car"]'
        path, ask = (
            ("rerank", pair)
            if replica.pooling.spec.scores
            else ("embeddings", f'"model": "{model}", "input": "Hello!"')
        )
    console.print("  try        ", end="")
    console.print(
        f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{{{ask}}}'",
        soft_wrap=True,
        markup=False,
    )


def _dtype(text: str) -> Literal["auto", "float32", "bfloat16"]:
    from shoal.engine.errors import InvalidOption
    from shoal.engine.options import DTYPES

    known: dict[str, Literal["auto", "float32", "bfloat16"]] = {
        "auto": "auto",
        "float32": "float32",
        "bfloat16": "bfloat16",
    }
    if text not in known:
        raise InvalidOption("dtype", text, "one of " + ", ".join(DTYPES))
    return known[text]


def _loras(given: list[str]) -> tuple[LoraModule, ...]:
    """Of `name=directory`; what is missing, `EngineOptions.validate` says."""
    from shoal.engine.options import LoraModule

    return tuple(LoraModule(name, path) for name, _, path in (text.partition("=") for text in given))


def _bytes(text: str | None) -> int | None:
    """`512M`, `2G`, `1.5GiB` or plain bytes."""
    from shoal.engine.errors import InvalidOption

    if text is None:
        return None
    cleaned = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = cleaned[-1:] if cleaned[-1:] in ("K", "M", "G", "T") else ""
    try:
        value = float(cleaned.removesuffix(unit)) * _KV_UNITS[unit]
        return int(value)
    except (ValueError, OverflowError):
        raise InvalidOption("kv_memory", text, "bytes, or a number with K, M, G or T, such as 512M") from None


def _set_up_logging(access_log: bool, *, fleet: bool = False) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("shoal")
    root.setLevel(os.environ.get("SHOAL_LOG_LEVEL", "WARNING").upper())
    root.addHandler(handler)
    uvicorn = logging.getLogger("uvicorn")
    uvicorn.addHandler(handler)
    uvicorn.setLevel(logging.WARNING)
    if access_log or fleet:
        # A fleet's file may ask for it at any reload; before that, nobody writes to it.
        access = logging.getLogger("shoal.access")
        access.setLevel(logging.INFO)
        access.propagate = False
        lines = logging.StreamHandler(sys.stderr)
        lines.setFormatter(logging.Formatter("%(message)s"))
        access.addHandler(lines)
