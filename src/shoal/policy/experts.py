"""Where experts live: load counted in a window, hot experts replicated, replicas dealt to ranks.

    loads   e0 ████████  e1 ██  e2 ██  e3 █         two ranks of three slots
    before  rank 0: e0 e1 ·     10      rank 1: e2 e3 ·      3
    after   rank 0: e0 e1 e2     7      rank 1: e0 e3 e1     6

The algorithm is the field's (EPLB, as published with DeepSeek-V3, arXiv:2412.19437 section 3.4): pack expert groups
to nodes; within a node give another replica to the expert with most load a replica until its slots are full; pack
replicas to ranks. Packing is greedy, the heaviest into the lightest that has room. Experts that can stay where they
are do. Pure: the same figures give the same placement, and ties go to the lower number.
"""

from collections.abc import Sequence

import msgspec

EMPTY = -1
"""A slot without an expert."""
MIN_GAIN = 0.05
"""A placement that lowers the busiest rank's load by a smaller share than this isn't worth moving weights for."""
MIN_CHOICES = 8
"""Choices an expert, on average, below which a window says nothing yet: it is carried over to the next."""


class LayerPlacement(msgspec.Struct, frozen=True, array_like=True):
    """One layer's experts on the ranks of an expert-parallel group."""

    slots: tuple[tuple[int, ...], ...]
    """By rank, the expert in each of its slots, or EMPTY. A rank has an expert once at most."""

    @property
    def slots_per_rank(self) -> int:
        return len(self.slots[0])

    def homes(self, experts: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By expert, its replicas as (rank, slot), in order of rank."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
        for rank, held in enumerate(self.slots):
            for slot, expert in enumerate(held):
                if expert != EMPTY:
                    found[expert].append((rank, slot))
        return tuple(tuple(homes) for homes in found)

    def rank_loads(self, loads: Sequence[float]) -> tuple[float, ...]:
        """Load of each rank when the rows of an expert are dealt evenly to its replicas."""
        shares = [load / len(homes) for load, homes in zip(loads, self.homes(len(loads)), strict=True)]
        return tuple(sum(shares[e] for e in held if e != EMPTY) for held in self.slots)


class ExpertPlacement(msgspec.Struct, frozen=True, array_like=True):
    """What changes: the layers whose experts move, each with where they are from now on."""

    layers: tuple[tuple[int, LayerPlacement], ...]


class LayerLoad(msgspec.Struct, frozen=True, array_like=True):
    """What one rank (or, added up, the group) sent to experts of a layer in a window."""

    layer: int
    choices: tuple[int, ...]
    """By expert, how many rows chose it."""
    rows: int = 0
    rank_visits: int = 0
    """Ranks that a row went to, summed over rows: what node-limited routing keeps low."""
    computed: tuple[int, ...] = ()
    """By rank of the group, rows that it computed for all ranks."""


def initial_placement(experts: int, ranks: int, spare: int = 0) -> LayerPlacement:
    """Contiguous runs of experts, the longer ones first, and `spare` more slots a rank for replicas.

    Raises ValueError for more ranks than experts, or fewer than one.
    """
    if not 1 <= ranks <= experts or spare < 0:
        raise ValueError(f"{experts} experts on {ranks} ranks with {spare} spare slots each")
    size, longer = divmod(experts, ranks)
    slots = size + (longer > 0) + spare
    held: list[tuple[int, ...]] = []
    start = 0
    for rank in range(ranks):
        run = range(start, start + size + (rank < longer))
        held.append((*run, *[EMPTY] * (slots - len(run))))
        start = run.stop
    return LayerPlacement(tuple(held))


def imbalance(loads: Sequence[float]) -> float:
    """Busiest over mean; 1 is even, and so is nothing at all."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total > 0 else 1.0


def rebalance(
    loads: Sequence[float],
    current: LayerPlacement,
    *,
    groups: int = 1,
    nodes: int = 1,
    min_gain: float = MIN_GAIN,
) -> LayerPlacement:
    """A placement for these loads by expert, in the slots there are; `current` itself if little would be gained.

    `groups` of consecutive experts that routing chooses together are kept on one of `nodes` of consecutive ranks.
    Where they can't be dealt evenly, both count as one.
    """
    ranks, experts = len(current.slots), len(loads)
    if (
        groups % nodes
        or ranks % nodes
        or experts % groups
        or experts // nodes > ranks // nodes * (current.slots_per_rank)
    ):
        groups = nodes = 1
    bins: list[list[int]] = []
    for members in _pack_groups(loads, groups, nodes):
        replicas = _replicate(loads, members, ranks // nodes, current.slots_per_rank)
        bins += _pack_replicas(loads, replicas, ranks // nodes, current.slots_per_rank)
    proposed = _settle(bins, current, nodes)
    before, after = max(current.rank_loads(loads)), max(proposed.rank_loads(loads))
    return proposed if after < before * (1 - min_gain) else current


def _pack_groups(loads: Sequence[float], groups: int, nodes: int) -> list[list[int]]:
    """Experts of each node."""
    size = len(loads) // groups
    members = [list(range(group * size, (group + 1) * size)) for group in range(groups)]
    weights = [sum(loads[expert] for expert in group) for group in members]
    packed: list[list[int]] = [[] for _ in range(nodes)]
    totals, counts = [0.0] * nodes, [0] * nodes
    for group in sorted(range(groups), key=lambda g: (-weights[g], g)):
        node = min((n for n in range(nodes) if counts[n] < groups // nodes), key=lambda n: (totals[n], n))
        packed[node] += members[group]
        totals[node] += weights[group]
        counts[node] += 1
    return [sorted(experts) for experts in packed]


def _replicate(loads: Sequence[float], experts: list[int], ranks: int, slots: int) -> dict[int, int]:
    """Replicas of each expert: no more than ranks, and none of an expert that nobody asks for."""
    counts = dict.fromkeys(experts, 1)
    for _ in range(ranks * slots - len(experts)):
        wanted = [e for e in experts if counts[e] < ranks and loads[e] > 0]
        if not wanted:
            break
        counts[max(wanted, key=lambda e: (loads[e] / counts[e], -e))] += 1
    return counts


def _pack_replicas(loads: Sequence[float], replicas: dict[int, int], ranks: int, slots: int) -> list[list[int]]:
    """Experts of each rank. A replica for which only ranks that have the expert have room is left out."""
    bins: list[list[int]] = [[] for _ in range(ranks)]
    totals = [0.0] * ranks
    items = [(loads[e] / count, e) for e, count in replicas.items() for _ in range(count)]
    for share, expert in sorted(items, key=lambda item: (-item[0], item[1])):
        room = [r for r in range(ranks) if len(bins[r]) < slots and expert not in bins[r]]
        if room:
            rank = min(room, key=lambda r: (totals[r], r))
            bins[rank].append(expert)
            totals[rank] += share
    return bins


def _settle(bins: list[list[int]], current: LayerPlacement, nodes: int) -> LayerPlacement:
    """Give each bin to the rank of its node that already has most of it, and each expert its old slot."""
    per_node = len(bins) // nodes
    overlaps = sorted(
        (-len(set(bins[b]) & set(current.slots[r])), b, r)
        for b in range(len(bins))
        for r in range(b // per_node * per_node, (b // per_node + 1) * per_node)
    )
    owner: dict[int, int] = {}
    for _, one, rank in overlaps:
        if one not in owner.values() and rank not in owner:
            owner[rank] = one
    settled: list[tuple[int, ...]] = []
    for rank, old in enumerate(current.slots):
        wanted = bins[owner[rank]]
        slots = [expert if expert in wanted else EMPTY for expert in old]
        arriving = iter([expert for expert in sorted(wanted) if expert not in old])
        settled.append(tuple(next(arriving, EMPTY) if expert == EMPTY else expert for expert in slots))
    return LayerPlacement(tuple(settled))


class ExpertBalancer:
    """Decides, every `window` steps, whether experts should move. Knows no clock: steps are the time."""

    def __init__(
        self,
        placements: Sequence[tuple[int, LayerPlacement]],
        window: int,
        *,
        groups: int = 1,
        nodes: int = 1,
        min_gain: float = MIN_GAIN,
    ) -> None:
        """`placements` of the layers with experts as they are now. Raises ValueError for a window below one."""
        if window < 1:
            raise ValueError(f"window is {window}; it must be at least one step")
        self._placements = dict(placements)
        self._window = window
        self._groups, self._nodes, self._min_gain = groups, nodes, min_gain
        self._steps = 0
        self._counted: dict[int, LayerLoad] = {}
        self.moves = 0
        """Placements that have changed a layer so far."""
        self.imbalance: tuple[float, ...] = ()
        """Busiest rank over mean, by layer, as measured in the last window."""

    def wants_load(self) -> bool:
        """Call once a step: whether this step ends a window, so that ranks should say what they counted."""
        self._steps += 1
        return self._steps % self._window == 0

    def decide(self, loads: Sequence[LayerLoad]) -> ExpertPlacement | None:
        """The layers whose experts should move now; this then counts as done. None: all may stay."""
        self.imbalance = tuple(imbalance(load.computed) for load in loads)
        changed: list[tuple[int, LayerPlacement]] = []
        for load in add_loads([*self._counted.values(), *loads]):
            self._counted[load.layer] = load
            if sum(load.choices) < MIN_CHOICES * len(load.choices):
                continue
            del self._counted[load.layer]
            current = self._placements[load.layer]
            better = rebalance(
                load.choices, current, groups=self._groups, nodes=self._nodes, min_gain=self._min_gain
            )
            if better != current:
                self._placements[load.layer] = better
                changed.append((load.layer, better))
        self.moves += len(changed)
        return ExpertPlacement(tuple(changed)) if changed else None


def add_loads(loads: Sequence[LayerLoad]) -> tuple[LayerLoad, ...]:
    """What several ranks counted, added up by layer."""
    total: dict[int, LayerLoad] = {}
    for load in loads:
        known = total.get(load.layer)
        if known is not None:
            load = LayerLoad(
                load.layer,
                tuple(a + b for a, b in zip(known.choices, load.choices, strict=True)),
                known.rows + load.rows,
                known.rank_visits + load.rank_visits,
                tuple(a + b for a, b in zip(known.computed, load.computed, strict=True)),
            )
        total[load.layer] = load
    return tuple(total[layer] for layer in sorted(total))
