"""`shoal serve --replicas N` and `--config fleet.yaml`: a fleet behind one endpoint."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from shoal.cli.loops import chat_body, run_loop, show_example
from shoal.cli.serve_config import key_of, routing, with_options
from shoal.specs.errors import SpecError

if TYPE_CHECKING:
    from shoal.engine.options import EngineOptions
    from shoal.fleet.config import FleetConfig, Pool
    from shoal.fleet.service import FleetService
    from shoal.server.options import ServerOptions


def serve_copies(
    console: Console,
    engine: EngineOptions,
    server: ServerOptions,
    replicas: int,
    router: str,
    check: bool,
    demo_prompt: str | None,
) -> None:
    """A fleet of equal replicas, from the command line alone."""
    from shoal.fleet.config import FleetConfig, Listen, Pool, SupervisorConfig
    from shoal.fleet.config_checks import POOL_FIELDS
    from shoal.fleet.gateway import GatewayConfig
    from shoal.specs.layout import Layout

    options = msgspec.to_builtins(engine)
    defaults = msgspec.to_builtins(type(engine)(model=engine.model))
    changed = {k: v for k, v in options.items() if v != defaults[k] and k not in POOL_FIELDS}
    name = engine.served_name or engine.model
    config = FleetConfig(
        pools=(
            Pool(
                name=re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:40] or "pool",
                model=engine.model,
                served_name=name,
                aliases=server.aliases,
                replicas=replicas,
                threads=engine.threads,
                layout=Layout(tp=engine.tp, pp=engine.pp, dp=engine.dp, cp=engine.cp, ep=engine.ep),
                options=changed,
            ),
        ),
        listen=Listen(host=server.host, port=server.port, cors_origins=server.cors_origins),
        router=routing(router),
        keys=(key_of(server.api_key),) if server.api_key else (),
        gateway=GatewayConfig(
            max_body_bytes=server.max_body_bytes,
            heartbeat_seconds=server.heartbeat_seconds,
            access_log=server.access_log,
        ),
        supervisor=SupervisorConfig(drain_seconds=max(0.001, server.drain_seconds)),
    )
    _serve(console, config, None, check, demo_prompt, server.api_key)


def serve_file(
    console: Console,
    path: str,
    given: Mapping[str, object],
    check: bool,
    demo_prompt: str | None,
    api_key: str | None,
) -> None:
    """The fleet that a file describes; options that were `given` on the command line go before the file's."""

    def read() -> FleetConfig:
        from shoal.fleet.config_file import load_config
        from shoal.fleet.machine import check_machine

        config = with_options(load_config(Path(path)), given)
        try:
            check_machine(config)
        except SpecError as error:
            raise SpecError(f"{path}: {error.field}", error.value, error.accepted) from None
        return config

    _serve(console, read(), read, check, demo_prompt, api_key)


def _serve(
    console: Console,
    config: FleetConfig,
    read: Callable[[], FleetConfig] | None,
    check: bool,
    demo_prompt: str | None,
    api_key: str | None,
) -> None:
    from shoal.engine.machine import usable_cores

    cores = usable_cores()
    if check:
        show_plan(console, config, cores)
        return
    from shoal.http.listening import bind, url_of

    sock = bind(config.listen.host, config.listen.port)
    from shoal.fleet.service import FleetService, signals_steer
    from shoal.observe.fleet import FleetEquipment

    equipment = FleetEquipment()
    url = url_of(sock)
    if config.listen.tls_certificate is not None:
        url = url.replace("http://", "https://", 1)

    async def greet(service: FleetService) -> None:
        show_ready(console, service, url)
        if demo_prompt is not None:
            from shoal.cli.demo import ask

            await ask(console, url, config.pools[0].models[0], demo_prompt, api_key)
        console.print("[dim]Ctrl-C stops.[/dim]")

    async def main() -> None:
        service = FleetService(config, cores=cores, equip=equipment, read_config=read)
        count = sum(pool.count for pool in config.pools)
        with signals_steer(service), console.status(f"Starting {_count(count, 'replica')} …") as status:

            async def ready(service: FleetService) -> None:
                status.stop()
                await greet(service)

            await service.run(sock, ready)

    run_loop(main())
    if equipment.traces:
        from shoal.observe.traces import shut_down

        shut_down()
    console.print("Stopped.")


