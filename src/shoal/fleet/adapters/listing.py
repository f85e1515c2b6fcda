"""Which of the models that an engine lists at `/v1/models` is meant by a pool."""

from collections.abc import Sequence

import msgspec

from shoal.engine.options import default_name
from shoal.policy.outcomes import LegFailed, Outcome

_SHOWN = 10


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class ModelCard(msgspec.Struct):
    """One entry of the list."""

    id: str
    root: str | None = None
    """What the engine loaded, where it says so."""
    max_model_len: int | None = None
    max_prompt_bytes: int | None = None
    """Bytes of text that fill a context at the most, where the engine says so: ours does."""
    meta: _Meta | None = None
    """llama.cpp's place for the length."""

    @property
    def length(self) -> int:
        """Longest sequence in tokens; 0: not said."""
        return self.max_model_len or (self.meta.n_ctx if self.meta is not None else None) or 0


class ModelCards(msgspec.Struct):
    data: list[ModelCard] = []


def choose_card(cards: Sequence[ModelCard], names: Sequence[str]) -> ModelCard:
    """Return the card whose id is one of `names` (the earlier first), or else alone has the last part of one.

    Raises `LegFailed` that lists what is there.
    """
    for name in names:
        for card in cards:
            if card.id == name:
                return card
    parts = {default_name(name).casefold() for name in names}
    near = [card for card in cards if default_name(card.id).casefold() in parts]
    if len(near) == 1:
        return near[0]
    there = near or cards
    listed = ", ".join(repr(card.id[:200]) for card in there[:_SHOWN]) + (", …" if len(there) > _SHOWN else "")
    wanted = " or ".join(repr(name) for name in dict.fromkeys(names))
    if near:
        how = f"it serves several models that {wanted} may mean: {listed}; write one of them as the pool's `model`"
    else:
        how = (
            f"it doesn't serve {wanted}; it serves {listed}: write that as the pool's `model`, and the name for "
            "clients as `served_name`"
        )
    raise LegFailed(Outcome.REPLICA_FAULT, how)
