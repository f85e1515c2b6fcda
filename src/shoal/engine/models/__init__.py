"""Models assembled from a `ModelSpec`."""

from shoal.engine.models.build import UnsupportedModel, build_model
from shoal.engine.models.decoder import CausalLM

__all__ = ["CausalLM", "UnsupportedModel", "build_model"]
