"""One layout of Shoal in a process of its own: asked for runs on standard input, a JSON line each way.

    python seat.py MODEL '{"tp": 2, "threads": 1}'     serve as rank 0 (or alone)
    the same with RANK > 0 in the environment            be that rank

Asked {"prompts": [[ids]], "new": n}; answers {"seconds", "tokens", "rate", "digest", "ranks"}. `rate` is tokens a
second of the steps that only decode, which start when the last prompt has been read; `ranks` holds for each rank
its name, steps, seconds in them, and of these seconds spent waiting for others.
"""

import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from shoal import LLM, SamplingParams
from shoal.engine.outputs import RequestTimings, StepStats
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.engine.ranks.rank import join
from shoal.engine.ranks.rendezvous import LaunchEnv


@dataclass(slots=True)
class Steps:
    """When each step ended and what it had computed; an `Observer`."""

    ends: list[tuple[float, int, int]] = field(default_factory=list)

    def on_step(self, stats: StepStats) -> None:
        self.ends.append((time.monotonic(), stats.tokens, stats.sequences))

    def on_finished(self, timings: RequestTimings) -> None:
        del timings

    def decode_rate(self) -> float | None:
        """Tokens a second from the end of the last step with a prompt in it on; None if too few came after."""
        last = max((i for i, (_, tokens, rows) in enumerate(self.ends) if tokens > rows), default=0)
        after = self.ends[last:]
        if len(after) < 3:
            return None
        return sum(rows for _, _, rows in after[1:]) / (after[-1][0] - after[0][0])


def serve(model: str, options: dict[str, Any]) -> None:
    # Libraries print to standard output; the answers go elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with LLM(model, **options) as llm:
        executor = llm._core._executor
        ranks = executor if isinstance(executor, ProcessExecutor) else None
        answers.write(json.dumps({"ready": True}) + "\n")
        for line in sys.stdin:
            asked = json.loads(line)
            answers.write(json.dumps(run(llm, ranks, asked["prompts"], asked["new"])) + "\n")


def run(llm: LLM, executor: ProcessExecutor | None, prompts: list[list[int]], new: int) -> dict[str, Any]:
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    steps = llm._core.observer = Steps()
    before = executor.rank_stats() if executor is not None else ()
    start = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    after = executor.rank_stats() if executor is not None else ()
    ids = [result.outputs[0].token_ids for result in results]
    return {
        "seconds": seconds,
        "tokens": sum(map(len, ids)),
        "rate": steps.decode_rate(),
        "steps": len(steps.ends),
        "digest": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16],
        "ranks": [
            {
                "name": b.name,
                "steps": b.steps - a.steps,
                "seconds": b.seconds - a.seconds,
                "waited": b.waited - a.waited,
            }
            for a, b in zip(before, after, strict=True)
        ],
    }


def main() -> None:
    launched = LaunchEnv.of() if os.environ.get("RANK") else None
    if launched is not None and launched.rank:
        sys.exit(join(launched))
    serve(sys.argv[1], json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
