"""The nouns: models, accelerators, clusters, layouts, workloads, targets; exact arithmetic, no torch, no HTTP."""

from shoal.specs.errors import InvalidField, SpecError, UnknownArchitecture, UnknownModel, UnreadableModel
from shoal.specs.model import (
    AttentionSpec,
    FfnSpec,
    LayerSpec,
    LinearStateSpec,
    MlaSpec,
    ModelSpec,
    MtpSpec,
    NormSpec,
    QuantizationSpec,
    RopeSpec,
    RouterSpec,
)
from shoal.specs.parse import known_architectures, load_model_spec, parse_config

__all__ = [
    "AttentionSpec",
    "FfnSpec",
    "InvalidField",
    "LayerSpec",
    "LinearStateSpec",
    "MlaSpec",
    "ModelSpec",
    "MtpSpec",
    "NormSpec",
    "QuantizationSpec",
    "RopeSpec",
    "RouterSpec",
    "SpecError",
    "UnknownArchitecture",
    "UnknownModel",
    "UnreadableModel",
    "known_architectures",
    "load_model_spec",
    "parse_config",
]
