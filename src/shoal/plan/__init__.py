"""What to buy: memory, step time, search, cost, explanation.

    from shoal.plan import plan
    from shoal.plan.explain import explain

Names are imported when first used: `import shoal.plan` alone costs next to nothing. `memory`, `step_time`,
`search`, `explain` and `emit` are modules.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.plan.api import ask, plan
    from shoal.plan.designs import Design, Plan
    from shoal.plan.estimator import ServingEstimator
    from shoal.plan.explain import Explanation
    from shoal.plan.memory import replica_memory
    from shoal.plan.question import Question

__all__ = [
    "Design",
    "Explanation",
    "Plan",
    "Question",
    "ServingEstimator",
    "ask",
    "plan",
    "replica_memory",
]

_HOMES = {
    "Design": "designs",
    "Explanation": "explain",
    "Plan": "designs",
    "Question": "question",
    "ServingEstimator": "estimator",
    "ask": "api",
    "plan": "api",
    "replica_memory": "memory",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
