"""Shoal: plan, serve and bench large language models on a fleet that one person can understand.

Importing this package is cheap: `LLM` and `SamplingParams` are loaded on first use, so the planner and
the command line never pay for PyTorch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.engine.llm import LLM as LLM
    from shoal.engine.sampling.params import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from shoal.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from shoal.engine.sampling.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
