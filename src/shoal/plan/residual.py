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
    domain = d.accelerator.domain
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


class Ensemble:
    """Trees whose answers add up."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = tuple(trees)

    def many(self, table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum of all trees' answers for each case of a table [cases, features]."""
        total = np.zeros(len(table))
        columns = np.ascontiguousarray(table.T)
        for tree in self.trees:
            # Bytes, not words: a search asks millions of these questions, and memory traffic is what they cost.
            leaf = np.zeros(len(table), dtype=np.uint8)
            for level, (feature, threshold) in enumerate(tree.splits):
                leaf |= (columns[feature] > threshold).view(np.uint8) << np.uint8(level)
            total += np.asarray(tree.leaves).take(leaf)
        return total


class Bundle:
    """Several ensembles laid out as arrays, to answer one case at a time: every question is one comparison."""

    def __init__(self, ensembles: Sequence[Ensemble]) -> None:
        trees = [tree for ensemble in ensembles for tree in ensemble.trees]
        depth = max((len(tree.splits) for tree in trees), default=0)
        self._features = np.zeros((len(trees), depth), dtype=np.intp)
        # A question that a shallower tree does not ask is never true.
        self._thresholds = np.full((len(trees), depth), np.inf)
        leaves = np.zeros((len(trees), 1 << depth))
        for index, tree in enumerate(trees):
            for level, (feature, threshold) in enumerate(tree.splits):
                self._features[index, level] = feature
                self._thresholds[index, level] = threshold
            leaves[index, : len(tree.leaves)] = tree.leaves
        self._leaves = leaves.ravel()
        self._weights = 1 << np.arange(depth, dtype=np.intp)
        self._offsets = np.arange(len(trees), dtype=np.intp) << depth
        sizes = [len(ensemble.trees) for ensemble in ensembles]
        owner = np.repeat(np.arange(len(sizes)), sizes)
        self._owned = (owner == np.arange(len(sizes))[:, None]).astype(float)
        self._cuts = _thresholds(trees)
        places = {(f, cut): n for f, cuts in self._cuts.items() for n, cut in enumerate(cuts.tolist())}
        self._grown = [
            (int(who), tuple((f, places[f, cut]) for f, cut in tree.splits), np.asarray(tree.leaves))
            for who, tree in zip(owner, trees, strict=True)
        ]

    def one(self, row: npt.NDArray[np.float64]) -> list[float]:
        """Each ensemble's answer for one case, `row` [features]."""
        leaf = (row[self._features] > self._thresholds) @ self._weights
        found: list[float] = (self._owned @ self._leaves[leaf + self._offsets]).tolist()
        return found

    def many(self, table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Each ensemble's answer for each case of a table [cases, features]: [ensembles, cases].

        A feature is looked up among the thresholds once. Every question is then a comparison of small integers,
        which takes an eighth of the memory traffic.
        """
        bins = {feature: _bins(table[:, feature], cuts) for feature, cuts in self._cuts.items()}
        found = np.zeros((len(self._owned), len(table)))
        leaf, answer = np.zeros(len(table), dtype=np.uint8), np.zeros(len(table), dtype=np.bool_)
        for owner, splits, leaves in self._grown:
            leaf[:] = 0
            # The last question is the highest bit: doubling makes room for the one before it.
            for feature, place in reversed(splits):
                np.add(leaf, leaf, out=leaf)
                np.greater(bins[feature], place, out=answer)
                np.bitwise_or(leaf, answer.view(np.uint8), out=leaf)
            found[owner] += leaves.take(leaf)
        return found


def _thresholds(trees: Sequence[Tree]) -> dict[int, npt.NDArray[np.float64]]:
    """The thresholds that are asked of each feature, ascending."""
    asked: dict[int, set[float]] = {}
    for tree in trees:
        for feature, threshold in tree.splits:
            asked.setdefault(feature, set()).add(threshold)
    return {feature: np.array(sorted(cuts)) for feature, cuts in asked.items()}


def _bins(column: npt.NDArray[np.float64], cuts: npt.NDArray[np.float64]) -> npt.NDArray[np.integer]:
    """How many thresholds each value exceeds. A search gives many cases one value: it is looked up once."""
    kind = np.uint8 if len(cuts) < 256 else np.uint16
    if len(column) and (column == column[0]).all():
        return np.full(len(column), np.searchsorted(cuts, column[0]), dtype=kind)
    return np.searchsorted(cuts, column).astype(kind)
