"""The text-tree policy of other routers, as a baseline: longest match in a tree of prompts, or least load.

Not recommended: it weighs nothing in time, and switches between two modes at thresholds.
"""

from collections.abc import Sequence

from shoal.policy.routing.contracts import Need, ReplicaState, RouteRequest
from shoal.policy.routing.draws import Draws
from shoal.policy.routing.pickers import Least, Picked, Scored


class _Node:
    __slots__ = ("children", "edge", "used")

    def __init__(self, edge: str) -> None:
        self.edge = edge
        self.children: dict[str, _Node] = {}
        self.used: dict[str, int] = {}
        """Replica → tick of the last prompt through here."""


def _common(a: str, start: int, edge: str) -> int:
    """Characters that `a[start:]` and `edge` share at their beginnings."""
    limit = min(len(a) - start, len(edge))
    if a.startswith(edge[:limit], start):
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a.startswith(edge[:middle], start):
            low = middle
        else:
            high = middle - 1
    return low


class TextTree:
    """A radix tree over characters that knows which replica saw which prefix; bounded in characters."""

    def __init__(self, limit: int = 2**22) -> None:
        self._root = _Node("")
        self._tick = 0
        self._limit = limit
        self.characters = 0

    def match(self, text: str, names: Sequence[str]) -> tuple[str | None, int]:
        """The replica with the longest match among `names`, and the length of it in characters."""
        node, at = self._root, 0
        best: tuple[str | None, int] = (None, 0)
        wanted = set(names)
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                break
            shared = _common(text, at, child.edge)
            holders = [name for name in child.used if name in wanted]
            if not holders:
                break
            at += shared
            best = max(holders, key=lambda name: child.used[name]), at
            if shared < len(child.edge):
                break
            node = child
        return best

    def insert(self, text: str, replica: str) -> None:
        self._tick += 1
        node, at = self._root, 0
        while at < len(text):
            child = node.children.get(text[at])
            if child is None:
                child = node.children[text[at]] = _Node(text[at:])
                self.characters += len(child.edge)
            shared = _common(text, at, child.edge)
            if shared < len(child.edge):
                child = self._split(node, child, shared)
            child.used[replica] = self._tick
            node, at = child, at + shared
        if self.characters > self._limit:
            self._evict()

    @staticmethod
    def _split(parent: _Node, child: _Node, at: int) -> _Node:
        upper = _Node(child.edge[:at])
        upper.used = dict(child.used)
        parent.children[upper.edge[0]] = upper
        child.edge = child.edge[at:]
        upper.children[child.edge[0]] = child
        return upper

    def forget(self, replica: str) -> None:
        stack = [self._root]
        while stack:
            node = stack.pop()
            node.used.pop(replica, None)
            stack.extend(node.children.values())

    def _evict(self) -> None:
        """Drop what was used longest ago, down to three quarters of the limit."""
        leaves: list[tuple[int, _Node, _Node]] = []
        stack = [(self._root, child) for child in self._root.children.values()]
        while stack:
            parent, node = stack.pop()
            if node.children:
                stack.extend((node, child) for child in node.children.values())
            else:
                leaves.append((max(node.used.values(), default=0), parent, node))
        leaves.sort(key=lambda leaf: leaf[0])
        for _, parent, node in leaves:
            if self.characters <= self._limit * 3 // 4:
                return
            del parent.children[node.edge[0]]
            self.characters -= len(node.edge)
        if self.characters > self._limit:
            self._evict()


class CacheAware:
    """A picker: least load when loads differ by more than `absolute` requests and by more than `relative` times,
    else the longest match if it covers more than `threshold` of the prompt, else least load."""

    needs = frozenset[Need]({"text"})

    def __init__(self, draws: Draws, threshold: float = 0.5, absolute: int = 32, relative: float = 1.1) -> None:
        self._tree = TextTree()
        self._least = Least(draws)
        self._threshold = threshold
        self._absolute = absolute
        self._relative = relative

    def pick(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        score, replica, why = self._choose(request, scored, now)
        self._tree.insert(request.text, replica.name)
        return score, replica, why

    def _choose(self, request: RouteRequest, scored: Scored, now: float) -> Picked:
        loads = [replica.load for _, replica in scored]
        if max(loads) - min(loads) > self._absolute and max(loads) > self._relative * min(loads):
            return self._by_load(request, scored, now, "imbalance")
        name, length = self._tree.match(request.text, [r.name for _, r in scored])
        if name is not None and length > self._threshold * len(request.text):
            score, replica = next(item for item in scored if item[1].name == name)
            return score, replica, f"text match {length}/{len(request.text)}"
        return self._by_load(request, scored, now, "no match")

    def _by_load(
        self, request: RouteRequest, scored: Scored, now: float, why: str
    ) -> tuple[float, ReplicaState, str]:
        by_load: list[tuple[float, ReplicaState]] = [(float(replica.load), replica) for _, replica in scored]
        score, replica, _ = self._least.pick(request, by_load, now)
        return score, replica, why

    def forget(self, replica: str) -> None:
        self._tree.forget(replica)
        self._least.forget(replica)
