"""BERT and RoBERTa: bidirectional encoders with learned positions and a norm after each sum.

The semantics are those of Transformers' modeling_bert.py and modeling_xlm_roberta.py.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine import ops
from shoal.engine.errors import WeightsError
from shoal.engine.pooling.config import PoolingSpec, UnsupportedPooling
from shoal.engine.pooling.model import TokenSequence
from shoal.engine.weights import open_weights

_PREFIXES = ("bert.", "roberta.")
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Encoder:
    """An encoder in memory; see `PoolingModel`."""

    def __init__(self, path: Path, pooling: PoolingSpec, dtype: torch.dtype, device: torch.device) -> None:
        """Raises UnsupportedPooling or WeightsError."""
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self._config = config
        try:
            self._layers, self._heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
            self.width, self._inner = int(config["hidden_size"]), int(config["intermediate_size"])
            self.vocab, positions = int(config["vocab_size"]), int(config["max_position_embeddings"])
            self._types, self._eps = int(config["type_vocab_size"]), float(config["layer_norm_eps"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnsupportedPooling(f"{path.name}: config.json lacks a whole number: {error}") from error
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise UnsupportedPooling(
                f"{path.name}: positions {config['position_embedding_type']!r}, only absolute work"
            )
        activation = config.get("hidden_act", "gelu")
        if activation not in _ACTIVATIONS:
            raise UnsupportedPooling(
                f"{path.name}: activation {activation!r}; {', '.join(_ACTIVATIONS)} are computed"
            )
        self._activation = _ACTIVATIONS[activation]
        self._roberta = config["model_type"] != "bert"
        # RoBERTa's positions begin after the padding's.
        self._first = int(config.get("pad_token_id", 1)) + 1 if self._roberta else 0
        limit = positions - self._first
        self.max_length = min(limit, pooling.max_length or limit)
        self._weights = _load(path, dict(self._shapes(positions, pooling)), dtype, device)
        self._device = device

    def _shapes(self, positions: int, pooling: PoolingSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of what is needed."""
        h, inner = self.width, self._inner
        yield "embeddings.word_embeddings.weight", (self.vocab, h)
        yield "embeddings.position_embeddings.weight", (positions, h)
        yield "embeddings.token_type_embeddings.weight", (self._types, h)
        norms, products = ["embeddings.LayerNorm"], []
        for i in range(self._layers):
            layer = f"encoder.layer.{i}"
            products += [(f"{layer}.attention.self.{name}", h, h) for name in ("query", "key", "value")]
            products.append((f"{layer}.attention.output.dense", h, h))
            products += [(f"{layer}.intermediate.dense", inner, h), (f"{layer}.output.dense", h, inner)]
            norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        if pooling.scores and self._roberta:
            products += [("classifier.dense", h, h), ("classifier.out_proj", 1, h)]
        elif pooling.scores:
            products += [("pooler.dense", h, h), ("classifier", 1, h)]
        for name, outputs, inputs in products:
            yield f"{name}.weight", (outputs, inputs)
            yield f"{name}.bias", (outputs,)
        for name in norms:
            yield f"{name}.weight", (h,)
            yield f"{name}.bias", (h,)

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Last hidden states of each sequence, [length, width]."""
        lengths = [len(s.ids) for s in sequences]

        def rows(values: list[int]) -> Tensor:
            return torch.tensor(values, device=self._device)

        tokens = rows([t for s in sequences for t in s.ids])
        positions = rows([self._first + p for n in lengths for p in range(n)])
        types = rows([t for s in sequences for t in (s.types or [0] * len(s.ids))])
        named = (("word", tokens), ("position", positions), ("token_type", types))
        parts = [F.embedding(ids, self._weights[f"embeddings.{name}_embeddings.weight"]) for name, ids in named]
        x = self._norm("embeddings.LayerNorm", parts[0] + parts[2] + parts[1])
        for i in range(self._layers):
            layer = f"encoder.layer.{i}"
            attended = self._linear(f"{layer}.attention.output.dense", self._attend(layer, x, lengths))
            x = self._norm(f"{layer}.attention.output.LayerNorm", attended + x)
            inner = self._activation(self._linear(f"{layer}.intermediate.dense", x))
            x = self._norm(f"{layer}.output.LayerNorm", self._linear(f"{layer}.output.dense", inner) + x)
        return list(torch.split(x, lengths))

    def _attend(self, layer: str, x: Tensor, lengths: list[int]) -> Tensor:
        """Softmax attention of each sequence over itself; rows of others change nothing."""
        named = (f"{layer}.attention.self.{name}" for name in ("query", "key", "value"))
        heads = [self._linear(name, x).view(len(x), self._heads, -1).transpose(0, 1) for name in named]
        pieces = zip(*(torch.split(part, lengths, 1) for part in heads), strict=True)
        attended = [F.scaled_dot_product_attention(q, k, v).transpose(0, 1) for q, k, v in pieces]
        return torch.cat(attended).reshape(len(x), self.width)

    def score(self, pooled: Tensor) -> Tensor:
        """[S, width] of first tokens -> [S] before any sigmoid."""
        names = ("classifier.dense", "classifier.out_proj") if self._roberta else ("pooler.dense", "classifier")
        return self._linear(names[1], torch.tanh(self._linear(names[0], pooled)))[:, 0]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return ops.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(x, (self.width,), weight, bias, self._eps)


def _load(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    source = open_weights(path)
    found: dict[str, Tensor] = {}
    for name in source.names():
        bare = name
        for prefix in _PREFIXES:
            bare = bare.removeprefix(prefix)
        # As TensorFlow called them, in old checkpoints.
        bare = bare.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if bare not in shapes:
            continue
        if source.shape(name) != shapes[bare]:
            raise WeightsError(f"found shape {source.shape(name)}, expected {shapes[bare]}", tensor=name)
        found[bare] = source.read(name).to(device, dtype, copy=True).contiguous()
    if missing := [name for name in shapes if name not in found]:
        raise WeightsError(f"{len(missing)} of {len(shapes)} tensors are missing: {', '.join(missing[:3])}")
    return found
