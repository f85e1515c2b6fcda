"""The error of a value that a user gave: it names the field, the value, and what would be accepted."""

import difflib
import re
from collections.abc import Iterable


class SpecError(ValueError):
    """A value that cannot be accepted.

    `field` is where it stands (a dotted path, with the file and entry where there is one), `value` what was given
    and `accepted` what would do, in words.
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        said = "nothing is given" if value is None else f"{value!r} is not accepted"
        super().__init__(f"{field}: {said}; expected {accepted}")


def near_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Known names most like `name`, best first, compared without case; empty when nothing is near."""
    by_folded: dict[str, str] = {}
    for candidate in known:
        by_folded.setdefault(candidate.lower(), candidate)
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, by_folded, n=limit, cutoff=0.55)
    near += [folded for folded in by_folded if folded not in near and len(wanted) > 1 and wanted in folded]
    return [by_folded[folded] for folded in near[:limit]]


def unknown_name(field: str, name: object, known: Iterable[str]) -> SpecError:
    """The error for a name that is not in a catalogue, with the near ones or, failing those, all of them."""
    names = sorted(set(known))
    near = near_names(str(name), names)
    accepted = f"one of {', '.join(near)} (nearest known names)" if near else f"one of {', '.join(names)}"
    return SpecError(field, name, accepted)


class InvalidField(SpecError):
    """A field of a model's config or metadata that is missing or has a value that can't be right."""

    def __init__(self, model: str, field: str, value: object, accepted: str) -> None:
        super().__init__(f"{model}: {field}", value, accepted)
        self.model = model
        text = repr(value)
        shown = "missing" if value is None else text if len(text) <= 80 else text[:77] + "..."
        self.args = (f"{model}: {field} is {shown}; accepted: {accepted}",)


class UnknownArchitecture(SpecError):
    """A config whose architecture has no parser; `known` lists those that have one."""

    def __init__(self, model: str, found: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = near_names(found, names)
        super().__init__(f"{model}: architecture", found, "one of " + ", ".join(names))
        self.known = tuple(names)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        self.args = (f"{model}: unknown architecture {found!r}{hint}; known: {', '.join(names)}",)


class UnknownModel(SpecError):
    """A name that is not in the catalog of models; suggests only what may be the same model misspelled."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        near = same_model_names(name, names)
        accepted = "a catalogued name, a Hugging Face id (org/name), a directory, config.json or GGUF file"
        super().__init__("model", name, " or ".join(near) if near else accepted)
        self.suggestions = tuple(near)
        relatives = [] if near else _family(name, names)
        hint = f"did you mean {' or '.join(near)}?" if near else f"accepted: {accepted}"
        if relatives:
            hint = f"of its family the catalogue has {', '.join(relatives)}; {hint}"
        self.args = (f"unknown model {name!r}: {hint}",)


def same_model_names(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Known names that may be `name` misspelled: as its numbers are (sizes, versions), and nearly its letters.

    A model of another size or version is another model, and so is one of another family: neither is suggested.
    """
    wanted = _letters_and_numbers(name)
    scored = []
    for candidate in dict.fromkeys(known):
        letters, numbers = _letters_and_numbers(candidate)
        likeness = difflib.SequenceMatcher(None, wanted[0], letters).ratio()
        if numbers == wanted[1] and likeness >= 0.8:
            scored.append((-likeness, candidate))
    return [candidate for _, candidate in sorted(scored)[:limit]]


def _family(name: str, known: Iterable[str], limit: int = 6) -> list[str]:
    """Known names, publishers left out, of the same first word and version."""
    wanted, numbers = _letters_and_numbers(name)
    short = [candidate for candidate in dict.fromkeys(known) if "/" not in candidate]
    split = [(candidate, *_letters_and_numbers(candidate)) for candidate in short]
    return [c for c, word, found in split if word[:5] == wanted[:5] and found[:1] == numbers[:1]][:limit]


def _letters_and_numbers(name: str) -> tuple[str, list[str]]:
    short = name.rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z]+", " ", short).strip(), re.findall(r"\d+(?:\.\d+)?", short)


class UnreadableModel(SpecError):
    """A file or directory that holds no readable description of a model."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(str(path), reason, "a directory with config.json, a config.json, or a .gguf file")
        self.args = (f"{path}: {reason}",)
