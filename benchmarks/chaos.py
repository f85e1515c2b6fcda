"""Ten minutes of chaos over a real fleet, with figures: `python benchmarks/chaos.py [SECONDS [REPLICAS [SEED]]]`.

Three replicas of a tiny random-weight model under closed-loop load are killed (SIGKILL), stopped (SIGSTOP), slowed,
cut off and garbled at random, one logs onto a full disk. Every answer is compared with the one given at peace.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
for folder in ("fleet", "e2e"):
    sys.path.insert(0, str(TESTS / folder))

from chaos_kit import chaos_fleet  # noqa: E402
from e2ekit import tiny_llama  # noqa: E402


async def main(seconds: float, replicas: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = tiny_llama(folder / "tiny")
        async with chaos_fleet(model, folder, replicas, seed) as chaos:
            report = await chaos.run(seconds, clients=2 * replicas, pause=(1.0, 6.0))
            print(report.text())
            await chaos.check_books()
            print("the books balance: every lease released once, no engine holds anything")
            for problem in report.problems:
                print(f"PROBLEM: {problem}")
            counts = {"answers": report.answers, "faults": report.faults, "problems": len(report.problems)}
            print(json.dumps(counts))
            return 1 if report.problems else 0


if __name__ == "__main__":
    given = [float(argument) for argument in sys.argv[1:]] + [600.0, 3.0, 1.0][len(sys.argv) - 1 :]
    sys.exit(asyncio.run(main(given[0], int(given[1]), int(given[2]))))
