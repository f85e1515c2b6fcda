"""The products a model is made of, against what this machine can do: GB/s and GOP/s, and the share of the limit.

    python benchmarks/kernels.py [--quick] [--threads 2] [--shapes smollm2,1.5b] [--append FILE]

Limits are measured first, with the same threads:

    memory   reading an array of 512 MiB once, by torch's sum of int32
    int8     byte multiplies on registers alone, in a loop of the compiled library
    fp32     the best that torch's matrix product reaches

A product of R rows reads its weights once (bytes ÷ memory limit) and does 2 · R · in · out operations (÷ int8
limit); the larger of the two times is the least it can take, and the share is that time ÷ the measured one.
Weights of several layers are gone through in turn, so that those of one row come from memory and not from the
cache. A small model's may still partly lie in a large last-level cache; the share is then above what memory
alone would allow. Figures are medians of repetitions.
"""

import argparse
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from machine import append, describe
from shoal.engine import ops
from shoal.engine.ops.native_library import backend
from shoal.engine.ops.quantized import QuantizedWeight, Scheme

ROWS = (1, 8, 32, 64, 128, 512)
SHAPES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "smollm2": (("qkv", 576, 960), ("out", 576, 576), ("gate_up", 576, 3072), ("down", 1536, 576)),
    "head": (("head", 576, 49152),),
    "1.5b": (("qkv", 2048, 3072), ("gate_up", 2048, 11008), ("down", 5504, 2048)),
}
KEPT = 96 << 20
"""Bytes of weights gone through in turn: more than a last-level cache."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of this machine with these threads."""

    memory: float
    """Bytes a second."""
    int8: float
    """Operations a second; a multiply and an add are two."""
    fp32: float


def seconds(call: Callable[[], object], least: float, repeats: int = 5) -> float:
    """Median time of a call, from repetitions of at least `least` seconds each."""
    call()
    count, taken = 1, 0.0
    while True:
        start = time.perf_counter()
        for _ in range(count):
            call()
        taken = time.perf_counter() - start
        if taken >= least:
            break
        count = max(count + 1, int(count * least / max(taken, 1e-6) * 1.2))
    times = [taken / count]
    for _ in range(repeats - 1):
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def _memory(least: float) -> float:
    block = torch.ones(128 << 20, dtype=torch.int32)
    return block.nbytes / seconds(lambda: block.sum(dtype=torch.int32), least, 3)


def limits(least: float) -> Limits:
    memory = _memory(least)
    found = backend()
    if found.library is None:
        raise SystemExit(f"nothing to measure: {found.detail}")
    peak, steps = found.library.functions.quantized_peak, 1 << 20
    asked = (found.library.index(found.isas[0]), torch.get_num_threads(), steps)
    int8 = 2 * peak(*asked) / seconds(lambda: peak(*asked), least)
    a, b = torch.randn(768, 768), torch.randn(768, 768)
    fp32 = 2 * 768**3 / seconds(lambda: torch.mm(a, b), least)
    return Limits(memory, int8, fp32)


class Turn:
    """Copies of one weight, a different one each call."""

    def __init__(self, make: Callable[[], torch.Tensor | QuantizedWeight], size: int) -> None:
        self._all = [make() for _ in range(max(1, min(64, KEPT // size)))]
        self._next = 0

    def __call__(self) -> torch.Tensor | QuantizedWeight:
        self._next = (self._next + 1) % len(self._all)
        return self._all[self._next]


def measured(kind: str, rows: int, inputs: int, outputs: int, least: float) -> tuple[float, int]:
    """(seconds a call, bytes of the weight) of `fp32`, `fp32 torch`, `int8` or `int4`."""
    x = torch.randn(rows, inputs)
    if kind in ("int8", "int4"):
        scheme: Scheme = "int8" if kind == "int8" else "int4"
        first = QuantizedWeight.of(scheme, torch.randn(outputs, inputs))
        turn = Turn(
            lambda: QuantizedWeight(scheme, first.codes.clone(), first.scales.clone(), outputs, inputs),
            first.nbytes,
        )

        def product() -> object:
            weight = turn()
            assert isinstance(weight, QuantizedWeight)
            return ops.quantized_linear(x, weight)

        return seconds(product, least), first.nbytes
    size = outputs * inputs * 4
    turn = Turn(lambda: torch.randn(outputs, inputs), size)
    linear = torch.nn.functional.linear if kind == "fp32 torch" else ops.linear

    def dense() -> object:
        weight = turn()
        assert isinstance(weight, torch.Tensor)
        return linear(x, weight)

    return seconds(dense, least), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows, shapes and repetitions")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--shapes", default="smollm2,head,1.5b")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--kinds", default="fp32,fp32 torch,int8,int4")
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    facts = [*describe(), ("kernels", ops.KERNELS.name), ("threads", str(asked.threads))]
    least = 0.01 if asked.quick else 0.05
    limit = limits(least)
    facts.append(
        (
            "limits",
            f"memory {limit.memory / 1e9:.1f} GB/s, int8 {limit.int8 / 1e9:.0f} GOP/s, "
            f"fp32 {limit.fp32 / 1e9:.0f} GOP/s",
        )
    )
    rows_list = [1, 32, 512] if asked.quick else [int(r) for r in asked.rows.split(",")]
    names = ["smollm2"] if asked.quick else asked.shapes.split(",")
    lines = ["| product | rows | kind | µs | GB/s | GOP/s | of the limit | ÷ fp32 torch |", "|---" * 8 + "|"]
    for name in names:
        for label, inputs, outputs in SHAPES[name]:
            for rows in rows_list:
                if rows > 64 and label == "head":
                    continue
                taken = {k: measured(k, rows, inputs, outputs, least) for k in asked.kinds.split(",")}
                for kind, (time_taken, size) in taken.items():
                    work = 2 * rows * inputs * outputs
                    peak = limit.fp32 if kind.startswith("fp32") else limit.int8
                    share = max(size / limit.memory, work / peak) / time_taken
                    torch_time = taken.get("fp32 torch", (float("nan"), 0))[0]
                    lines.append(
                        f"| {name} {label} {inputs}×{outputs} | {rows} | {kind} | {time_taken * 1e6:.0f} "
                        f"| {size / time_taken / 1e9:.1f} | {work / time_taken / 1e9:.0f} | {share:.0%} "
                        f"| {torch_time / time_taken:.2f} |"
                    )
                    print(lines[-1], flush=True)
    body = "\n".join(lines)
    facts.append(("command", shlex.join(["python", *sys.argv])))
    print("\n" + "\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Kernels, {facts[0][1][:10]}", facts, body)


if __name__ == "__main__":
    main()
