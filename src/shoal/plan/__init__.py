"""What to buy: memory, step time, search, cost, explanation.

    from shoal.plan import plan, explain

Names are imported when first used: `import shoal.plan` alone costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.plan.api import ask, plan
    from shoal.plan.designs import Design, Plan
    from shoal.plan.emit import emit
    from shoal.plan.estimator import ServingEstimator
    from shoal.plan.explain import Explanation, explain
    from shoal.plan.memory import replica_memory
    from shoal.plan.question import Question
    from shoal.plan.search import search

__all__ = [
    "Design",
    "Explanation",
    "Plan",
    "Question",
    "ServingEstimator",
    "ask",
    "emit",
    "explain",
    "plan",
    "replica_memory",
    "search",
]

_HOMES = {
    "Design": "designs",
    "Explanation": "explain",
    "Plan": "designs",
    "Question": "question",
    "ServingEstimator": "estimator",
    "ask": "api",
    "emit": "emit",
    "explain": "explain",
    "plan": "api",
    "replica_memory": "memory",
    "search": "search",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
