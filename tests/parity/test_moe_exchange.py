"""One layer of experts over ranks, against the same layer on one rank: layouts, lanes without rows, moving experts.

Bugs of other engines covered here (numbers of the engine bug list): 22 (ranks that diverge), 23 (an idle
data-parallel rank skips the expert collective).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from parity.meshkit import run_ranks
from shoal.engine.layers.loading import cutter
from shoal.engine.layers.moe import MoeFfn
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.traffic import Volume
from shoal.plan.collectives import step_traffic
from shoal.policy.experts import EMPTY, LayerLoad, LayerPlacement, add_loads, initial_placement
from shoal.specs.layout import Layout
from shoal.specs.model import FfnSpec, RouterSpec

CPU = torch.device("cpu")
HIDDEN, EXPERTS, TOP_K = 12, 7, 3
SPECS = {
    "plain": FfnSpec("moe", 10, "silu", router=RouterSpec(EXPERTS, TOP_K)),
    "shared": FfnSpec(
        "moe", 9, "silu", router=RouterSpec(EXPERTS, TOP_K), shared_intermediate=11, shared_gate=True
    ),
    "oai": FfnSpec(
        "moe",
        10,
        "swiglu_oai",
        router=RouterSpec(EXPERTS, TOP_K, bias=True, softmax_after_top_k=True),
        swiglu_limit=1.0,
        experts_bias=True,
    ),
}
LAYOUTS = {
    "ep2": Layout(dp=2, ep=2),
    "ep4": Layout(dp=4, ep=4),
    "tp2": Layout(tp=2),
    "tp3": Layout(tp=3),
    "tp2-ep2": Layout(tp=2, ep=2),
    "tp3-ep3": Layout(tp=3, ep=3),
    "tp4-ep2": Layout(tp=4, ep=2),  # whole experts on two ranks, cut in halves
    "dp2-tp2-ep2": Layout(dp=2, tp=2, ep=2),
    "dp2-tp2-ep4": Layout(dp=2, tp=2, ep=4),
    "dp4-ep2": Layout(dp=4, ep=2),  # an expert's halves are in different lanes
    "cp2-ep2": Layout(cp=2, ep=2),
    "dp2-cp2-ep2": Layout(dp=2, cp=2, ep=2),
}


@dataclass(frozen=True)
class Layer:
    """Random weights by checkpoint name, and the layer on one rank."""

    spec: FfnSpec
    weights: dict[str, Tensor]
    whole: MoeFfn

    @classmethod
    def make(cls, kind: str) -> "Layer":
        torch.manual_seed(11)
        whole = MoeFfn(SPECS[kind], HIDDEN, torch.float32, CPU)
        weights = {name: torch.randn(target.shape) for name, target in whole.targets().items()}
        fill(whole, weights)
        return cls(SPECS[kind], weights, whole)

    def share(self, mesh: Mesh, spare: int = 0) -> MoeFfn:
        ffn = MoeFfn(self.spec, HIDDEN, torch.float32, CPU, mesh, spare)
        fill(ffn, self.weights)
        return ffn


def fill(ffn: MoeFfn, weights: dict[str, Tensor]) -> None:
    for name, target in ffn.targets().items():
        target.fill(name, tuple(weights[name].shape), cutter(weights[name]))


def rows_of(spec: Layout, counts: Sequence[int], seed: int = 0) -> dict[tuple[int, int], Tensor]:
    """Rows by (lane, context-parallel rank); tensor-parallel ranks have the same."""
    generator = torch.Generator().manual_seed(seed)
    places = [(dp, cp) for dp in range(spec.dp) for cp in range(spec.cp)]
    return {
        place: torch.randn(counts[i % len(counts)], HIDDEN, generator=generator) for i, place in enumerate(places)
    }


def assert_as_on_one_rank(
    layer: Layer, spec: Layout, rows: dict[tuple[int, int], Tensor], outs: list[Tensor]
) -> None:
    for rank, out in enumerate(outs):
        at = spec.coordinates(rank)
        torch.testing.assert_close(out, layer.whole(rows[at.dp, at.cp]), rtol=1e-4, atol=1e-4)
        first = spec.members("tp", rank)[0]
        assert torch.equal(out, outs[first]), "ranks of tp hold different bits"


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_what_one_rank_does(layout: str, kind: str) -> None:
    layer, spec = Layer.make(kind), LAYOUTS[layout]
    rows = rows_of(spec, (13, 1, 5, 8))
    outs = run_ranks(spec, lambda mesh: layer.share(mesh)(rows[mesh.at.dp, mesh.at.cp]))
    assert_as_on_one_rank(layer, spec, rows, outs)


@pytest.mark.parametrize("layout", ["ep2", "ep4", "dp2-tp2-ep2", "dp4-ep2", "dp2-cp2-ep2"])
def test_bug_23_a_lane_without_rows_takes_part(layout: str) -> None:
    """One lane busy, then another, then none at all; nobody hangs and nothing changes."""
    layer, spec = Layer.make("shared"), LAYOUTS[layout]
    waves = [rows_of(spec, counts, seed) for seed, counts in enumerate([(3, 0), (0, 2), (0, 0), (0, 0, 0, 4)])]

    def body(mesh: Mesh) -> list[Tensor]:
        ffn = layer.share(mesh)
        return [ffn(rows[mesh.at.dp, mesh.at.cp]) for rows in waves]

    for rows, outs in zip(waves, zip(*run_ranks(spec, body), strict=True), strict=True):
        assert_as_on_one_rank(layer, spec, rows, list(outs))


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("layout", ["ep2", "ep4", "tp2-ep2", "dp2-tp2-ep2", "dp4-ep2", "cp2-ep2"])
def test_rows_that_travel_in_halves_are_computed_alike(layout: str, kind: str) -> None:
    """Also where a lane has one row or none, and where only the larger of two steps is cut."""
    layer, spec = Layer.make(kind), LAYOUTS[layout]
    waves = [rows_of(spec, counts, seed) for seed, counts in enumerate([(13, 1, 0, 8), (0, 1), (0,), (40, 30)])]
    whole_stage = spec.expert_cut == 1

    def body(mesh: Mesh) -> list[Tensor]:
        ffn = layer.share(mesh)
        assert ffn.exchange is not None
        outs = []
        for overlap_from in (0, 60) if whole_stage else (0,):
            ffn.exchange.overlap_from = overlap_from
            before = sent(mesh)
            outs += [ffn(rows[mesh.at.dp, mesh.at.cp]) for rows in waves]
            # Two messages a wave, or four in halves.
            assert sent(mesh) - before == (16 if overlap_from == 0 else 8 + 2 * sum(map(large, waves)))
        return outs

    def sent(mesh: Mesh) -> int:
        return sum(v.messages for v in mesh.traffic.snapshot() if (v.axis, v.operation) == ("ep", "all_to_all"))

    def large(rows: dict[tuple[int, int], Tensor]) -> bool:
        return sum(map(len, rows.values())) * TOP_K >= 60

    outs = list(zip(*run_ranks(spec, body), strict=True))
    for rows, out in zip(waves * (len(outs) // len(waves)), outs, strict=True):
        assert_as_on_one_rank(layer, spec, rows, list(out))


def random_placement(ranks: int, slots: int, seed: int) -> LayerPlacement:
    """Every expert somewhere, some twice, empty slots anywhere."""
    draw = random.Random(seed)
    while True:
        held = [[*draw.sample(range(EXPERTS), draw.randint(0, slots))] for _ in range(ranks)]
        if set().union(*held) == set(range(EXPERTS)):
            for slot in held:
                slot += [EMPTY] * (slots - len(slot))
                draw.shuffle(slot)
            return LayerPlacement(tuple(tuple(slot) for slot in held))


@pytest.mark.parametrize("layout", ["ep2", "ep4", "tp3-ep3", "dp2-tp2-ep2", "dp4-ep2"])
@pytest.mark.parametrize("kind", ["plain", "oai"])
def test_experts_move_between_steps_without_a_wrong_number(layout: str, kind: str) -> None:
    layer, spec = Layer.make(kind), LAYOUTS[layout]
    start = initial_placement(EXPERTS, spec.ep, 2)
    moves = [random_placement(spec.ep, start.slots_per_rank, seed) for seed in range(6)] + [start]
    waves = [rows_of(spec, (9, 4, 0, 6), seed) for seed in range(len(moves))]

    def body(mesh: Mesh) -> list[Tensor]:
        ffn = layer.share(mesh, spare=2)
        outs = []
        for placement, rows in zip(moves, waves, strict=True):
            ffn.place(placement)
            outs.append(ffn(rows[mesh.at.dp, mesh.at.cp]))
        return outs

    for rows, outs in zip(waves, zip(*run_ranks(spec, body), strict=True), strict=True):
        assert_as_on_one_rank(layer, spec, rows, list(outs))


def test_rows_of_a_replicated_expert_are_dealt_to_its_replicas() -> None:
    """All experts everywhere: every rank computes half of what each sends, whatever the router likes."""
    layer, spec = Layer.make("plain"), LAYOUTS["ep2"]
    everywhere = LayerPlacement((tuple(range(EXPERTS)), tuple(range(EXPERTS))))
    rows = rows_of(spec, (40, 20))

    def body(mesh: Mesh) -> LayerLoad:
        ffn = layer.share(mesh, spare=3)
        ffn.place(everywhere)
        ffn(rows[mesh.at.dp, mesh.at.cp])
        load = ffn.take_load(5)
        assert load is not None
        assert ffn.take_load(5) == LayerLoad(5, (0,) * EXPERTS, 0, 0, (0, 0))
        return load

    [load] = add_loads(run_ranks(spec, body))
    assert load.layer == 5
    assert load.rows == 60
    assert sum(load.choices) == sum(load.computed) == 60 * TOP_K
    assert load.computed == (90, 90)
    chosen = torch.cat([layer.whole.router(part).experts for part in rows.values()])
    assert load.choices == tuple(chosen.flatten().bincount(minlength=EXPERTS).tolist())


def test_node_limited_routing_is_counted() -> None:
    """Two groups of experts, one a rank: a row that may choose from one group visits one rank."""
    for top_groups, most in ((1, 1), (2, 2)):
        router = RouterSpec(8, 3, scoring="sigmoid", groups=2, top_groups=top_groups, correction_bias=True)
        ffn_spec = FfnSpec("moe", 10, "silu", router=router)
        torch.manual_seed(2)
        whole = MoeFfn(ffn_spec, HIDDEN, torch.float32, CPU)
        layer = Layer(ffn_spec, {n: torch.randn(t.shape) for n, t in whole.targets().items()}, whole)
        rows = rows_of(LAYOUTS["ep2"], (50,))

        def body(mesh: Mesh, layer: Layer = layer, rows: dict[tuple[int, int], Tensor] = rows) -> LayerLoad:
            ffn = layer.share(mesh)
            ffn(rows[mesh.at.dp, mesh.at.cp])
            load = ffn.take_load(0)
            assert load is not None
            return load

        [load] = add_loads(run_ranks(LAYOUTS["ep2"], body))
        assert load.rows == 100
        assert load.rank_visits == 100 if most == 1 else 100 < load.rank_visits <= 200


@pytest.mark.parametrize("layout", ["ep2", "ep4", "tp2-ep2", "dp2-tp2-ep4", "cp2-ep2"])
def test_only_chosen_rows_travel_as_the_planner_counts(layout: str) -> None:
    """k · H numbers a row out and as many back, over all ranks together; plus the all-reduce of tp."""
    layer, spec = Layer.make("shared"), LAYOUTS[layout]
    rows = rows_of(spec, (13, 2, 5, 8))
    steps = 3

    def body(mesh: Mesh) -> tuple[Volume, ...]:
        ffn = layer.share(mesh)
        for _ in range(steps):
            ffn(rows[mesh.at.dp, mesh.at.cp])
        return mesh.traffic.snapshot()

    sent = [volume for volumes in run_ranks(spec, body) for volume in volumes]
    exchanged = [volume for volume in sent if (volume.axis, volume.operation) == ("ep", "all_to_all")]
    total = sum(map(len, rows.values()))
    planned = step_traffic(HIDDEN, 0, total, ep=spec.ep, moe_layers=steps, top_k=TOP_K, element_bytes=4.0)
    assert {volume.messages for volume in exchanged} == {sum(traffic.messages for traffic in planned)}
    assert sum(volume.bytes for volume in exchanged) == sum(traffic.bytes for traffic in planned)
    reduced = [volume for volume in sent if (volume.axis, volume.operation) == ("tp", "all_reduce")]
    assert sum(volume.bytes for volume in reduced) == (spec.tp > 1) * spec.tp * steps * total * HIDDEN * 4


def test_a_rank_holds_its_own_experts_only() -> None:
    layer, spec = Layer.make("plain"), LAYOUTS["dp2-tp2-ep2"]

    def body(mesh: Mesh) -> tuple[set[str], int]:
        ffn = layer.share(mesh)
        experts = {name.split(".")[1] for name in ffn.targets() if name.startswith("experts.")}
        return experts, sum(weight.numel() for weight in ffn.experts.weights())

    shares = run_ranks(spec, body)
    assert [held for held, _ in shares] == [{"0", "1", "2", "3"}] * 2 + [{"4", "5", "6"}] * 2
    # Four slots, of each a half: 5 of 10 inner columns of three matrices.
    assert [numbers for _, numbers in shares] == [4 * 3 * 5 * HIDDEN] * 4
