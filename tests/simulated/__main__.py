"""`python -m simulated --seeds N`: many seeds, with a table; `python -m simulated SEED`: what happens in one."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from simulated.record import Run
from simulated.run import simulate


def _quiet(seed: int) -> Run:
    run = simulate(seed)
    run.journal = None
    return run


def _runs(seeds: range, jobs: int) -> Iterator[Run]:
    if jobs == 1:
        yield from map(_quiet, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_quiet, seeds, chunksize=4)


def _many(seeds: range, jobs: int) -> int:
    started, broken, done = time.monotonic(), 0, 0
    verdicts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    again: Counter[str] = Counter()
    seconds = 0.0
    recovery: list[float] = []
    for run in _runs(seeds, jobs):
        done += 1
        verdicts += run.verdicts
        faults += run.faults
        seconds += run.seconds
        recovery.append(run.recovery_seconds)
        again.update(retried=run.retried, continued=run.continued, restarted=run.restarts)
        for violation in run.violations:
            print(f"seed {run.seed}: {violation}", flush=True)
        broken += bool(run.violations)
        if sys.stderr.isatty() or done % 100 == 0 or done == len(seeds):
            end = "" if sys.stderr.isatty() else "\n"
            print(f"\r{done}/{len(seeds)} seeds, {broken} with violations", end=end, file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    recovery.sort()
    rows = (
        ("seeds", f"{done:,}, of which {broken} with violations"),
        ("answers", ", ".join(f"{name} {count:,}" for name, count in verdicts.most_common())),
        ("faults", ", ".join(f"{name} {count:,}" for name, count in faults.most_common())),
        (
            "repair",
            f"{again['retried']:,} further legs, of which {again['continued']:,} continued streams; "
            f"{again['restarted']:,} restarts",
        ),
        ("recovery", f"median {recovery[done // 2]:.1f} s, longest {recovery[-1]:.1f} s"),
        ("virtual time", f"{seconds / 3600:.1f} h in {time.monotonic() - started:.0f} s"),
    )
    for name, text in rows:
        print(f"{name:<13} {text}")
    return 1 if broken else 0


def _one(seed: int, *, wires: bool) -> int:
    run = simulate(seed)
    assert run.journal is not None
    print("\n".join(run.journal.lines(wires=wires)))
    print(f"\nseed {seed}: {run.seconds:.1f} s of virtual time, sha256 {run.digest}")
    for violation in run.violations:
        print(f"violation: {violation}")
    return 1 if run.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulated", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="show the journal of this seed")
    parser.add_argument("--wires", action="store_true", help="with every piece of data that arrived")
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="run N seeds (default 500)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    given = parser.parse_args()
    if given.seeds < 1 or given.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if given.seed is not None:
        return _one(given.seed, wires=given.wires)
    return _many(range(given.first, given.first + given.seeds), given.jobs)


if __name__ == "__main__":
    sys.exit(main())
