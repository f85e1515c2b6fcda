"""Rows to the ranks that hold their experts, and back.

    a rank's rows, each with k choices          ep: one all-to-all out, one back
    ──► sort by (rank, slot) ──► dispatch ──► [etp: gather] ──► sort by slot ──► experts
    ◄── put in order ◄────────── combine ◄── [etp: sum, cut] ◄─ put in order ◄──┘

Only chosen rows travel: k · H numbers a row each way. How many rows each slot gets from whom is told beforehand in
an all-gather of counts, so that nobody has to send ids along with rows.

With `overlap_from`, steps of many rows travel in two halves, so that one computes while the other is under way:

    wire    ▓▓A out▓▓ ▓▓B out▓▓ ▓▓A back▓▓ ▓▓B back▓▓
    rank    ..shared..░░░A░░░░░ ░░░░B░░░░░ ..........

Every rank of the group takes part in every step, whether or not it has rows: the collectives are matched by order,
and whether there are halves is decided by what all have been told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from shoal.engine.layers.experts import Experts
from shoal.engine.layers.router import Routing
from shoal.engine.parallel.group import Group, Work
from shoal.policy.experts import EMPTY, LayerLoad, LayerPlacement


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of a rank's rows, on their way to experts."""

    order: Tensor
    """Which choice, t · k + i, each row sent is for."""
    sent: list[int]
    """Rows by target."""
    here: list[list[int]]
    """Rows that come here: [source][slot]."""
    work: Work


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A step's rows, on their way to experts."""

    parts: list[_Part]


