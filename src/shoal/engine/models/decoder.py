"""A decoder-only transformer assembled from a `ModelSpec`: every architecture of `names.ARCHITECTURES`.

A rank of a mesh holds its pipeline stage, and of each matrix in it what is its own (see docs/parallel.md):

    stage 0          embedding ─ layers 0 … ─ send
    stage 1               recv ─ layers … n ─ norm ─ head
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.batch import Batch
from shoal.engine.errors import WeightsError
from shoal.engine.kv.cache import KvCache, LayerKv
from shoal.engine.layers.attention import Attention, Rotation
from shoal.engine.layers.embedding import Embedding, Head
from shoal.engine.layers.linear import Weight
from shoal.engine.layers.loading import Target, cutter
from shoal.engine.layers.mla import LatentAttention
from shoal.engine.layers.mlp import GatedMlp
from shoal.engine.layers.moe import MoeFfn
from shoal.engine.layers.norm import RmsNorm
from shoal.engine.layers.rope import RotaryEmbedding
from shoal.engine.lora.update import ActiveRows
from shoal.engine.models.names import NormNames, canonical, of_an_expert
from shoal.engine.ops.fused import FusedLayer, FusedLayers, FusedStage, Product
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.placement import own_layers
from shoal.engine.parallel.shm import ShmGroup
from shoal.engine.weights.source import Ranges, WeightSource
from shoal.policy.experts import ExpertPlacement, LayerLoad
from shoal.specs.model import LayerSpec, ModelSpec, RopeSpec

_LM_HEAD = "lm_head"
_EMBEDDING = "embed_tokens"
_NORM = "norm"
_OF_A_LAYER = re.compile(r"layers\.(\d+)\.")

_Stored = tuple[str, tuple[int, ...], Callable[[Ranges], Tensor]]
"""Name, shape and reader of a checkpoint's tensor."""


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then the same with the FFN; a second norm before each sum in sandwich models."""

    def __init__(
        self,
        spec: LayerSpec,
        model: ModelSpec,
        dtype: torch.dtype,
        device: torch.device,
        mesh: Mesh,
        spare_experts: int = 0,
    ) -> None:
        super().__init__()

        def norm() -> RmsNorm:
            return RmsNorm(model.hidden, model.norm, dtype, device)

        self.attention_norm, self.ffn_norm = norm(), norm()
        self.after_attention_norm = norm() if model.norm.sandwich else None
        self.after_ffn_norm = norm() if model.norm.sandwich else None
        self.attention: Attention | LatentAttention
        if spec.attention.kind == "mla":
            self.attention = LatentAttention(spec.attention, model.hidden, dtype, device, mesh)
        else:
            self.attention = Attention(spec.attention, model.norm, model.hidden, dtype, device, mesh)
        self.mlp: GatedMlp | MoeFfn
        if spec.ffn.kind == "moe":
            self.mlp = MoeFfn(spec.ffn, model.hidden, dtype, device, mesh, spare_experts)
        else:
            self.mlp = GatedMlp(spec.ffn, model.hidden, dtype, device, mesh)

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch, kv: LayerKv) -> Tensor:
        attended = self.attention(self.attention_norm(x), rotation, batch, kv)
        if self.after_attention_norm is not None:
            attended = self.after_attention_norm(attended)
        x, normed = self.ffn_norm.add_norm(x, attended)
        fed = self.mlp(normed)
        if self.after_ffn_norm is not None:
            fed = self.after_ffn_norm(fed)
        out: Tensor = x + fed
        return out

    def fused_spec(self, rope: int | None) -> FusedLayer | None:
        """What this rank has of the layer, if the kernels may know it: grouped-query attention and a network, or
        experts, that are all here; `rope` is which of the model's rotations it uses.
        """
        attention, ffn = self.attention, self.mlp.fused_spec()
        if not isinstance(attention, Attention) or ffn is None or attention.cp.size > 1:
            return None
        # A bias is added once, after the sum over ranks.
        if attention.out.group.size > 1 and attention.out.bias is not None:
            return None
        spec = attention.spec

        def weight(norm: RmsNorm | None) -> Tensor | None:
            return None if norm is None else norm.weight

        return FusedLayer(
            attention_norm=self.attention_norm.weight,
            after_attention_norm=weight(self.after_attention_norm),
            ffn_norm=self.ffn_norm.weight,
            after_ffn_norm=weight(self.after_ffn_norm),
            q_norm=weight(attention.q_norm),
            k_norm=weight(attention.k_norm),
            sinks=attention.sinks,
            qkv=Product(attention.qkv.weight, attention.qkv.bias),
            out=Product(attention.out.weight, attention.out.bias),
            ffn=ffn,
            heads=attention.heads,
            window=spec.window,
            scale=spec.scale,
            softcap=spec.softcap,
            rope=rope,
            rope_dim=0 if spec.rope is None else spec.rope.dim,
            interleaved=attention.interleaved,
        )

    def targets(self, names: NormNames) -> dict[str, Target]:
        found = self.attention_norm.targets(names.attention) | self.ffn_norm.targets(names.ffn)
        if self.after_attention_norm is not None and names.after_attention:
            found |= self.after_attention_norm.targets(names.after_attention)
        if self.after_ffn_norm is not None and names.after_ffn:
            found |= self.after_ffn_norm.targets(names.after_ffn)
        found |= {f"self_attn.{name}": target for name, target in self.attention.targets().items()}
        return found | {f"mlp.{name}": target for name, target in self.mlp.targets().items()}


class CausalLM(nn.Module):
    """One rank's share of a model. Parameters are uninitialised until `load`."""

    def __init__(
        self,
        spec: ModelSpec,
        names: NormNames,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        mesh: Mesh | None = None,
        spare_experts: int = 0,
    ) -> None:
        super().__init__()
        mesh = mesh or Mesh.single()
        self.spec = spec
        self.names = names
        self.mesh = mesh
        self.dtype = dtype
        self.stage = own_layers(spec, mesh)
        self.embedding = (
            Embedding(spec.vocab, spec.hidden, spec.embedding_scale, dtype, device, mesh.tp)
            if mesh.first_stage
            else None
        )
        self.layers = nn.ModuleList(
            DecoderLayer(spec.layers[i], spec, dtype, device, mesh, spare_experts) for i in self.stage
        )
        self.norm = RmsNorm(spec.hidden, spec.norm, dtype, device) if mesh.last_stage else None
        self.head = Head(spec, self.shared_weight(), dtype, device, mesh.tp) if mesh.last_stage else None
        ropes: list[RopeSpec] = []
        for index in self.stage:
            rope = spec.layers[index].attention.rope
            if rope is not None and rope not in ropes:
                ropes.append(rope)
        self.ropes = nn.ModuleList(RotaryEmbedding(rope, max_length, dtype, device) for rope in ropes)
        attentions = [spec.layers[index].attention for index in self.stage]
        self._fused: tuple[KvCache, FusedLayers | None] | None = None
        self.adapter_rows = ActiveRows()
        self.adapter_numbers: Mapping[str, int] = {}
        """By name (`models.adapters`)."""
        self.rope_of_layer = [ropes.index(a.rope) if a.rope else None for a in attentions]

    def shared_weight(self) -> Weight | None:
        """The embedding's, where the head has the same and both are of this stage."""
        return self.embedding.weight if self.embedding is not None and self.spec.tied_embeddings else None

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KvCache) -> Tensor:
        """Run every row through this stage, writing its keys and values, and hand it on.

        The last stage returns the normed hidden states of all rows, [T, H]; others what they sent.
        """
        x = self._enter(batch)
        end = max((context for _, context in batch.lengths), default=0)
        rotations = [rope(batch.positions, end) for rope in self.ropes]
        self.adapter_rows.rows = batch.adapters
        # The fused kernels know nothing of adapters; op by op, rows of the base model get the same bits.
        fused = self._fused_layers(kv) if batch.stripe is None and not batch.adapters else None
        if fused is not None:
            x = fused(x, rotations, batch)
            return x if self.norm is not None else self._leave(x)
        for layer, rope, layer_kv in zip(self.layers, self.rope_of_layer, kv.layers, strict=True):
            x = layer(x, None if rope is None else rotations[rope], batch, layer_kv)
        return self.norm(x) if self.norm is not None else self._leave(x)

    def _leave(self, x: Tensor) -> Tensor:
        if len(x):
            self.mesh.pp.send(x, self.mesh.at.pp + 1)
        return x

    def _fused_layers(self, kv: KvCache) -> FusedLayers | None:
        """All layers in one call of the kernels, if they have one; made when weights and cache are there."""
        if self._fused is None or self._fused[0] is not kv:
            pairs = zip(self.layers, self.rope_of_layer, strict=True)
            layers = [layer.fused_spec(rope) if isinstance(layer, DecoderLayer) else None for layer, rope in pairs]
            known = [layer for layer in layers if layer is not None]
            sums = self.mesh.tp.row_sums() if isinstance(self.mesh.tp, ShmGroup) else None
            made = None
            if len(known) == len(layers) and (self.mesh.tp.size == 1 or sums is not None):
                norm = None if self.norm is None else self.norm.weight
                stage = FusedStage(known, kv.layers, norm, self.spec.norm.eps, self.dtype, sums)
                made = ops.KERNELS.fuse_layers(stage)
            self._fused = (kv, made)
        return self._fused[1]

    def _enter(self, batch: Batch) -> Tensor:
        if self.embedding is not None:
            return self.embedding(batch.tokens)  # type: ignore[no-any-return]
        shape = (len(batch.tokens), self.spec.hidden)
        # Both sides know that there are no rows, as a context-parallel rank may have none.
        if not shape[0]:
            return torch.empty(shape, dtype=self.dtype, device=batch.tokens.device)
        return self.mesh.pp.recv(shape, self.dtype, self.mesh.at.pp - 1)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V] float32 on the first tensor-parallel rank of the last stage; see `Head` for others."""
        if self.head is None:
            raise ValueError(f"the head is on stage {self.mesh.layout.pp - 1}, this is stage {self.mesh.at.pp}")
        return self.head(hidden)  # type: ignore[no-any-return]

    def _experts(self) -> Iterator[tuple[int, MoeFfn]]:
        for index, layer in zip(self.stage, self.layers, strict=True):
            if isinstance(layer.mlp, MoeFfn):
                yield index, layer.mlp

    @torch.inference_mode()
    def place_experts(self, placement: ExpertPlacement) -> None:
        """Move experts of this stage's layers to where they are from now on. Every rank of the stage is told to."""
        wanted = dict(placement.layers)
        for index, ffn in self._experts():
            if index in wanted:
                ffn.place(wanted[index])

    def take_expert_loads(self) -> tuple[LayerLoad, ...]:
        """What this rank sent to and computed for experts since it was last asked."""
        return tuple(load for index, ffn in self._experts() if (load := ffn.take_load(index)) is not None)

    def targets(self) -> dict[str, Target]:
        """Canonical names of the tensors this rank needs -> where they go. A tied head has no tensor of its own;
        on another stage than the embedding it is filled from the embedding's.
        """
        found: dict[str, Target] = {}
        if self.head is not None:
            found |= self.head.targets(_EMBEDDING if self.spec.tied_embeddings else _LM_HEAD)
        if self.embedding is not None:
            found |= self.embedding.targets(_EMBEDDING)
        if self.norm is not None:
            found |= self.norm.targets(_NORM)
        for index, layer in zip(self.stage, self.layers, strict=True):
            assert isinstance(layer, DecoderLayer)
            found |= {f"layers.{index}.{name}": target for name, target in layer.targets(self.names).items()}
        return found

    @torch.inference_mode()
    def load(self, weights: WeightSource | Iterable[tuple[str, Tensor]]) -> None:
        """Fill the parameters from Hugging Face names, one tensor at a time; of a source, only this rank's parts
        are read.

        Raises WeightsError for tensors that are missing, not of this model, given twice, or of another shape. A
        head in the checkpoint of a model with tied embeddings is used if it differs, as Transformers does.
        """
        targets = self.targets()
        missing = dict.fromkeys(targets)
        unknown = []
        for name, shape, read in _stored(weights):
            bare = canonical(name)
            if bare is None:
                continue
            if bare == f"{_LM_HEAD}.weight" and self.spec.tied_embeddings:
                if self.head is not None:
                    self.head.own(name, shape, read)
            elif bare not in targets:
                if not self._of_another_rank(bare):
                    unknown.append(name)
            elif bare not in missing:
                raise WeightsError("given twice, under names that mean the same", tensor=name)
            else:
                targets[bare].fill(name, shape, read)
                del missing[bare]
        if missing:
            raise WeightsError(f"{len(missing)} of {len(targets)} tensors are missing: {_some(missing)}")
        if unknown:
            raise WeightsError(f"{len(unknown)} tensors are not of {self.spec.architecture}: {_some(unknown)}")
        if self.head is not None and (shared := self.shared_weight()) is not None:
            self.head.share_if_equal(shared)

    def _of_another_rank(self, bare: str) -> bool:
        """Whether this tensor is checked elsewhere: it is of a stage or an expert that another rank has, or of the
        layers for multi-token prediction, which nobody runs.
        """
        match = _OF_A_LAYER.match(bare)
        if match is not None:
            layer = int(match[1])
            if layer >= len(self.spec.layers):
                return self.spec.mtp is not None and layer < len(self.spec.layers) + self.spec.mtp.layers
            return layer not in self.stage or (
                self.mesh.ep.size > 1 and of_an_expert(bare, self.spec.layers[layer])
            )
        return self.mesh.layout.pp > 1 and bare in {f"{name}.weight" for name in (_EMBEDDING, _NORM, _LM_HEAD)}


def _stored(weights: WeightSource | Iterable[tuple[str, Tensor]]) -> Iterator[_Stored]:
    if isinstance(weights, Iterable):
        for name, tensor in weights:
            yield name, tuple(tensor.shape), cutter(tensor)
        return
    for name in weights.names():
        yield name, weights.shape(name), partial(weights.read, name)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")
