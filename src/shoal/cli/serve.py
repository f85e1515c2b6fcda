"""`shoal serve MODEL`: one replica behind an OpenAI-compatible endpoint.

Nothing heavy is imported until the command runs: `shoal --help` must stay instant.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from shoal.cli.loops import chat_body, run_loop, show_example
from shoal.cli.options import options_of, struct_of
from shoal.cli.serve_config import given_options
from shoal.engine.options import EngineOptions, served_names
from shoal.server.options import ServerOptions
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.server.lifecycle import ReplicaServer


class MissingExtra(ValueError):
    """The packages for serving are not installed."""


@options_of(ServerOptions, EngineOptions)
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
    served_name: Annotated[
        list[str] | None, typer.Option(help="Model name that clients use; several times for several names.")
    ] = None,
    demo_prompt: Annotated[
        str | None, typer.Option(help="When ready, ask this over HTTP, show the answer, and keep serving.")
    ] = None,
    **options: Any,
) -> None:
    """Serve a model behind an OpenAI-compatible HTTP endpoint."""
    console = Console(highlight=False)
    server = struct_of(ServerOptions, options)
    _set_up_logging(server.access_log, fleet=config is not None or (replicas or 1) > 1)
    if config is not None:
        from shoal.cli.serve_fleet import serve_file

        serve_file(console, config, given_options(context), check, demo_prompt, server.api_key)
        return
    if "router" in given_options(context) and (replicas or 1) == 1 and not check:
        raise SpecError("--router", router, "nothing for a single replica; --replicas or --config makes a fleet")
    names = served_names(model, served_name or ())
    server = msgspec.structs.replace(server, aliases=names[1:])
    engine = struct_of(EngineOptions, options, model=model, served_name=names[0])
    engine.validate()
    if engine.rendezvous == "env" and not check:
        _join_unless_serving(engine, replicas or 1)
    _check_installed()
    if (replicas or 1) > 1 or check:
        from shoal.cli.serve_fleet import serve_copies

        serve_copies(console, engine, server, replicas or 1, router, check, demo_prompt)
        return
    _run(engine, server, console, demo_prompt)


def _check_installed() -> None:
    try:
        import shoal.server.state  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"serving needs more packages: pip install 'shoal[serve]' ({error})") from None


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
    launched.require(engine.layout)
    if launched.rank > 0:
        raise typer.Exit(join(launched))


def _run(engine: EngineOptions, server: ServerOptions, console: Console, demo_prompt: str | None) -> None:
    from shoal.http.listening import bind, url_of

    # Before torch is imported, let alone a model loaded: a port in use must not cost a minute.
    sock = bind(server.host, server.port)
    from shoal.observe.replica import ReplicaDashboard
    from shoal.server.lifecycle import ReplicaServer, signals_stop

    url = url_of(sock)
    name = engine.served_name or engine.model

    async def greet(replica: ReplicaServer) -> None:
        show_ready(console, replica, url, server, engine.block_size)
        if demo_prompt is not None:
            from shoal.cli.demo import ask

            await ask(console, url, name, demo_prompt, server.api_key)
        console.print("[dim]Ctrl-C stops.[/dim]")

    async def main() -> None:
        dashboard = ReplicaDashboard()
        replica = ReplicaServer(engine, server, name, pages=dashboard.routes, observers=[dashboard])
        with signals_stop(replica), console.status(f"Loading {engine.model} …") as status:

            async def ready(replica: ReplicaServer) -> None:
                status.stop()
                await greet(replica)

            await replica.run(sock, ready)

    run_loop(main())
    console.print("Stopped.")


def show_ready(console: Console, replica: ReplicaServer, url: str, server: ServerOptions, block_size: int) -> None:
    """Say where the endpoint is, what it holds, and how to ask it something."""
    model = replica.state.model_name
    console.print(f"[bold green]Ready[/bold green]      {url}/v1")
    console.print(f"  dashboard  {url}/")
    console.print(f"  model      {model}, context {replica.state.max_model_len or 0:,} tokens")
    if replica.engine is not None:
        blocks = replica.engine.stats().kv_total_blocks
        console.print(f"  KV         {blocks * block_size:,} tokens ({blocks:,} blocks of {block_size})")
    console.print(f"  metrics    {url}/metrics   API {url}/openapi.json")
    path, ask = "chat/completions", chat_body(model)
    if replica.pooling is not None:
        pair = f'"model": "{model}", "query": "a fish", "documents": ["a shoal", "a car"]'
        path, ask = (
            ("rerank", pair)
            if replica.pooling.spec.scores
            else ("embeddings", f'"model": "{model}", "input": "Hello!"')
        )
    show_example(console, url, ask, path, keyed=bool(server.api_key))


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
