"""Typed access to the fields of a config, so that a wrong value is reported by name and not as a traceback.

A field that is null counts as absent, as it does for most Transformers configs; `stated` tells the two apart.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from shoal.specs.errors import InvalidField

T = TypeVar("T")

# Far above any model, low enough that a corrupt number can't make a reader allocate without end.
MAX_SIZE = 2**32
MAX_LAYERS = 10_000


class Fields:
    """One mapping of a config. `where` prefixes field names in errors, e.g. `text_config.`."""

    __slots__ = ("_where", "model", "values")

    def __init__(self, values: Mapping[str, object], model: str, where: str = "") -> None:
        self.values = values
        self.model = model
        self._where = where

    def stated(self, key: str) -> bool:
        """Whether the key is there at all, even if its value is null."""
        return key in self.values

    def get(self, *keys: str) -> tuple[str, object]:
        """The first of several spellings that is there and not null, with its value; else (keys[0], None)."""
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                return key, value
        return keys[0], None

    def error(self, key: str, value: object, accepted: str) -> InvalidField:
        return InvalidField(self.model, self._where + key, value, accepted)

    def size(self, *keys: str, default: int | None = None, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """An integer in [minimum, maximum]; required unless a default is given."""
        value = self.optional_size(*keys, minimum=minimum, maximum=maximum)
        if value is not None:
            return value
        if default is None:
            raise self.error(keys[0], None, _range(minimum, maximum))
        return default

    def optional_size(self, *keys: str, minimum: int = 1, maximum: int = MAX_SIZE) -> int | None:
        key, value = self.get(*keys)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.error(key, value, _range(minimum, maximum))
        return value

    @overload
    def number(self, *keys: str, default: float, positive: bool = True) -> float: ...
    @overload
    def number(self, *keys: str, default: None = None, positive: bool = True) -> float | None: ...
    def number(self, *keys: str, default: float | None = None, positive: bool = True) -> float | None:
        """A finite number, above zero unless `positive` is off; the default if absent."""
        key, value = self.get(*keys)
        if value is None:
            return default
        accepted = "a number above 0" if positive else "a finite number"
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.error(key, value, accepted)
        if positive and value <= 0:
            raise self.error(key, value, accepted)
        return float(value)

    def required_number(self, *keys: str) -> float:
        value = self.number(*keys)
        if value is None:
            raise self.error(keys[0], None, "a number above 0")
        return value

    def flag(self, *keys: str, default: bool) -> bool:
        key, value = self.get(*keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def text(self, *keys: str, default: str = "") -> str:
        key, value = self.get(*keys)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def choice(self, *keys: str, options: Mapping[str, T], default: str) -> T:
        """The value that one of a few words stands for."""
        key, value = self.get(*keys)
        word = default if value is None else value
        if not isinstance(word, str) or word not in options:
            raise self.error(key, value, "one of " + ", ".join(sorted(options)))
        return options[word]

    def words(self, *keys: str) -> tuple[str, ...] | None:
        return self._list(keys, str, "strings")

    def numbers(self, *keys: str) -> tuple[float, ...] | None:
        found = self._list(keys, (int, float), "numbers")
        if found is not None and not all(math.isfinite(item) and type(item) is not bool for item in found):
            raise self.error(*self.get(*keys), "a list of numbers")
        return None if found is None else tuple(map(float, found))

    def integers(self, *keys: str) -> tuple[int, ...] | None:
        return self._list(keys, int, "integers")

    def _list(self, keys: tuple[str, ...], kind: type | tuple[type, ...], items: str) -> tuple[Any, ...] | None:
        key, value = self.get(*keys)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(key, value, f"a list of {items}")
        if not all(isinstance(item, kind) for item in value):
            raise self.error(key, value, f"a list of {items}")
        return tuple(value)

    def section(self, *keys: str) -> "Fields | None":
        """A nested mapping, or None where it is absent."""
        key, value = self.get(*keys)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, value, "an object")
        return Fields(value, self.model, f"{self._where}{key}.")


def _range(minimum: int, maximum: int) -> str:
    return f"an integer from {minimum} to {maximum}" if maximum < MAX_SIZE else f"an integer of {minimum} or more"
