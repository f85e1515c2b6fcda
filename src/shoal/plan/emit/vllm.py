"""vLLM: `vllm serve`."""

import json

from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, checkpoint, command, need_gpu

WRITTEN_FOR = "0.22 (also read: 0.12 to 0.23)"
RPC_PORT = 13345
SIDE_CHANNEL = 5600


def options(launch: Launch, pool: Pool) -> list[str]:
    """Options of one replica, those of its place among nodes and its port left out."""
    d, layout = launch.design, pool.layout
    found = []
    if layout.tp > 1:
        found.append(f"--tensor-parallel-size {layout.tp}")
    if layout.pp > 1:
        found.append(f"--pipeline-parallel-size {layout.pp}")
    if layout.dp > 1:
        found.append(f"--data-parallel-size {layout.dp}")
    if layout.ep > 1:
        found.append("--enable-expert-parallel")
    if not d.weights.native and d.weights.name == "fp8":
        found.append("--quantization fp8")
    if d.kv_dtype == "fp8":
        found.append("--kv-cache-dtype fp8")
    found += [f"--max-model-len {launch.context}", f"--max-num-seqs {max(1, -(-pool.sequences // layout.dp))}"]
    engine = next((e for e in launch.question.engines if e.engine == "vllm"), None)
    if engine is not None:
        found.append(f"--gpu-memory-utilization {engine.fraction:g}")
    if launch.question.workload.prefix_hit > 0:
        found.append("--enable-prefix-caching")
    if pool.role != "serve":
        transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
        found.append(f"--kv-transfer-config '{transfer}'")
    return found


def commands(launch: Launch) -> str:
    """A shell text: one command a node of a replica, and how many replicas."""
    need_gpu(launch, "vllm")
    notes, model = checkpoint(launch)
    lines = [*launch.header("vLLM", WRITTEN_FOR), *notes]
    for pool in launch.pools:
        nodes = pool.nodes(launch.per_node)
        role = "" if pool.role == "serve" else f" for {pool.role}"
        lines += ["", f"# {pool.replicas} of these{role}, each on devices of its own:"]
        for node in range(nodes):
            lines += [
                *_place(pool, node, nodes),
                command([f"vllm serve {model}", *options(launch, pool), *_node(pool, node, nodes)]),
            ]
    lines += _router(launch)
    return "\n".join(lines) + "\n"


def _place(pool: Pool, node: int, nodes: int) -> list[str]:
    found = [] if nodes == 1 else [f"# server {node} of {nodes}; HEAD is the address of server 0"]
    if pool.role != "serve" and node == 0:
        found.append(
            f"export VLLM_NIXL_SIDE_CHANNEL_HOST=$(hostname -i) VLLM_NIXL_SIDE_CHANNEL_PORT={SIDE_CHANNEL}"
        )
    return found


def _node(pool: Pool, node: int, nodes: int) -> list[str]:
    """What one node of a replica that spans several adds."""
    if nodes == 1:
        return [f"--port {FIRST_PORT}"]
    if pool.layout.dp > 1:
        local = max(1, pool.layout.dp // nodes)
        shared = [
            f"--data-parallel-size-local {local}", '--data-parallel-address "$HEAD"',
            f"--data-parallel-rpc-port {RPC_PORT}",
        ]  # fmt: skip
        head = (
            [f"--port {FIRST_PORT}"] if node == 0 else ["--headless", f"--data-parallel-start-rank {node * local}"]
        )
        return [*shared, *head]
    shared = [f"--nnodes {nodes}", f"--node-rank {node}", '--master-addr "$HEAD"']
    return [*shared, f"--port {FIRST_PORT}"] if node == 0 else [*shared, "--headless"]


def _router(launch: Launch) -> list[str]:
    if len(launch.pools) > 1:
        return [
            "",
            "# Put a router that knows prefill from decode in front (llm-d, Dynamo, or vLLM's proxy example).",
        ]
    if launch.pools[0].replicas > 1:
        return ["", "# Put a router in front of the replicas; one that knows prefixes saves prefill."]
    return []
