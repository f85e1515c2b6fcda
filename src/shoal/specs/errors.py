"""The error of a value that a user gave: it names the field, the value, and what would be accepted."""

import difflib
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
        super().__init__(f"{field}: {value!r} is not accepted; expected {accepted}")


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
