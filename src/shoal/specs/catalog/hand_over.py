"""Which prefill worker can hand KV to which decode worker, by the engine's table of capabilities.

problem = hand_over_problem(able, model, Layout(tp=4), Layout(tp=2))      # None, or why it is refused
backend = shared_backend(able, model, h100, l40s, "bf16")                 # None: not between these parts
"""

from shoal.specs.catalog.capabilities import EngineCapability
from shoal.specs.hardware import Accelerator
from shoal.specs.layout import Layout
from shoal.specs.model import ModelSpec

ANY_BACKEND = "any"
_FP8_EVERYWHERE = ("FLASHINFER", ANY_BACKEND)
"""Attention backends that hold an 8-bit cache on every architecture that they run on."""


def hand_over_problem(able: EngineCapability, model: ModelSpec, prefill: Layout, decode: Layout) -> str | None:
    """Return why a decode worker of one layout cannot read KV of a prefill worker of another; None: it can."""
    if prefill.tp == decode.tp or not able.degrees:
        return None
    degrees = f"prefill tp {prefill.tp}, decode tp {decode.tp}"
    attention = [layer.attention for layer in model.layers]
    if "equal_states" in able.degrees and any(a.linear is not None for a in attention):
        return f"{able.label} hands recurrent state over between equal tensor degrees only: {degrees}"
    if any(a.mla is not None for a in attention):
        return None
    if "equal_windows" in able.degrees and any(a.window for a in attention):
        return f"{able.label} hands sliding windows over between equal tensor degrees only: {degrees}"
    if "decode_wider" in able.degrees and decode.tp % prefill.tp:
        return f"{able.label} needs decode's tensor degree to be a multiple of prefill's: {degrees}"
    return None


def shared_backend(
    able: EngineCapability, model: ModelSpec, prefill: Accelerator, decode: Accelerator, kv_dtype: str
) -> str | None:
    """Return the attention backend that both parts have to be told so that KV can go from one to the other.

    An empty text where the two are of one architecture, which choose alike. None: no source says that the engine
    hands over between them. Only plain full attention is known to look alike across architectures.
    """
    if not able.connector or prefill.vendor != decode.vendor:
        return None
    if prefill.architecture == decode.architecture:
        return ""
    if any(
        layer.attention.kind != "gqa" or layer.attention.window or layer.attention.chunk for layer in model.layers
    ):
        return None
    for backend, parts in able.mixes:
        both = prefill.architecture in parts and decode.architecture in parts
        if both and (kv_dtype != "fp8" or backend in _FP8_EVERYWHERE):
            return backend
    return None
