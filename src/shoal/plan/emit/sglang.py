"""SGLang: `python -m sglang.launch_server`."""

from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, command, need_engine, pool_heading, shell_model
from shoal.specs.catalog.engines import version_key

INIT_PORT = 20000


def options(launch: Launch, pool: Pool) -> list[str]:
    """Options of one replica. With attention data parallelism, SGLang's tp counts all ranks of a stage."""
    layout = pool.layout
    ranks = layout.tp * layout.dp
    found = [f"--tp-size {ranks}"] if ranks > 1 else []
    if layout.pp > 1:
        found.append(f"--pp-size {layout.pp}")
    if layout.dp > 1:
        found += [f"--dp-size {layout.dp}", "--enable-dp-attention"]
    if layout.ep > 1:
        found.append(f"--ep-size {layout.ep}")
    given = engine_options(launch, pool)
    return [*found, *(f"--{name} {value}" for name, value in given.items())]


def engine_options(launch: Launch, pool: Pool) -> dict[str, object]:
    """Options of one replica by name, layout left out."""
    found: dict[str, object] = {}
    if launch.rounds:
        found["quantization"] = launch.design.weights.name
    if launch.design.kv_dtype == "fp8":
        found["kv-cache-dtype"] = "fp8_e4m3"
    found["context-length"] = launch.context
    found["max-running-requests"] = pool.sequences * pool.layout.dp
    # The largest captured batch is what SGLang's reserve is worked out from, as the plan's memory is.
    found[_max_graph(launch.able.version)] = pool.sequences
    found["chunked-prefill-size"] = launch.tokens(pool)
    if launch.question.memory_fraction is not None:
        found["mem-fraction-static"] = launch.fraction
    if pool.role != "serve":
        found["disaggregation-mode"] = pool.role
        found["disaggregation-transfer-backend"] = launch.able.connector[0]
    return found


def _max_graph(version: str) -> str:
    """The option for the largest captured decode batch: renamed by 0.5.16, and its old name gone by 0.5.22."""
    return "cuda-graph-max-bs-decode" if version_key(version) >= (0, 5, 16) else "cuda-graph-max-bs"


def commands(launch: Launch) -> str:
    """A shell text: one command per node of a replica, and the router."""
    need_engine(launch, "sglang")
    notes, model = shell_model(launch)
    lines = [*launch.header(f"SGLang {launch.able.version}"), *notes]
    for pool in launch.pools:
        nodes = pool.nodes
        role = "" if pool.role == "serve" else f" for {pool.role}"
        lines += ["", pool_heading(launch, pool, role)]
        for node in range(nodes):
            place = [f"--port {FIRST_PORT}", "--host 0.0.0.0"]
            if nodes > 1:
                lines.append(f"# server {node} of {nodes}; HEAD is the address of server 0")
                place += [f"--nnodes {nodes}", f"--node-rank {node}", f'--dist-init-addr "$HEAD:{INIT_PORT}"']
            lines.append(
                command([f"python -m sglang.launch_server --model-path {model}", *options(launch, pool), *place])
            )
    lines += _router(launch)
    return "\n".join(lines) + "\n"


def _router(launch: Launch) -> list[str]:
    if len(launch.pools) > 1:
        workers = [
            f"--{p.role} http://{p.role.upper()}-{n}:{FIRST_PORT}" for p in launch.pools for n in range(p.replicas)
        ]
        head = "python -m sglang_router.launch_router --pd-disaggregation"
    elif launch.pools[0].replicas > 1:
        urls = " ".join(f"http://REPLICA-{n}:{FIRST_PORT}" for n in range(launch.pools[0].replicas))
        workers, head = [f"--worker-urls {urls}"], "python -m sglang_router.launch_router"
    else:
        return []
    return ["", "# The router; put the replicas' addresses in:", command([head, *workers])]
