"""Dialects: one engine a file, and nothing of an engine's ways anywhere else in the fleet."""

from collections.abc import Mapping
from types import MappingProxyType

from shoal.fleet.adapters.base import Dialect, HttpAdapter, LaunchRequest, NotStartable, Traits
from shoal.fleet.adapters.listing import ModelCard
from shoal.fleet.adapters.llamacpp import LlamaCpp
from shoal.fleet.adapters.openai import OpenAi
from shoal.fleet.adapters.readiness import ReadinessGate
from shoal.fleet.adapters.sglang import Sglang
from shoal.fleet.adapters.shoal import ReplicaSetup, Shoal
from shoal.fleet.adapters.vllm import Vllm

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {"shoal": Shoal(), "vllm": Vllm(), "llamacpp": LlamaCpp(), "sglang": Sglang(), "openai": OpenAi()}
)

__all__ = [
    "DIALECTS",
    "Dialect",
    "HttpAdapter",
    "LaunchRequest",
    "ModelCard",
    "NotStartable",
    "ReadinessGate",
    "ReplicaSetup",
    "Traits",
]
