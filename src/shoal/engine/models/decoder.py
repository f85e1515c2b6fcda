"""A decoder-only transformer assembled from a `ModelSpec`: every architecture of `names.ARCHITECTURES`."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import KvCache, LayerKv
from shoal.engine.layers.attention import Attention, Rotation
from shoal.engine.layers.embedding import Embedding
from shoal.engine.layers.linear import Linear
from shoal.engine.layers.loading import Target, empty
from shoal.engine.layers.mlp import GatedMlp
from shoal.engine.layers.norm import RmsNorm
from shoal.engine.layers.rope import RotaryEmbedding
from shoal.engine.models.names import NormNames, canonical
from shoal.engine.weights.errors import WeightsError
from shoal.specs.model import LayerSpec, ModelSpec, RopeSpec

_LM_HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens"


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then the same with the FFN; a second norm before each sum in sandwich models."""

    def __init__(self, spec: LayerSpec, model: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()

        def norm() -> RmsNorm:
            return RmsNorm(model.hidden, model.norm, dtype, device)

        self.attention_norm, self.ffn_norm = norm(), norm()
        self.after_attention_norm = norm() if model.norm.sandwich else None
        self.after_ffn_norm = norm() if model.norm.sandwich else None
        self.attention = Attention(spec.attention, model.norm, model.hidden, dtype, device)
        self.mlp = GatedMlp(spec.ffn, model.hidden, dtype, device)

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch, kv: LayerKv) -> Tensor:
        attended = self.attention(self.attention_norm(x), rotation, batch, kv)
        if self.after_attention_norm is not None:
            attended = self.after_attention_norm(attended)
        x = x + attended
        fed = self.mlp(self.ffn_norm(x))
        if self.after_ffn_norm is not None:
            fed = self.after_ffn_norm(fed)
        out: Tensor = x + fed
        return out

    def targets(self, names: NormNames) -> dict[str, Target]:
        found = self.attention_norm.targets(names.attention) | self.ffn_norm.targets(names.ffn)
        if self.after_attention_norm is not None and names.after_attention:
            found |= self.after_attention_norm.targets(names.after_attention)
        if self.after_ffn_norm is not None and names.after_ffn:
            found |= self.after_ffn_norm.targets(names.after_ffn)
        found |= {f"self_attn.{name}": target for name, target in self.attention.targets().items()}
        return found | {f"mlp.{name}": target for name, target in self.mlp.targets().items()}


class CausalLM(nn.Module):
    """Parameters are uninitialised until `load`."""

    def __init__(
        self, spec: ModelSpec, names: NormNames, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = spec
        self.names = names
        self.embedding = Embedding(spec.vocab, spec.hidden, spec.embedding_scale, dtype, device)
        self.layers = nn.ModuleList(DecoderLayer(layer, spec, dtype, device) for layer in spec.layers)
        self.norm = RmsNorm(spec.hidden, spec.norm, dtype, device)
        self.head = Linear(spec.hidden, spec.vocab, False, dtype, torch.device("meta"))
        self.head.weight = (
            self.embedding.weight if spec.tied_embeddings else empty((spec.vocab, spec.hidden), dtype, device)
        )
        ropes: list[RopeSpec] = []
        for layer in spec.layers:
            if layer.attention.rope is not None and layer.attention.rope not in ropes:
                ropes.append(layer.attention.rope)
        self.ropes = nn.ModuleList(RotaryEmbedding(rope, max_length, dtype, device) for rope in ropes)
        self.rope_of_layer = [ropes.index(rope) if (rope := s.attention.rope) else None for s in spec.layers]

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KvCache) -> Tensor:
        """Run every row, writing its keys and values; the normed hidden states of all rows, [T, H]."""
        x = self.embedding(batch.tokens)
        rotations = [rope(batch.positions) for rope in self.ropes]
        for layer, rope, layer_kv in zip(self.layers, self.rope_of_layer, kv.layers, strict=True):
            x = layer(x, None if rope is None else rotations[rope], batch, layer_kv)
        return self.norm(x)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V] float32."""
        logits: Tensor = self.head(hidden)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.final_softcap is not None:
            logits = torch.tanh(logits / self.spec.final_softcap) * self.spec.final_softcap
        return logits.float()

    def targets(self) -> dict[str, Target]:
        """Canonical tensor names -> where they go. A tied head has no tensor of its own."""
        found = self.embedding.targets(_EMBEDDING) | self.norm.targets("norm")
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            found |= {f"layers.{index}.{name}": target for name, target in layer.targets(self.names).items()}
        if not self.spec.tied_embeddings:
            found[_LM_HEAD] = Target(self.head.weight)
        return found

    @torch.inference_mode()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the parameters from Hugging Face names, one tensor at a time.

        Raises WeightsError for tensors that are missing, not of this model, given twice, or of another shape. A
        head in the checkpoint of a model with tied embeddings is used if it differs, as Transformers does.
        """
        targets = self.targets()
        missing = dict.fromkeys(targets)
        unknown = []
        for name, tensor in weights:
            bare = canonical(name)
            if bare is None:
                continue
            if bare == _LM_HEAD and self.spec.tied_embeddings:
                self._own_head(name, tensor)
            elif bare not in targets:
                unknown.append(name)
            elif bare not in missing:
                raise WeightsError("given twice, under names that mean the same", tensor=name)
            else:
                targets[bare].fill(name, tensor)
                del missing[bare]
        if missing:
            raise WeightsError(f"{len(missing)} of {len(targets)} tensors are missing: {_some(missing)}")
        if unknown:
            raise WeightsError(f"{len(unknown)} tensors are not of {self.spec.architecture}: {_some(unknown)}")
        if self._untied() and torch.equal(self.head.weight, self.embedding.weight):
            self.head.weight = self.embedding.weight

    def _untied(self) -> bool:
        """A head that the spec says is the embedding, and the checkpoint gave apart."""
        return self.spec.tied_embeddings and self.head.weight is not self.embedding.weight

    def _own_head(self, name: str, tensor: Tensor) -> None:
        own = empty(tuple(self.embedding.weight.shape), self.embedding.weight.dtype, self.embedding.weight.device)
        Target(own).fill(name, tensor)
        self.head.weight = own


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")
