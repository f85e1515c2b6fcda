"""vLLM: `vllm serve`."""

import json

from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, command, need_engine, pool_heading, shell_model

RPC_PORT = 13345
SIDE_CHANNEL = 5600


def options(launch: Launch, pool: Pool) -> list[str]:
    """Options of one replica, those of its place among nodes and its port left out."""
    layout = pool.layout
    found = []
    if layout.tp > 1:
        found.append(f"--tensor-parallel-size {layout.tp}")
    if layout.pp > 1:
        found.append(f"--pipeline-parallel-size {layout.pp}")
    if layout.dp > 1:
        found.append(f"--data-parallel-size {layout.dp}")
    if layout.ep > 1:
        found.append("--enable-expert-parallel")
    flags = engine_options(launch, pool)
    for name, value in flags.items():
        found.append(f"--{name}" if value is True else f"--{name} {_quoted(value)}")
    return found


def engine_options(launch: Launch, pool: Pool) -> dict[str, object]:
    """Options of one replica by name, layout left out: what a fleet's pool gives its engine."""
    found: dict[str, object] = {}
    if launch.rounds:
        found["quantization"] = launch.design.weights.name
    if launch.design.kv_dtype == "fp8":
        found["kv-cache-dtype"] = "fp8"
    if pool.accelerator.architecture == "turing" and launch.design.weights.stored in ("bfloat16", "bf16"):
        # No bfloat16 below compute capability 8.0.
        found["dtype"] = "half"
    if launch.attention_backend is not None:
        # NIXL's handshake refuses a peer whose attention backend is another.
        found["attention-backend"] = launch.attention_backend
    found["max-model-len"] = launch.context
    # All that memory was planned for: left to its defaults, the engine would set aside for its own.
    found["max-num-seqs"] = pool.sequences
    found["max-num-batched-tokens"] = launch.tokens(pool)
    found["gpu-memory-utilization"] = launch.fraction
    if launch.question.workload.prefix_hit > 0:
        found["enable-prefix-caching"] = True
    if pool.role != "serve":
        transfer = {"kv_connector": launch.able.connector[0], "kv_role": "kv_both"}
        found["kv-transfer-config"] = json.dumps(transfer)
    return found


def _quoted(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) and not value.isalnum() else f"{value}"


def commands(launch: Launch) -> str:
    """A shell text: one command per node of a replica, and how many replicas."""
    need_engine(launch, "vllm")
    notes, model = shell_model(launch)
    lines = [*launch.header(f"vLLM {launch.able.version}"), *notes]
    for pool in launch.pools:
        role = "" if pool.role == "serve" else f" for {pool.role}"
        lines += ["", pool_heading(launch, pool, role)]
        for node in range(pool.nodes):
            lines += [
                *_place(pool, node),
                command([f"vllm serve {model}", *options(launch, pool), *_node(pool, node)]),
            ]
    lines += _router(launch)
    return "\n".join(lines) + "\n"


def _place(pool: Pool, node: int) -> list[str]:
    found = [] if pool.nodes == 1 else [f"# server {node} of {pool.nodes}; HEAD is the address of server 0"]
    if pool.role != "serve":
        found.append(
            f"export VLLM_NIXL_SIDE_CHANNEL_HOST=$(hostname -i) VLLM_NIXL_SIDE_CHANNEL_PORT={SIDE_CHANNEL}"
        )
    return found


def _node(pool: Pool, node: int) -> list[str]:
    """What one node of a replica that spans several adds."""
    if pool.nodes == 1:
        return [f"--port {FIRST_PORT}"]
    if pool.layout.dp > 1:
        local = max(1, pool.layout.dp // pool.nodes)
        shared = [
            f"--data-parallel-size-local {local}", '--data-parallel-address "$HEAD"',
            f"--data-parallel-rpc-port {RPC_PORT}",
        ]  # fmt: skip
        head = (
            [f"--port {FIRST_PORT}"] if node == 0 else ["--headless", f"--data-parallel-start-rank {node * local}"]
        )
        return [*shared, *head]
    shared = [f"--nnodes {pool.nodes}", f"--node-rank {node}", '--master-addr "$HEAD"']
    return [*shared, f"--port {FIRST_PORT}"] if node == 0 else [*shared, "--headless"]


def _router(launch: Launch) -> list[str]:
    if len(launch.pools) > 1:
        return [
            "",
            "# In front: a router that knows prefill from decode. `--emit shoal` writes Shoal's, with these.",
        ]
    if launch.pools[0].replicas > 1:
        return [
            "",
            "# In front: a router that knows prefixes saves prefill. `--emit shoal` writes Shoal's, with these.",
        ]
    return []
