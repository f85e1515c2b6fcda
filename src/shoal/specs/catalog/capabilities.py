"""What an engine can run, by engine version: axes, divisibility, splits, formats and parts.

    chosen = capability_of(capabilities, "vllm", "0.22.1")
    chosen.problem(model, Layout(tp=3))      # None, or why the engine refuses it

Search, fit and the emitted commands all ask this table, so that they never disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shoal.specs.catalog.engines import version_key
from shoal.specs.catalog.entries import Entry
from shoal.specs.errors import SpecError, unknown_name
from shoal.specs.hardware import Accelerator, FigureClass
from shoal.specs.layout import AXES, Layout
from shoal.specs.model import ModelSpec, QuantizationSpec
from shoal.specs.quantization import quantization

Heads = Literal["even", "groups"]
"""even: tp divides query heads; KV heads divide tp or are divided by it · groups: whole KV groups, unevenly."""
Experts = Literal["stage", "divides", "any"]
"""stage: ep is all ranks of a stage · divides: ep divides the number of experts · any: any divisor of the ranks."""
Reach = Literal["network", "server"]
"""How far KV can be handed: to another server, or only within one."""
Role = Literal["serve", "prefill", "decode"]

_FIELDS = (
    "parts", "axes", "heads", "experts", "weights", "caches", "rounds", "connector", "reach", "prefill_axes",
    "decode_axes", "degrees", "mixes", "speculation", "images",
)  # fmt: skip
DEGREE_RULES = ("decode_wider", "equal_states", "equal_windows")
"""decode_wider: decode's tensor degree is a multiple of prefill's · equal_states, equal_windows: equal degrees for
models with recurrent state, with sliding windows. A latent cache is whole on every rank and knows no such rule."""
ARCHITECTURES = (
    "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell_rtx", "cdna3", "cdna4", "apple_gpu",
    "avx2", "avx512_vnni",
)  # fmt: skip
"""Those that the table was made for. Of others, which a user's own catalogue may name, nothing is held against."""
_PLAIN = ("bfloat16", "float16")
_FAMILIES = {"fp8_channel": "fp8", "int4_symmetric": "int4", "nf4_double": "nf4", "bf16": "bf16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the table and where it comes from."""

    field: str
    source: str
    """The source, and the place in it."""
    date: str
    kind: FigureClass


@dataclass(frozen=True, slots=True)
class EngineCapability:
    """What one engine can do from one version on."""

    engine: str
    since: str
    version: str
    """The release that commands and images are written for."""
    parts: tuple[str, ...]
    """Architectures that it runs on."""
    axes: tuple[str, ...]
    """Axes of a layout that may be above 1."""
    heads: Heads
    experts: Experts
    weights: tuple[tuple[str, tuple[str, ...]], ...]
    """(format family, architectures)."""
    caches: tuple[tuple[str, tuple[str, ...]], ...]
    """(cache dtype, architectures)."""
    rounds: tuple[str, ...]
    """Formats to which it converts a 16-bit checkpoint on loading; others need a checkpoint stored so."""
    connector: tuple[str, ...]
    """Ways to hand KV from prefill to decode, the one that is emitted first; empty: no split."""
    reach: Reach
    prefill_axes: tuple[str, ...]
    """Axes that may be above 1 in a prefill worker."""
    decode_axes: tuple[str, ...]
    degrees: tuple[str, ...]
    """Rules for the tensor degrees of a split's two sides, of `DEGREE_RULES`; empty: any two."""
    mixes: tuple[tuple[str, tuple[str, ...]], ...]
    """(attention backend, architectures between which it hands over when both sides run it)."""
    speculation: tuple[str, ...]
    """Ways of speculative decoding that it has."""
    images: tuple[tuple[str, str], ...]
    """(vendor, container image)."""
    facts: tuple[Fact, ...] = ()

    def __hash__(self) -> int:
        # A search looks refusals up by the thousand: hashing the whole table each time took a tenth of it.
        return hash((self.engine, self.since, self.version))

    def image(self, vendor: str) -> str | None:
        """The pinned container image for a vendor's devices; None: none is known."""
        template = dict(self.images).get(vendor)
        return None if template is None else template.format(version=self.version)

    def runs_on(self, accelerator: Accelerator) -> bool:
        """Whether it has kernels for this architecture."""
        return _covers(self.parts, accelerator)

    def formats(self, accelerator: Accelerator) -> tuple[str, ...]:
        """Families of weight formats that it runs on this part."""
        return tuple(name for name, parts in self.weights if _covers(parts, accelerator))

    def cache_dtypes(self, accelerator: Accelerator) -> tuple[str, ...]:
        return tuple(name for name, parts in self.caches if _covers(parts, accelerator))

    def format_problem(self, method: str, accelerator: Accelerator) -> str | None:
        """Why weights stored by this method cannot run on this part; None: they can."""
        family = format_family(method)
        # Own engine: whatever a checkpoint holds is read to exact values.
        if family in self.formats(accelerator) or "float32" in self.rounds:
            return None
        return f"{self.label} does not run {family} weights on {accelerator.architecture}"

    def cache_problem(self, dtype: str, accelerator: Accelerator) -> str | None:
        """Why a cache of this dtype cannot be had on this part; None: it can."""
        if dtype in self.cache_dtypes(accelerator):
            return None
        return f"{self.label} has no {dtype} cache on {accelerator.architecture}"

    def layout_problem(
        self, model: ModelSpec, layout: Layout, stored: QuantizationSpec | None = None, role: Role = "serve"
    ) -> str | None:
        """Why a replica (or a worker of a split) of this layout is refused; None: it runs.

        Args:
            stored: how the weights are stored; None: as in the checkpoint.
        """
        problems = layout.problems(model, self.heads == "even", stored)
        if problems:
            return problems[0].message
        wanted = [axis for axis in AXES if getattr(layout, axis) > 1]
        for axis in wanted:
            if axis not in self.axes:
                return f"{self.label} has no {axis}"
        return self._expert_problem(model, layout) or self._role_problem(wanted, role)

    def _role_problem(self, wanted: Sequence[str], role: Role) -> str | None:
        if role == "serve":
            return None
        if not self.connector:
            return f"{self.label} hands no KV over"
        allowed = self.prefill_axes if role == "prefill" else self.decode_axes
        refused = next((axis for axis in wanted if axis not in allowed), None)
        if refused is None:
            return None
        return f"{self.label} has no {refused} in a {role} worker over {self.connector[0]}"

    def _expert_problem(self, model: ModelSpec, layout: Layout) -> str | None:
        if layout.dp > 1 and self.engine != "shoal" and not _experts_of(model):
            return f"{self.label} has data parallelism inside a replica for models with experts only: use replicas"
        if layout.ep == 1:
            return None
        if self.experts == "stage" and layout.ep != layout.stage_ranks:
            return f"{self.label} spreads experts over all {layout.stage_ranks} ranks of a stage, or over none"
        if self.experts == "divides":
            for count in _experts_of(model):
                if count % layout.ep:
                    return f"{self.label} needs ep to divide the experts: {count} over {layout.ep}"
        return None

    @property
    def label(self) -> str:
        """`vllm 0.22.1`."""
        return f"{self.engine} {self.version}" if self.version else self.engine


def _covers(parts: Sequence[str], accelerator: Accelerator) -> bool:
    return accelerator.architecture in parts or accelerator.architecture not in ARCHITECTURES


def _experts_of(model: ModelSpec) -> list[int]:
    return sorted({layer.ffn.router.experts for layer in model.layers if layer.ffn.router is not None})


def format_family(method: str) -> str:
    """`bf16` for a plain 16-bit dtype, `int4` for GPTQ, AWQ and compressed-tensors, and so on."""
    if method == "gguf":
        return "gguf"
    name = quantization(method).method
    return "bf16" if name in _PLAIN else _FAMILIES.get(name, name)


def capability_of(
    capabilities: Sequence[EngineCapability], engine: str, version: str | None = None
) -> EngineCapability:
    """What an engine can do at a version; None: at its newest release that is known.

    Raises `SpecError` for an unknown engine, and for versions before the first that is known or after the newest.
    """
    rows = [row for row in capabilities if row.engine == engine.lower()]
    if not rows:
        raise unknown_name("engine", engine, sorted({row.engine for row in capabilities}))
    rows.sort(key=lambda row: version_key(row.since))
    if version is None:
        return rows[-1]
    wanted, newest = version_key(version), rows[-1].version
    if not newest:
        raise SpecError("engine_version", version, f"none: {engine} is this installation's own")
    known = [row for row in rows if version_key(row.since) <= wanted]
    if not known or wanted[:2] > version_key(newest)[:2]:
        accepted = f"a release of {engine} from {rows[0].since} to {newest}: what is known of others is nothing"
        raise SpecError("engine_version", version, accepted)
    # `0.22` is the series: what is installed is its known release, if that is one of it.
    exact = version.removeprefix("v")
    series = len(wanted) < 3 and version_key(known[-1].version)[: len(wanted)] == wanted
    return replace(known[-1], version=known[-1].version if series else _padded(exact))


def _padded(version: str) -> str:
    """`0.23` as `0.23.0`: releases and images have three numbers."""
    return version + ".0" * max(0, 3 - len(version_key(version)))


def read_capability(entry: Entry) -> EngineCapability:
    """One entry of a `capabilities` list; raises `SpecError` as every catalogue reader does."""
    entry.only("engine", "since", "release", *_FIELDS)
    since = entry.text("since")
    version_key(since, entry.field("since"))
    lines = {name: entry.required_section(name) for name in _FIELDS}
    release = entry.section("release")
    facts = []
    for name, line in [*lines.items(), *([("release", release)] if release is not None else [])]:
        line.only("value", "from", "source", "date", "class", "at")
        source = line.provenance()
        facts.append(Fact(name, f"{source.source}: {line.text('at')}", source.date, source.kind))
    return EngineCapability(
        engine=entry.text("engine"),
        since=since,
        version="" if release is None else release.text("value"),
        parts=lines["parts"].words("value"),
        axes=_axes(lines["axes"]),
        heads="even" if _one_of(lines["heads"], ("even", "groups")) == "even" else "groups",
        experts=_experts(lines["experts"]),
        weights=_by_name(lines["weights"]),
        caches=_by_name(lines["caches"]),
        rounds=lines["rounds"].words("value"),
        connector=lines["connector"].words("value"),
        reach="server" if _one_of(lines["reach"], ("network", "server")) == "server" else "network",
        prefill_axes=_axes(lines["prefill_axes"]),
        decode_axes=_axes(lines["decode_axes"]),
        degrees=_words_of(lines["degrees"], DEGREE_RULES),
        mixes=_by_name(lines["mixes"]),
        speculation=lines["speculation"].words("value"),
        images=_images(lines["images"]),
        facts=tuple(facts),
    )


def _one_of(line: Entry, accepted: tuple[str, ...]) -> str:
    value = line.text("value")
    if value not in accepted:
        raise SpecError(line.field("value"), value, f"one of {', '.join(accepted)}")
    return value


def _experts(line: Entry) -> Experts:
    value = _one_of(line, ("stage", "divides", "any"))
    return "stage" if value == "stage" else "divides" if value == "divides" else "any"


def _axes(line: Entry) -> tuple[str, ...]:
    return _words_of(line, AXES)


def _words_of(line: Entry, known: Sequence[str]) -> tuple[str, ...]:
    found = line.words("value")
    for word in found:
        if word not in known:
            raise SpecError(line.field("value"), word, f"words out of {', '.join(known)}")
    return found


def _by_name(line: Entry) -> tuple[tuple[str, tuple[str, ...]], ...]:
    section = line.required_section("value")
    return tuple((name, section.words(name)) for name in section.values)


def _images(line: Entry) -> tuple[tuple[str, str], ...]:
    section = line.required_section("value")
    return tuple((vendor, section.text(vendor)) for vendor in section.values)