def show_ready(console: Console, service: FleetService, url: str) -> None:
    """Say where the endpoint is, who is behind it, and how to ask it something."""
    config = service.config
    console.print(f"[bold green]Ready[/bold green]      {url}/v1")
    console.print(f"  dashboard  {url}/")
    for pool in config.pools:
        replicas = [replica for replica in service.supervisor.replicas if replica.pool.name == pool.name]
        names = ", ".join(
            f"{replica.name} ({replica.state})" if replica.problem else replica.name for replica in replicas
        )
        console.print(f"  replicas   {names}: {' / '.join(pool.models)} on {pool.engine}", soft_wrap=True)
    for replica in service.supervisor.replicas:
        if replica.problem:
            console.print(f"  [red]{replica.name}[/red] {replica.problem}", soft_wrap=True, markup=True)
    console.print(f"  routing    {config.router.policy}")
    console.print(f"  metrics    {url}/metrics")
    logs = [replica.log_path for replica in service.supervisor.replicas if replica.log_path is not None]
    if logs:
        console.print(f"  logs       {logs[0].parent}", soft_wrap=True)
    show_example(console, url, chat_body(config.pools[0].models[0]), keyed=bool(config.keys))


def show_plan(console: Console, config: FleetConfig, cores: int) -> None:
    """What `--check` prints: every replica with its command's outline, and what surrounds them."""
    listen = config.listen
    scheme = "https" if listen.tls_certificate else "http"
    where = f"port {listen.port}" if listen.port else "any free port"
    console.print(f"listen     {scheme} on {listen.host}, {where}")
    ranks = max(1, config.local_ranks)
    for pool in config.pools:
        for line in _pool_lines(pool, max(1, cores // ranks)):
            console.print(line, soft_wrap=True, markup=False)
    router = ", ".join(f"{k} {v}" for k, v in _changes(config.router).items())
    console.print(f"routing    {config.router.policy}" + (f" ({router})" if router else ""))
    admission = _changes(config.admission)
    told = ", ".join(f"{k} {v}" for k, v in admission.items())
    console.print(f"admission  {told or 'queue of ' + str(config.admission.max_queue) + ', no early rejection'}")
    if config.shared is not None:
        console.print(f"shared     {config.shared.redis}, keys {config.shared.prefix}:*", markup=False)
    keys = ", ".join(key.name for key in config.keys)
    console.print(f"keys       {keys or 'none: everybody may use it'}")
    if config.local_ranks > cores:
        console.print(
            f"[yellow]warning[/yellow]    {config.local_ranks} ranks for {cores} cores: each gets one thread, and "
            "they take turns",
            soft_wrap=True,
        )


def _pool_lines(pool: Pool, threads: int) -> list[str]:
    models = " / ".join(pool.models)
    if pool.urls:
        return [f"pool {pool.name}: {models} on {pool.engine}, attached", *(f"  {url}" for url in pool.urls)]
    threads = pool.threads or threads
    told = ", ".join(f"{name} {value}" for name, value in pool.options.items())
    lines = [
        f"pool {pool.name}: {_count(pool.replicas, 'replica')} of {models} on {pool.engine}, "
        f"{pool.layout.label() if pool.ranks > 1 else 'one rank'}, {_count(threads, 'thread')} a rank",
        f"  model {pool.model}" + (f"; {told}" if told else ""),
    ]
    if pool.executable is not None:
        lines.append(f"  with {pool.executable}")
    return lines


def _changes(value: object) -> dict[str, object]:
    """Fields that differ from their defaults."""
    assert dataclasses.is_dataclass(value)
    assert not isinstance(value, type)
    default: object = type(value)()
    return {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if f.name != "policy" and getattr(value, f.name) != getattr(default, f.name)
    }


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
