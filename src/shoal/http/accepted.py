"""What a field accepts, read from its type: msgspec names a wrong value, but not the right ones."""

from collections.abc import Iterator

import msgspec
from msgspec import inspect


def accepted_values(kind: type[msgspec.Struct], path: list[str | int]) -> list[str]:
    """The literals (or tags of a union) that the field at `path` of a `kind` may hold; empty if it is free."""
    here: list[inspect.Type] = [inspect.type_info(kind)]
    for step in path[:-1]:
        here = [found for place in here for found in _inside(place, step)]
    if path:
        tags = [str(t.tag) for t in _structs(here) if t.tag_field == path[-1] and t.tag is not None]
        if tags:
            return sorted(tags)
        here = [found for place in here for found in _inside(place, path[-1])]
    values = [v for place in here for option in _options(place) for v in _literals(option)]
    return sorted({repr(v).strip("'") for v in values})


def _inside(place: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    for option in _options(place):
        if isinstance(option, inspect.StructType):
            yield from (f.type for f in option.fields if f.encode_name == step)
        elif isinstance(option, inspect.ListType) and isinstance(step, int):
            yield option.item_type


def _options(place: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(place, inspect.Metadata):
        yield from _options(place.type)
    elif isinstance(place, inspect.UnionType):
        for option in place.types:
            yield from _options(option)
    else:
        yield place


def _structs(places: list[inspect.Type]) -> Iterator[inspect.StructType]:
    for place in places:
        for option in _options(place):
            if isinstance(option, inspect.StructType):
                yield option


def _literals(option: inspect.Type) -> tuple[object, ...]:
    return option.values if isinstance(option, inspect.LiteralType) else ()
