"""Real replicas for the end-to-end tests: own thread, own event loop, real sockets, real engine."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
from hypothesis import strategies as st

from shoal.engine.options import EngineOptions
from shoal.http.listening import bind, url_of
from shoal.server.lifecycle import ReplicaServer
from shoal.server.options import ServerOptions

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
"""Any small JSON value."""


def eventually(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class Running:
    """A replica that is ready."""

    def __init__(self, url: str, name: str, replica: ReplicaServer) -> None:
        self.url = url
        self.name = name
        self.replica = replica

    def client(self, timeout: float = 120) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout, trust_env=False, verify=False)

    def idle(self) -> bool:
        engine = self.replica.engine
        assert engine is not None
        stats = engine.stats()
        return stats.running == 0 and stats.waiting == 0 and stats.kv_used_blocks == 0

    def check(self) -> None:
        """Everything has ended, and free + cached + owned == total."""
        eventually(self.idle, "every request has left the engine")
        engine = self.replica.engine
        assert engine is not None
        engine.check()


@contextlib.contextmanager
def running(options: EngineOptions, server: ServerOptions | None = None) -> Iterator[Running]:
    """Serve until the block ends; its failure is the block's."""
    server = server or ServerOptions(port=0, drain_seconds=0)
    sock = bind(server.host, server.port)
    url = url_of(sock)
    name = options.served_name or options.model
    started = threading.Event()
    found: list[ReplicaServer] = []
    failed: list[BaseException] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def ready(replica: ReplicaServer) -> None:
        started.set()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        found.append(ReplicaServer(options, server, name))
        await found[0].run(sock, ready)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(100), "not ready within 100 s"
    if failed:
        raise failed[0]
    try:
        yield Running(url, name, found[0])
    finally:
        with contextlib.suppress(RuntimeError):
            loops[0].call_soon_threadsafe(found[0].stop)
        thread.join(30)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def tiny_llama(folder: Path) -> Path:
    """A random-weight Llama with a byte tokenizer (0.1 M parameters): real in every way but sense."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    hidden, inner, layers, heads, kv_heads, vocab = 48, 96, 2, 4, 2, 260
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "eos_token_id": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    narrow = hidden // heads * kv_heads
    shapes = {"model.embed_tokens": (vocab, hidden), "model.norm": (hidden,), "lm_head": (vocab, hidden)}
    for i in range(layers):
        layer = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (narrow, hidden),
            "self_attn.v_proj": (narrow, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"{name}.weight": torch.ones(shape) if len(shape) == 1 else 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.add_special_tokens(["<eos>"])
    byte_level.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


class Process:
    """`shoal serve` as a process of its own, ready."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, output: list[str]) -> None:
        self.process = process
        self.url = url
        self.output = output

    def metric(self, name: str) -> float:
        """The value of an unlabelled metric, or of the only one of that name."""
        text = httpx.get(f"{self.url}/metrics", timeout=20, trust_env=False).text
        line = next(line for line in text.splitlines() if re.match(rf"{name}[ {{]", line))
        return float(line.rsplit(" ", 1)[1])

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)


@contextlib.contextmanager
def serve_process(*arguments: str, until: str = "Ctrl-C stops") -> Iterator[Process]:
    """Start `shoal serve ARGUMENTS` on a free port and wait for the line `until`; killed at the end if need be."""
    command = [sys.executable, "-m", "shoal.cli", "serve", *arguments, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        eventually(
            lambda: any(until in line for line in list(output)) or process.poll() is not None,
            "the server is ready",
            100,
        )
        text = "".join(output)
        assert process.poll() is None, text
        found = re.search(r"http://127\.0\.0\.1:\d+", text)
        yield Process(process, found.group(0) if found else "", output)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)
        reader.join(10)
        if process.stdout is not None:
            process.stdout.close()
