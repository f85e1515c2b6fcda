"""vLLM's KV events from the wire: `[topic, sequence, msgpack]` messages, in both encodings.

Older engines encode an event as an array that begins with its type's name, newer ones as a map with a `type`. A
batch is `[timestamp, events, data_parallel_rank]` or a map of these. Fields this release doesn't know are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.policy.batching.prefix import Extras, make_extras
from shoal.policy.routing.contracts import StoredBlocks

BlockName = bytes | int
"""How an engine calls a block: a hash of its own, an integer or bytes by version."""


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: tuple[BlockName, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = StoredBlocks | Removed | Cleared

_FIELDS = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size"),
        *("lora_id", "medium", "lora_name", "extra_keys", "group_idx"),
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""Names of an array's items after the type, in order."""
_DEVICE = frozenset({None, "GPU", "gpu", "cpu", "CPU"})
"""Media whose blocks a request can reuse at once. Offloaded copies are somebody else's hits."""


class BadEvents(ValueError):
    """A message that is no batch of KV events."""


def decode_batch(payload: bytes) -> list[Event]:
    """The events of one message, oldest first; `BadEvents` if it isn't one. Unknown kinds of event are skipped."""
    try:
        batch: Any = msgspec.msgpack.decode(payload)
        events = batch["events"] if isinstance(batch, dict) else batch[1]
        return [event for raw in events if (event := _event(raw)) is not None]
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError, ValueError) as error:
        raise BadEvents(f"not a batch of KV events: {error}") from None


def _event(raw: Any) -> Event | None:
    kind = raw["type"] if isinstance(raw, dict) else raw[0]
    names = _FIELDS.get(kind)
    if names is None:
        return None
    fields: dict[str, Any] = raw if isinstance(raw, dict) else dict(zip(names, raw[1:], strict=False))
    if kind == "AllBlocksCleared":
        return Cleared()
    # Blocks of further KV groups (sliding windows) repeat the same tokens; reuse needs the first group's.
    if fields.get("medium") not in _DEVICE or fields.get("group_idx") not in (None, 0):
        return None
    hashes = tuple(_name(h) for h in fields["block_hashes"])
    if kind == "BlockRemoved":
        return Removed(hashes)
    parent = fields.get("parent_block_hash")
    size = int(fields["block_size"])
    tokens: Sequence[int] = fields["token_ids"]
    if size < 1 or len(tokens) < size * len(hashes):
        raise ValueError(f"{len(hashes)} blocks of {size} tokens with {len(tokens)} tokens")
    name = None if parent is None else _name(parent)
    return StoredBlocks(hashes, name, tuple(tokens), size, _extras(fields) if parent is None else ())


def _extras(fields: Mapping[str, Any]) -> Extras:
    """What the first block's content depends on beside its tokens.

    The keys come without tags: a LoRA's name (if `lora_name` says that there is one), then a salt, which alone is
    text; whatever else is in them makes content that no prompt's text leads to.
    """
    lora = fields.get("lora_name") or None
    keys = list((fields.get("extra_keys") or (None,))[0] or ())
    if lora is not None and lora in keys:
        keys.remove(lora)
    salt = next((key for key in keys if isinstance(key, str)), None)
    others = [key for key in keys if key != salt]
    return (*make_extras(lora, salt), *((("other", repr(others)),) if others else ()))


def _name(value: Any) -> BlockName:
    if isinstance(value, bytes | int):
        return value
    raise TypeError(f"a block hash is {type(value).__name__}; expected an integer or bytes")
