"""The options of `shoal simulate`, in groups that its commands share."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import typer

from shoal.specs.errors import SpecError


@dataclass(frozen=True, slots=True)
class Replicas:
    """What a fleet is made of, where no file says it, or over what it says."""

    PANEL: ClassVar = "Fleet"

    model: Annotated[str | None, typer.Option(help="Catalogued model, config.json or GGUF file.")] = None
    gpu: Annotated[str | None, typer.Option(help="Catalogued accelerator of every replica.")] = None
    replicas: Annotated[int | None, typer.Option(help="How many; default: 1, or what the file says.")] = None
    layout: Annotated[
        str | None, typer.Option(help="Of a replica: tp=2. Default: the smallest tp that holds the model.")
    ] = None
    engine: Annotated[str | None, typer.Option(help="vllm (default), sglang, trtllm or shoal.")] = None
    engine_version: Annotated[str | None, typer.Option(help="Whose settings and memory it has.")] = None
    weights: Annotated[str | None, typer.Option(help="How they are stored: checkpoint (default), fp8, …")] = None
    kv_dtype: Annotated[str | None, typer.Option(help="How the cache is stored: bf16, fp8, int8, …")] = None
    memory_utilization: Annotated[float | None, typer.Option(help="The engine's memory fraction.")] = None
    max_num_seqs: Annotated[int | None, typer.Option(help="Sequences that run at once, at most.")] = None
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens of a step, at most.")] = None
    max_model_len: Annotated[int | None, typer.Option(help="Prompt and answer, at most.")] = None
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per KV block; default: 16, or 512 for traces by 512-token blocks.")
    ] = None
    kv_blocks: Annotated[int | None, typer.Option(help="KV blocks, instead of what memory holds.")] = None
    router: Annotated[str | None, typer.Option(help="Routing policy; default: default.")] = None
    max_inflight: Annotated[int | None, typer.Option(help="Requests at one replica, at most; default: 256.")] = None
    constants: Annotated[
        Path | None, typer.Option(help="Constants of the time model, of `shoal plan calibrate`.")
    ] = None
    design: Annotated[int, typer.Option(min=1, help="Which of a plan's designs.")] = 1

    def changed(self, text: str) -> Self:
        """Return the options with some changed, as written for one side of a comparison: `replicas=4,router=kv`."""
        names = {f.name: f for f in fields(self)}
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            name = name.replace("-", "_")
            if not equals or name not in names:
                accepted = f"a file, or settings such as replicas=4,router=kv; settings are {', '.join(names)}"
                raise SpecError("side", text, accepted)
            given[name] = self._read(name, value)
        return replace(self, **given)

    @staticmethod
    def _read(name: str, value: str) -> Any:
        try:
            if name in _WHOLE:
                return int(value)
            if name == "memory_utilization":
                return float(value)
        except ValueError:
            raise SpecError(name, value, "a number") from None
        # Commas separate settings: a layout of several axes is written with blanks or +.
        return Path(value) if name == "constants" else value.replace("+", ",") if name == "layout" else value


_WHOLE = frozenset(
    {
        *("replicas", "max_num_seqs", "max_num_batched_tokens", "max_model_len"),
        *("block_size", "kv_blocks", "max_inflight", "design"),
    }
)


@dataclass(frozen=True, slots=True)
class Virtual:
    """How it is simulated."""

    PANEL: ClassVar = "Simulation"

    horizon: Annotated[float, typer.Option(help="Simulated seconds after which it stops.")] = 30 * 86_400.0
    points: Annotated[int, typer.Option(min=2, help="Moments at which replicas are looked at.")] = 200
    intervals: Annotated[
        bool, typer.Option(help="Widen intervals by how well step times are known: simulates more.")
    ] = True
    fault: Annotated[
        list[str] | None,
        typer.Option(help="KIND@SECONDS:REPLICA, +SECONDS and xFACTOR: crash@60:r0, slow@9:r1+30x4. Repeatable."),
    ] = None


@dataclass(frozen=True, slots=True)
class Seeds:
    """How many loads are drawn."""

    PANEL: ClassVar = "Simulation"

    seeds: Annotated[int, typer.Option(min=1, help="Loads drawn, with seeds in a row; figures are means.")] = 1
