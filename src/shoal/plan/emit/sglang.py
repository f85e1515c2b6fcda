"""SGLang: `python -m sglang.launch_server`."""

from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, checkpoint, command, need_gpu

WRITTEN_FOR = "0.5"
INIT_PORT = 20000


def options(launch: Launch, pool: Pool) -> list[str]:
    """Options of one replica. With attention data parallelism, SGLang's tp counts all ranks of a stage."""
    d, layout = launch.design, pool.layout
    ranks = layout.tp * layout.dp
    found = [f"--tp-size {ranks}"] if ranks > 1 else []
    if layout.pp > 1:
        found.append(f"--pp-size {layout.pp}")
    if layout.dp > 1:
        found += [f"--dp-size {layout.dp}", "--enable-dp-attention"]
    if layout.ep > 1:
        found.append(f"--ep-size {layout.ep}")
    if not d.weights.native and d.weights.name == "fp8":
        found.append("--quantization fp8")
    if d.kv_dtype == "fp8":
        found.append("--kv-cache-dtype fp8_e4m3")
    found += [f"--context-length {launch.context}", f"--max-running-requests {pool.sequences}"]
    if pool.role != "serve":
        found += [f"--disaggregation-mode {pool.role}", "--disaggregation-transfer-backend nixl"]
    return found


def commands(launch: Launch) -> str:
    """A shell text: one command a node of a replica, and the router."""
    need_gpu(launch, "sglang")
    notes, model = checkpoint(launch)
    lines = [*launch.header("SGLang", WRITTEN_FOR), *notes]
    for pool in launch.pools:
        nodes = pool.nodes(launch.per_node)
        role = "" if pool.role == "serve" else f" for {pool.role}"
        lines += ["", f"# {pool.replicas} of these{role}, each on devices of its own:"]
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
