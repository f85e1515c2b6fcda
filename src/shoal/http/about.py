"""What a server says of itself: the models that it lists, and whether it is ready."""

import msgspec
from msgspec import UNSET, UnsetType


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int = 0
    max_model_len: int | None = None
    """Longest sequence in tokens; None: unknown."""
    max_prompt_bytes: int | UnsetType | None = UNSET
    """Bytes of text (UTF-8) that can fit a context at the most: more is refused unread. Of a replica."""
    object: str = "model"
    owned_by: str = "shoal"
    parent: str | None = None
    """The base model of a LoRA adapter."""


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class Status(msgspec.Struct, frozen=True):
    status: str
    reason: str | None = None
