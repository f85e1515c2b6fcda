"""From a `ModelSpec` to a model, or to the reason why not."""

from collections.abc import Iterator

import torch

from shoal.engine.errors import EngineError
from shoal.engine.models.decoder import CausalLM
from shoal.engine.models.names import ARCHITECTURES
from shoal.engine.parallel.mesh import Mesh
from shoal.specs.model import FfnSpec, LayerSpec, ModelSpec

_DEQUANTIZED = ("gguf", "mxfp4", "fp8_block", "fp8_channel", "int8", "int4", "int4_symmetric")
"""Methods whose weights are read, and computed with in the compute dtype, or in what `--quantize` says."""


class UnsupportedModel(EngineError):
    """A model that Shoal can plan for and that its own engine doesn't run: names what is missing."""


def build_model(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    max_length: int | None = None,
    mesh: Mesh | None = None,
    spare_experts: int = 0,
) -> CausalLM:
    """The model, or a rank's share of it, with uninitialised parameters; `load` fills them. `mesh` None: one rank.

    `max_length` is the longest sequence that will be served (default: the model's own limit); RoPE kinds that
    depend on length use it, see `layers.rope`. Raises UnsupportedModel naming what the engine doesn't run.
    """
    names = ARCHITECTURES.get(spec.architecture)
    if names is None:
        raise UnsupportedModel(
            f"{spec.name}: the engine doesn't run {spec.architecture}; it runs {', '.join(ARCHITECTURES)}"
        )
    if spec.quantization is not None and spec.quantization.method not in _DEQUANTIZED:
        raise UnsupportedModel(
            f"{spec.name}: the engine doesn't read weights quantized by {spec.quantization.method!r}; "
            f"it reads float32, float16 and bfloat16, and dequantizes {', '.join(_DEQUANTIZED)}"
        )
    for index, layer in enumerate(spec.layers):
        for feature in _missing(layer):
            raise UnsupportedModel(f"{spec.name}: layer {index} has {feature}, which the engine doesn't run")
    return CausalLM(spec, names, max_length or spec.max_position, dtype, device, mesh, spare_experts)


def _missing(layer: LayerSpec) -> Iterator[str]:
    attention, ffn = layer.attention, layer.ffn
    if attention.kind not in ("gqa", "mla"):
        yield f"{attention.kind!r} attention"
    if attention.chunk is not None:
        yield "chunked local attention"
    if attention.qk_norm not in (None, "head"):
        yield f"a {attention.qk_norm!r} norm of q and k"
    if attention.output_gate:
        yield "an output gate"
    if attention.indexer is not None:
        yield "a sparse-attention indexer"
    if ffn.kind == "moe":
        yield from _missing_of_experts(ffn)
    if ffn.activation not in ("silu", "gelu", "gelu_tanh", *(["swiglu_oai"] if ffn.kind == "moe" else [])):
        yield f"the activation {ffn.activation!r}"


def _missing_of_experts(ffn: FfnSpec) -> Iterator[str]:
    router = ffn.router
    if router is None or router.scoring not in ("softmax", "sigmoid"):
        yield "a router of another kind"
    elif router.scale_input:
        yield "weights on what goes into an expert"
    elif router.hashed:
        yield "experts looked up by token"
    elif router.input_scale:
        yield "a router with scales of its own"
    if ffn.beside_dense:
        yield "a dense FFN beside the experts"
    if ffn.latent:
        yield "experts on a latent"
    if ffn.swiglu_limit is not None and ffn.activation != "swiglu_oai":
        yield "a clamped activation"
