"""How a benchmark talks to an engine in another interpreter: one JSON line asked, one answered.

Imported by the scripts beside it, which run in their own environments: only the standard library here.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

Generate = Callable[[Sequence[Sequence[int]], int], int]
"""(prompts as token ids, new tokens each) → tokens generated in all."""


def serve(start: Callable[[], tuple[Generate, dict[str, str]]]) -> None:
    """Load the engine, say what it is, then answer until standard input ends."""
    # Libraries print to standard output; the answers go elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    began = time.perf_counter()
    generate, facts = start()
    answers.write(json.dumps({"ready": True, "load_seconds": time.perf_counter() - began, "facts": facts}) + "\n")
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        tokens = generate(asked["prompts"], asked["new"])
        answers.write(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}) + "\n")
