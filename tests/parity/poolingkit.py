"""Tiny models that give vectors or scores, made by Transformers, with the files by which they say so."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

VOCAB = 120
WORDS = ["[PAD]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(3, VOCAB))]
_ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
_DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}


def save_model(directory: Path, kind: str, **config: Any) -> Any:
    """A random model of Transformers' class `kind` in a directory, with a tokenizer of one word per token."""
    made: Any = getattr(transformers, kind)
    encoder = "Bert" in kind or "Roberta" in kind
    settings = made.config_class(**((_ENCODER if encoder else _DECODER) | config))
    torch.manual_seed(0)
    model = made._from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "LayerNorm.weight", "norm.weight")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory, safe_serialization=True)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(WORDS[:3])
    if encoder:
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
        )
        # As all-MiniLM-L6-v2 has them: neither may touch what is served.
        words.enable_padding(length=16)
        words.enable_truncation(8)
    words.save(str(directory / "tokenizer.json"))
    return model


def declare_pooling(directory: Path, mode: str, *, normalize: bool, **settings: Any) -> None:
    """Write what sentence-transformers writes."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    if normalize:
        modules.append(
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
        )
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    pooling = {"word_embedding_dimension": 32} | {f"pooling_mode_{name}": name == mode for name in modes}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if settings:
        (directory / "sentence_bert_config.json").write_text(json.dumps(settings))


def text(*ids: int) -> str:
    return " ".join(f"w{i}" for i in ids)
