"""Loading a model into fewer bits: what it takes at most, beside what it takes in the end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

HIDDEN, INNER, LAYERS, VOCAB = 512, 2048, 10, 16384
PROBE = """
import json, sys, threading
from pathlib import Path
import torch
from shoal.engine.models.build import build_model
from shoal.engine.models.quantize import quantize_model
from shoal.engine.weights import open_weights
from shoal.specs import load_model_spec

torch.set_num_threads(1)

def anonymous():
    "Memory that is this process's own: pages of the file can be taken away at any time."
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

def load():
    path = Path(sys.argv[1])
    model = build_model(load_model_spec(path), torch.float32, torch.device("cpu"))
    quantize_model(model, sys.argv[2])
    model.load(open_weights(path))
    return model

torch.ones(1 << 20).half().float().div_(2).round_().to(torch.int8)
before, most, done = anonymous(), 0, threading.Event()

def watch():
    global most
    while not done.wait(0.001):
        most = max(most, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
model = load()
done.set()
watcher.join()
seen = {}
for module in model.modules():
    weight = getattr(module, "weight", None)
    if weight is not None:
        seen[id(weight)] = weight.nbytes
print(json.dumps({"peak": max(most, anonymous()) - before, "final": sum(seen.values())}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 57 million random weights in bfloat16, its head not its embedding."""
    path = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config))

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).uniform_(-0.1, 0.1)

    tensors = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN), "lm_head.weight": matrix(VOCAB, HIDDEN)}
    tensors["model.norm.weight"] = matrix(HIDDEN)
    for i in range(LAYERS):
        name = f"model.layers.{i}"
        for part in ("q", "k", "v", "o"):
            tensors[f"{name}.self_attn.{part}_proj.weight"] = matrix(HIDDEN, HIDDEN)
        for part in ("gate", "up"):
            tensors[f"{name}.mlp.{part}_proj.weight"] = matrix(INNER, HIDDEN)
        tensors[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
        for part in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{part}.weight"] = matrix(HIDDEN)
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_the_peak_is_little_more_than_what_stays(checkpoint: Path, scheme: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(checkpoint), scheme],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["final"] > 30e6
    assert found["peak"] <= 1.3 * found["final"], found
