"""Names of accelerators as people write them: "H100 PCIe", "a100 40 GB", "4090", "8xh100", "M3 Ultra"."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shoal.specs.errors import SpecError, near_names
from shoal.specs.hardware import Accelerator

MAX_OWNED = 1 << 20
_NOISE = frozenset(
    {
        "nvidia", "amd", "apple", "geforce", "tesla", "instinct", "quadro", "radeon", "rtx", "gpu", "gpus",
        "tensor", "core", "nvl72", "mac", "macbook", "studio", "mini", "chip", "hbm2e", "hbm3", "hbm3e", "gddr6",
        "oam", "generation", "edition",
    }
)  # fmt: skip
"""Words that tell no two parts of the catalogue apart."""


@dataclass(frozen=True, slots=True)
class PartName:
    """A name taken apart: its telling words, and the memory it mentions."""

    words: frozenset[str]
    gigabytes: int | None


def part_name(text: str) -> PartName:
    """Take a name apart, whatever its case, separators and marketing words."""
    folded = re.sub(r"macbook[\s_-]*(pro|air)?", " ", text.lower())
    memory = re.search(r"(?<![a-z0-9])(\d{2,4})[\s_-]*g(?:i?b)?(?![a-z0-9])|(\d{2,4})gi?b", folded)
    if memory is not None:
        folded = folded[: memory.start()] + " " + folded[memory.end() :]
    folded = re.sub(r"nvl72", " nvl72 ", folded)
    folded = re.sub(r"(sxm)\d*|(pcie)[\d.]*(?:\s*x16)?|(nvl)(?!\d)", lambda m: f" {m[1] or m[2] or m[3]} ", folded)
    folded = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", folded)
    words = frozenset(re.findall(r"[a-z0-9]+", folded)) - _NOISE
    size = None if memory is None else int(memory[1] or memory[2])
    return PartName(words, size)


def match_part(text: str, known: Iterable[Accelerator]) -> Accelerator | None:
    """The accelerator of this name or alias; None where there is none. Exact names win over looser ones."""
    parts = list(known)
    exact = _fold(text)
    for part in parts:
        if exact in (_fold(part.name), *(_fold(alias) for alias in part.aliases)):
            return part
    wanted = part_name(text)
    if not wanted.words:
        return None
    for part in parts:
        for alias in (part.name, *part.aliases):
            if part_name(alias).words == wanted.words and (found := _sized(part, wanted.gigabytes)) is not None:
                return found
    return None


def _sized(part: Accelerator, gigabytes: int | None) -> Accelerator | None:
    """The part with this much memory; None where it is not made so."""
    if gigabytes is None or abs(part.memory_bytes / 1e9 - gigabytes) < 1.0:
        return part
    if part.vendor == "Apple" and 8 <= gigabytes < part.memory_bytes / 1e9:
        # Macs are sold with less than the largest memory, which is what the catalogue lists.
        return replace(part, name=f"{part.name}_{gigabytes}gb", memory_bytes=gigabytes * 1e9)
    return None


def _fold(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_").strip("_")


def unknown_part(field: str, text: str, known: Iterable[Accelerator]) -> SpecError:
    """The error for a name that is not in the catalogue: near names, else all; what memory there is of a part."""
    parts = list(known)
    if not text.strip():
        return SpecError(field, text, "an accelerator such as h100 or mi300x; leave it out for all of them")
    wanted = part_name(text)
    same = [p for p in parts if any(part_name(n).words == wanted.words for n in (p.name, *p.aliases))]
    if same and wanted.gigabytes is not None:
        sizes = ", ".join(f"{p.name} ({p.memory_bytes / 1e9:.0f} GB)" for p in same)
        return SpecError(field, text, f"a size it is made in: {sizes}; a file of your own can add another")
    owners = {alias: p.name for p in parts for alias in (*p.aliases, p.name)}
    near = list(dict.fromkeys(owners[name] for name in near_names(text, owners)))
    listed = f"{', '.join(near)} (nearest)" if near else ", ".join(p.name for p in parts if not p.by_name_only)
    return SpecError(field, text, f"one of {listed}; a catalogue file of your own can add another")


@dataclass(frozen=True, slots=True)
class Owned:
    """Devices named on one line: how many, of what."""

    count: int | None
    """None: not said."""
    name: str
    """As typed; empty where only a number was given."""


_COUNTED = re.compile(
    r"(?:(?P<nodes>\d+)\s*[x×*]\s*)?(?P<count>\d[\d,]*)\s*(?:[x×*]\s*|\s+)(?P<name>[a-z].*|\d{4}.*)", re.I
)
_SUFFIXED = re.compile(r"(?P<name>[a-z].*?)\s*(?::|\s[x×*]\s*|(?<!rt)[x×*](?=\d+$))\s*(?P<count>\d+)", re.I)


def parse_owned(text: str, field: str = "gpu") -> Owned:
    """One entry of `--gpu`: a name, a number, or both: "h100", "8", "8xh100", "8 H100", "h100:8", "2x8xh100".

    Raises `SpecError` for a count of zero or one too large to be meant.
    """
    cleaned = text.strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})*|\d{1,3}", cleaned):
        return Owned(_counted(cleaned, text, field), "")
    match = _COUNTED.fullmatch(cleaned)
    if match is not None:
        count = _counted(match["count"], text, field) * (
            _counted(match["nodes"], text, field) if match["nodes"] else 1
        )
        if count > MAX_OWNED:
            raise SpecError(field, text, f"at most {MAX_OWNED:,} devices")
        return Owned(count, match["name"].strip())
    match = _SUFFIXED.fullmatch(cleaned)
    if match is not None:
        return Owned(_counted(match["count"], text, field), match["name"].strip())
    return Owned(None, cleaned)


def _counted(digits: str, text: str, field: str) -> int:
    count = int(digits.replace(",", ""))
    if not 1 <= count <= MAX_OWNED:
        raise SpecError(field, text, f"1 to {MAX_OWNED:,} devices, such as 8xh100")
    return count