class ExpertExchange:
    """One layer's exchange over `ep`; `etp` are the ranks that hold slices of the same experts."""

    def __init__(self, ep: Group, etp: Group, placement: LayerPlacement, device: torch.device) -> None:
        self.ep, self.etp = ep, etp
        self.device = device
        self.overlap_from: int | None = None
        """Choices of all ranks together from which a step's rows travel in two halves; the same on every rank of
        a pipeline stage. None: never."""
        self.place(placement)
        self._reset_counts()

    def place(self, placement: LayerPlacement) -> None:
        """From now on experts are where `placement` says."""
        self.placement = placement
        self.slots = placement.slots_per_rank
        experts = 1 + max(expert for held in placement.slots for expert in held)
        homes = placement.homes(experts)
        most = max(len(home) for home in homes)
        table = [[rank * self.slots + slot for rank, slot in home] for home in homes]
        self._replicas = torch.tensor([len(home) for home in homes], device=self.device)
        self._homes = torch.tensor([row + [0] * (most - len(row)) for row in table], device=self.device)

    def _reset_counts(self) -> None:
        self._choices = torch.zeros(len(self._replicas), dtype=torch.int64, device=self.device)
        self._rows = self._rank_visits = self._computed = 0

    def take_load(self, layer: int) -> LayerLoad:
        """What this rank has sent, and computed for all, since the last call."""
        computed = [0] * self.ep.size
        computed[self.ep.index] = self._computed
        choices = tuple(self._choices.tolist())
        load = LayerLoad(layer, choices, self._rows, self._rank_visits, tuple(computed))
        self._reset_counts()
        return load

    def __call__(self, x: Tensor, routing: Routing, experts: Experts) -> Tensor:
        """x [T, H] -> [T · k, H]: row t · k + i is what row t's i-th expert made of it, not yet weighted."""
        return self.combine(self.dispatch(x, routing), experts)

    def dispatch(self, x: Tensor, routing: Routing) -> Dispatched:
        """Send the rows of x [T, H] to their experts' ranks. What doesn't need them can be computed meanwhile."""
        top_k = routing.experts.shape[1]
        homes = self._assign(routing.experts)
        half = len(x) // 2 * top_k
        pieces = [homes] if self.overlap_from is None else [homes[:half], homes[half:]]
        counts = torch.stack([piece.bincount(minlength=self.ep.size * self.slots) for piece in pieces])
        shape = (1, len(pieces), self.ep.size, self.slots)
        told = self.ep.all_gather(counts.view(shape))  # [source][part][target][slot]
        if self.overlap_from is not None and int(told.sum()) < self.overlap_from:
            pieces, told = [homes], told.sum(1, keepdim=True)
        me, parts, start = self.ep.index, [], 0
        for piece, table in zip(pieces, told.transpose(0, 1).tolist(), strict=True):
            order = piece.argsort(stable=True) + start
            sent = [sum(slots) for slots in table[me]]
            here: list[list[int]] = [source[me] for source in table]
            rows = torch.split(x.index_select(0, order // top_k), sent)
            work = self.ep.start_all_to_all(rows, [sum(slots) for slots in here])
            parts.append(_Part(order, sent, here, work))
            start += len(piece)
        return Dispatched(parts)

    def combine(self, dispatched: Dispatched, experts: Experts) -> Tensor:
        """Compute what came, and fetch what others computed: [T · k, H] as of `__call__`."""
        returning: list[Work] = []
        for part in dispatched.parts:
            arrived = torch.cat(part.work.wait())
            self._computed += len(arrived)
            computed = self._compute(arrived, part.here, experts)
            pieces = torch.split(computed, [sum(slots) for slots in part.here])
            returning.append(self.ep.start_all_to_all(pieces, part.sent))
        made = torch.cat([piece for work in returning for piece in work.wait()])
        order = torch.cat([part.order for part in dispatched.parts])
        return torch.empty_like(made).index_copy_(0, order, made)

    def _assign(self, chosen: Tensor) -> Tensor:
        """chosen [T, k] -> [T · k], rank · slots + slot of the replica that each choice goes to.

        Rows go to an expert's replicas in turn, ranks beginning at different ones.
        """
        rows = torch.arange(len(chosen), device=chosen.device)[:, None] + self.ep.index
        homes = self._homes[chosen, rows % self._replicas[chosen]]
        self._choices += chosen.flatten().bincount(minlength=len(self._choices))
        self._rows += len(chosen)
        ranks = torch.zeros(len(chosen), self.ep.size, dtype=torch.int64, device=chosen.device)
        self._rank_visits += int(ranks.scatter_(1, homes // self.slots, 1).sum())
        return homes.flatten()

    def _compute(self, rows: Tensor, here: Sequence[Sequence[int]], experts: Experts) -> Tensor:
        """Rows of each source, each sorted by slot -> the same rows computed."""
        if self.etp.size == 1:
            return _by_slot(rows, here, experts)
        mine = torch.tensor([here], device=rows.device)
        every: list[list[list[int]]] = self.etp.all_gather(mine).tolist()  # [slice's rank][source][slot]
        sizes = [sum(map(sum, sources)) for sources in every]
        if not sum(sizes):
            return rows
        gathered = self.etp.all_gather(rows, 0, sizes)
        partial = _by_slot(gathered, [source for sources in every for source in sources], experts)
        start = list(accumulate(sizes, initial=0))[self.etp.index]
        return self.etp.all_reduce(partial).narrow(0, start, sizes[self.etp.index])

    def move(self, placement: LayerPlacement, experts: Experts) -> None:
        """Bring the weights to where `placement` has them, then let it take effect. All ranks of `ep` call it.

        A replica's weights come from the first rank that had the expert; what a rank has it doesn't fetch.
        """
        old, new = self.placement.slots, placement.slots
        me = self.ep.index
        moves: list[list[list[int]]] = [[[] for _ in new] for _ in new]  # [source][target] -> experts
        for target, held in enumerate(new):
            for expert in held:
                if expert != EMPTY and expert not in old[target]:
                    source = next(rank for rank, had in enumerate(old) if expert in had)
                    moves[source][target].append(expert)
        stays = {e: (old[me].index(e), slot) for slot, e in enumerate(new[me]) if e != EMPTY and e in old[me]}
        for weight in experts.weights():
            kept = {expert: weight[slot].clone() for expert, (slot, at) in stays.items() if slot != at}
            parcels = [weight[[old[me].index(e) for e in moves[me][target]]] for target in range(len(new))]
            came = self.ep.all_to_all(parcels)
            for expert, tensor in kept.items():
                weight[stays[expert][1]] = tensor
            for source, tensors in enumerate(came):
                for expert, tensor in zip(moves[source][me], tensors, strict=True):
                    weight[new[me].index(expert)] = tensor
        self.place(placement)


def _by_slot(rows: Tensor, runs: Sequence[Sequence[int]], experts: Experts) -> Tensor:
    """Rows that lie in runs of slots, [run][slot] counting them, computed slot by slot and put back."""
    slots = torch.arange(experts.slots).repeat(len(runs)).to(rows.device)
    lengths = torch.tensor(runs, device=rows.device).flatten()
    order = slots.repeat_interleave(lengths).argsort(stable=True)
    counts = [sum(run[slot] for run in runs) for slot in range(experts.slots)]
    computed = experts(rows.index_select(0, order), counts)
    return torch.empty_like(computed).index_copy_(0, order, computed)
