"""The catalogue: what can be bought and run, every figure with its source, date and class.

`load_catalog()` reads the files that ship with Shoal, and then a user's own, which add to them or replace entries
of the same name. Models are catalogued by `shoal.specs.catalog_model`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from shoal.specs.catalog.accelerators import read_accelerator, read_price
from shoal.specs.catalog.capabilities import EngineCapability, capability_of, read_capability
from shoal.specs.catalog.engines import EngineMemory, read_engine, version_key
from shoal.specs.catalog.entries import Entry, read_file
from shoal.specs.catalog.part_names import match_part, unknown_part
from shoal.specs.errors import SpecError, unknown_name
from shoal.specs.hardware import Accelerator, Cluster

__all__ = ["Catalog", "EngineCapability", "EngineMemory", "load_catalog"]

_SHIPPED = ("accelerators.yaml", "more_accelerators.yaml", "engines.yaml", "capabilities.yaml")
DEFAULT_ENGINE = "vllm"


@dataclass(frozen=True, slots=True)
class Catalog:
    """Accelerators, engines' memory constants and abilities, and clusters, by name."""

    accelerators: Mapping[str, Accelerator]
    engines: tuple[EngineMemory, ...]
    clusters: Mapping[str, Cluster]
    capabilities: tuple[EngineCapability, ...] = ()

    def accelerator(self, name: str, field: str = "gpu") -> Accelerator:
        """The accelerator of this name or alias, as people write it (see `part_names`).

        Raises `SpecError` with the near names for one that is unknown.
        """
        found = match_part(name, self.accelerators.values())
        if found is None:
            raise unknown_part(field, name, self.accelerators.values())
        return found

    @property
    def considered(self) -> tuple[Accelerator, ...]:
        """The accelerators that a search looks at when none is named."""
        return tuple(a for a in self.accelerators.values() if not a.by_name_only)

    def engine(self, name: str = DEFAULT_ENGINE, version: str | None = None) -> EngineMemory:
        """Memory constants of an engine at a version; None: the newest that is known."""
        known = sorted({entry.engine for entry in self.engines})
        rows = [entry for entry in self.engines if entry.engine == name.lower()]
        if not rows:
            raise unknown_name("engine", name, known)
        rows.sort(key=lambda entry: version_key(entry.since))
        if version is None:
            return rows[-1]
        wanted = version_key(version)
        return next((row for row in reversed(rows) if version_key(row.since) <= wanted), rows[0])

    def capability(self, name: str = DEFAULT_ENGINE, version: str | None = None) -> EngineCapability:
        """What an engine can do at a version; None: at the newest release that is known.

        Raises `SpecError` for an unknown engine or version.
        """
        return capability_of(self.capabilities, name, version)


def load_catalog(extra: Sequence[Path | str] = ()) -> Catalog:
    """What ships with Shoal, with a user's files on top, later ones over earlier ones.

    Raises `SpecError` naming the file, the entry, the field, the value, and what is accepted.
    """
    return _merged(_shipped(), [read_file(Path(path), str(path)) for path in extra]) if extra else _shipped()


@functools.cache
def _shipped() -> Catalog:
    files = [read_file(Path(__file__).with_name(name), name) for name in _SHIPPED]
    return _merged(Catalog({}, (), {}), files)


def _merged(catalog: Catalog, files: Sequence[Entry]) -> Catalog:
    """Return the catalog with the entries of these files on top."""
    accelerators, engines, clusters = dict(catalog.accelerators), list(catalog.engines), dict(catalog.clusters)
    capabilities = list(catalog.capabilities)
    for file in files:
        _add(file, accelerators, engines, clusters)
        _add_capabilities(file, capabilities)
    return Catalog(MappingProxyType(accelerators), tuple(engines), MappingProxyType(clusters), tuple(capabilities))


def _add(
    root: Entry, accelerators: dict[str, Accelerator], engines: list[EngineMemory], clusters: dict[str, Cluster]
) -> None:
    for name, entry in _entries(root, "accelerators"):
        accelerators[name] = read_accelerator(name, entry)
    seen = Catalog(accelerators, (), clusters)
    for name, entry in _entries(root, "prices"):
        accelerator = seen.accelerator(name, f"{root.where}: prices")
        accelerators[accelerator.name] = read_price(accelerator, entry)
    for entry in _listed(root, "engines"):
        added = read_engine(entry)
        engines[:] = [e for e in engines if (e.engine, e.since) != (added.engine, added.since)]
        engines.append(added)
    for name, entry in _entries(root, "clusters"):
        entry.only("accelerator", "nodes", "devices_per_node")
        accelerator = seen.accelerator(entry.text("accelerator"), entry.field("accelerator"))
        nodes = _count(entry, "nodes", None)
        clusters[name] = Cluster(accelerator, nodes, _count(entry, "devices_per_node", accelerator), name)


def _add_capabilities(root: Entry, capabilities: list[EngineCapability]) -> None:
    for entry in _listed(root, "capabilities"):
        added = read_capability(entry)
        capabilities[:] = [c for c in capabilities if (c.engine, c.since) != (added.engine, added.since)]
        capabilities.append(added)


def _listed(root: Entry, section: str) -> list[Entry]:
    listed = root.values.get(section, [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise SpecError(root.field(section), listed, "a list of mappings")
    return [Entry(f"{root.where}: {section}[{i}]", item, root.sources) for i, item in enumerate(listed)]


def _entries(root: Entry, section: str) -> list[tuple[str, Entry]]:
    found = root.section(section)
    if found is None:
        return []
    sections = {name: found.required_section(name) for name in found.values}
    return [(name, replace(entry, where=f"{root.where}: {name}")) for name, entry in sections.items()]


def _count(entry: Entry, field: str, accelerator: Accelerator | None) -> int:
    value = entry.values.get(field, None if accelerator is None else accelerator.devices_per_node)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
        raise SpecError(entry.field(field), value, "a whole number, at least 1")
    return value
