"""Messages and bytes of the collectives that parallel layers need."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank sends in one forward pass of a batch."""

    axis: str
    kind: str
    """`all_reduce`, `point_to_point`, `dispatch`, `combine`, `all_gather`, `attention_merge`, `query_gather`,
    `embedding_reduce` or `logits`."""
    messages: int
    """Collectives (or sends) it takes part in."""
    payload: float
    """Bytes of one message: the tensor handed in, before any algorithm's factor."""

    @property
    def bytes(self) -> float:
        return self.messages * self.payload


def step_traffic(
    hidden: int,
    layers: int,
    tokens: int,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    cp: int = 1,
    moe_layers: int = 0,
    top_k: int = 0,
    element_bytes: float = 2.0,
    dispatch_bytes: float | None = None,
    heads: int = 0,
    value_dim: int = 0,
    query_dim: int = 0,
    vocab: int = 0,
    sampled: int = 0,
) -> tuple[Traffic, ...]:
    """The collectives of one forward pass over `tokens` rows, by axis, as a real engine's counters should show.

    tp: two all-reduces a layer, `tokens·hidden` each. pp: one hand-over at each of the p−1 stage boundaries.
    ep: for each layer with experts, `top_k·hidden` a token out (`dispatch_bytes` an element, default as the
    activations) and the same back. cp: one merge a layer of partial outputs with their log-sum-exp; with
    `query_dim`, also the gather of the queries before it, of which a rank has 1/cp. tp with `vocab`: one all-reduce
    of embeddings on the first stage and, for `sampled` rows, a rank's share of the logits from the last. `heads`
    are those of one tensor-parallel rank.
    """
    row = tokens * hidden * element_bytes
    found: list[Traffic] = []
    if tp > 1:
        found.append(Traffic("tp", "all_reduce", 2 * layers, row))
        if vocab:
            found.append(Traffic("tp", "embedding_reduce", 1, row))
            found.append(Traffic("tp", "logits", 1, sampled * vocab / tp * element_bytes))
    if pp > 1:
        found.append(Traffic("pp", "point_to_point", pp - 1, row))
    if ep > 1 and moe_layers and top_k:
        out = element_bytes if dispatch_bytes is None else dispatch_bytes
        found.append(Traffic("ep", "dispatch", moe_layers, tokens * top_k * hidden * out))
        found.append(Traffic("ep", "combine", moe_layers, tokens * top_k * hidden * element_bytes))
    if cp > 1:
        found.append(Traffic("cp", "attention_merge", layers, tokens * heads * (value_dim * element_bytes + 4.0)))
        if query_dim:
            found.append(Traffic("cp", "query_gather", layers, tokens / cp * heads * query_dim * element_bytes))
    return tuple(found)
