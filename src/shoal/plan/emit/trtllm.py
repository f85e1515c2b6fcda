"""TensorRT-LLM: `trtllm-serve` with its options file."""

import yaml

from shoal.plan.emit.common import FIRST_PORT, Launch, Pool, command, need_engine, pool_heading, shell_model


def options(launch: Launch, pool: Pool) -> list[str]:
    """Options of one replica. With attention data parallelism, tp counts all ranks of a stage."""
    layout = pool.layout
    found = [f"--tp_size {layout.tp * layout.dp}", f"--pp_size {layout.pp}"]
    if layout.ep > 1:
        found.append(f"--ep_size {layout.ep}")
    limits = [f"--max_batch_size {pool.sequences}", f"--max_num_tokens {launch.tokens(pool)}"]
    return [*found, *limits, f"--max_seq_len {launch.context}"]


def options_file(launch: Launch, pool: Pool) -> str:
    """The YAML that `--extra_llm_api_options` reads."""
    cache: dict[str, object] = {"free_gpu_memory_fraction": launch.fraction}
    if launch.design.kv_dtype == "fp8":
        cache["dtype"] = "fp8"
    content: dict[str, object] = {"kv_cache_config": cache}
    if pool.layout.dp > 1:
        content["enable_attention_dp"] = True
    if pool.role != "serve":
        content["cache_transceiver_config"] = {
            "backend": launch.able.connector[0],
            "max_tokens_in_buffer": launch.context,
        }
    if pool.role == "prefill":
        content["disable_overlap_scheduler"] = True
    return yaml.safe_dump(content, sort_keys=False)


def commands(launch: Launch) -> str:
    """A shell text that writes the options files and starts the servers."""
    need_engine(launch, "trtllm")
    notes, model = shell_model(launch)
    lines = [*launch.header(f"TensorRT-LLM {launch.able.version} (PyTorch backend)"), *notes]
    for pool in launch.pools:
        nodes = pool.nodes
        file = f"{pool.role}.yaml"
        lines += ["", f"cat > {file} <<'EOF'", options_file(launch, pool).rstrip(), "EOF"]
        lines.append(pool_heading(launch, pool, ""))
        if nodes > 1:
            lines.append(f"# spans {nodes} servers: start it with trtllm-llmapi-launch under Slurm or mpirun")
        start = ("trtllm-llmapi-launch " if nodes > 1 else "") + f"trtllm-serve {model}"
        place = [f"--extra_llm_api_options {file}", f"--port {FIRST_PORT}", "--host 0.0.0.0"]
        lines.append(command([start, *options(launch, pool), *place]))
    if len(launch.pools) > 1:
        lines += _front(launch)
    return "\n".join(lines) + "\n"


def _front(launch: Launch) -> list[str]:
    def servers(pool: Pool) -> dict[str, object]:
        urls = [f"{pool.role.upper()}-{n}:{FIRST_PORT}" for n in range(pool.replicas)]
        return {"num_instances": pool.replicas, "urls": urls}

    content = {
        "hostname": "0.0.0.0", "port": FIRST_PORT + 1, "backend": "pytorch",
        "context_servers": servers(launch.pools[0]), "generation_servers": servers(launch.pools[1]),
    }  # fmt: skip
    text = yaml.safe_dump(content, sort_keys=False).rstrip()
    return ["", "cat > disagg.yaml <<'EOF'", text, "EOF", "trtllm-serve disaggregated -c disagg.yaml"]
