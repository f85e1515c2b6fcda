"""The small correction left after physics: oblivious regression trees on dimensionless features.

Every tree asks the same `depth` questions of all cases and looks its answer up, so that it is a table anyone can
read, evaluates in a few comparisons, and has few leaves to overfit with. No feature names a model or a machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.plan.deployment import Deployment
from shoal.plan.numeric import ARRAY, Ops, Real
from shoal.plan.pool_work import PoolWork
from shoal.plan.serving import Load, Outcome

FEATURES = (
    "concurrency", "offered", "input", "output", "output_per_input", "devices", "prefill_devices", "attention_dp",
    "workers", "prefill_workers", "experts_spread", "split", "known", "hopper", "rack", "trtllm", "vllm", "sglang",
    "moe", "fp4", "bf16", "memory_pressure", "prefill", "decode_step", "tpot", "ttft", "pool_pressure", "latent",
    "interference", "hidden",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What a case is, as the indicators that features use: 1 or 0, or arrays of them."""

    hopper: Real
    rack: Real
    trtllm: Real
    vllm: Real
    sglang: Real
    fp4: Real
    bf16: Real
    latent: Real


def kind_of(d: Deployment) -> Kind:
    domain = d.accelerator.scale_up.domain or d.accelerator.devices_per_node
    return Kind(
        hopper=float(d.accelerator.architecture == "hopper"),
        rack=float(domain > 8),
        trtllm=float(d.backend == "trtllm"),
        vllm=float(d.backend == "vllm"),
        sglang=float(d.backend == "sglang"),
        fp4=float(d.precision == "fp4"),
        bf16=float(d.precision == "bf16"),
        latent=float(d.model.kv_replicated),
    )


def features(
    work: PoolWork, first: PoolWork, load: Load, kind: Kind, out: Outcome, ops: Ops = ARRAY
) -> tuple[Real, ...]:
    """The features in the order of `FEATURES`; sizes and ratios as natural logarithms."""
    log = ops.log
    return (
        log(load.concurrency), log(out.offered), log(load.input_tokens), log(load.output_tokens),
        log(load.output_tokens / load.input_tokens), log(work.devices), log(first.devices), log(work.attention_dp),
        log(load.workers), log(load.prefill_workers), log(work.ep), load.split, load.known_workers, kind.hopper,
        kind.rack, kind.trtllm, kind.vllm, kind.sglang, ops.minimum(work.moe_layers, 1.0), kind.fp4, kind.bf16,
        log(out.offered / out.admitted), log(out.prefill), log(out.decode_step), log(out.tpot), log(out.ttft),
        ops.minimum(out.pressure, 20.0), kind.latent,
        log(out.prefill * out.running / (load.output_tokens * out.decode_step)), log(work.hidden),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tree:
    """`len(splits)` questions "feature > threshold", and 2^questions answers; the first question is bit 0."""

    splits: tuple[tuple[int, float], ...]
    leaves: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ensemble:
    trees: tuple[Tree, ...]

    def one(self, row: Sequence[float]) -> float:
        """The sum of all trees' answers for one case."""
        total = 0.0
        for tree in self.trees:
            leaf, bit = 0, 1
            for feature, threshold in tree.splits:
                if row[feature] > threshold:
                    leaf += bit
                bit += bit
            total += tree.leaves[leaf]
        return total

    def many(self, table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The same for a table [cases, features]."""
        total = np.zeros(len(table))
        for tree in self.trees:
            leaf = np.zeros(len(table), dtype=np.intp)
            for level, (feature, threshold) in enumerate(tree.splits):
                leaf |= (table[:, feature] > threshold).astype(np.intp) << level
            total += np.asarray(tree.leaves)[leaf]
        return total

