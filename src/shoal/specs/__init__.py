"""The nouns: models, accelerators, clusters, layouts, workloads, targets; exact arithmetic, no torch, no HTTP."""

from shoal.specs.catalog.models import catalog_model, known_models
from shoal.specs.errors import InvalidField, SpecError, UnknownArchitecture, UnknownModel, UnreadableModel
from shoal.specs.load import load_model_spec
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
from shoal.specs.parse import parse_config
from shoal.specs.sizes import weight_bytes
from shoal.specs.tensors import ParameterCounts, PartSizes, TensorGroup, parameter_counts, tensor_groups

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
    "ParameterCounts",
    "PartSizes",
    "QuantizationSpec",
    "RopeSpec",
    "RouterSpec",
    "SpecError",
    "TensorGroup",
    "UnknownArchitecture",
    "UnknownModel",
    "UnreadableModel",
    "catalog_model",
    "known_models",
    "load_model_spec",
    "parameter_counts",
    "parse_config",
    "tensor_groups",
    "weight_bytes",
]
