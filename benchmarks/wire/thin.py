"""A model as deep as another and almost without width: what it takes to compute is what no cutting shortens."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from shoal.engine.models.build import build_model
from shoal.specs import load_model_spec
from shoal.specs.model import ModelSpec

_VOCAB = 64


def write_thin(directory: Path, like: ModelSpec) -> None:
    """A checkpoint of a Llama with the layers and heads of `like`, eight wide a head, weights random."""
    attention = like.layers[0].attention
    directory.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _VOCAB,
        "hidden_size": 8 * attention.heads,
        "intermediate_size": 8 * attention.heads,
        "num_hidden_layers": len(like.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    targets = build_model(load_model_spec(directory), torch.float32, torch.device("cpu")).targets()
    torch.manual_seed(0)
    save_file({n: torch.randn(t.shape) * 0.1 for n, t in targets.items()}, directory / "model.safetensors")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(_VOCAB)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(directory / "tokenizer.json"))
