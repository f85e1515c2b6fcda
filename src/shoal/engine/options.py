"""What one replica is told at start-up. Free of torch, so the command line can check it cheaply."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from shoal.engine.errors import InvalidOption
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout
from shoal.specs.option import Option, option_fields

MAX_RANKS = 4096
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:[:@].*)?")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_TRANSFER = re.compile(r"^tcp://[^/\s:]+:(\d{1,5})$")
_NAME = re.compile(r"^[^\s=]{1,256}$")
_MEMORY_UNITS = MappingProxyType({"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40})
_EVENTS = re.compile(r"^tcp://[^/\s:]+:[1-9]\d{0,4}$")


class LoraModule(msgspec.Struct, frozen=True):
    """A LoRA adapter to serve beside the model."""

    name: str
    """The model name by which requests choose it."""
    path: str
    """A directory in PEFT's format: adapter_config.json and adapter_model.safetensors."""

    @classmethod
    def parse(cls, text: str) -> "LoraModule":
        """Of `name=directory`; what is missing, `EngineOptions.validate` says."""
        name, _, path = text.partition("=")
        return cls(name, path)


def parse_memory(text: str) -> int:
    """Return the bytes of `512M`, `2G`, `1.5GiB` or plain bytes. Raises `InvalidOption`."""
    cleaned = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = cleaned[-1:] if cleaned[-1:] in ("K", "M", "G", "T") else ""
    try:
        return int(float(cleaned.removesuffix(unit)) * _MEMORY_UNITS[unit])
    except (ValueError, OverflowError):
        raise InvalidOption("kv_memory", text, "bytes, or a number with K, M, G or T, such as 512M") from None


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one replica; `validate` refuses what cannot work, by field.

    `shoal serve`'s options and the table in docs/fleet-config.md are made of these fields.

    Memory for keys and values comes from `num_blocks`, else `kv_memory` (bytes), else a share of what is free.
    """

    model: str
    """Catalog name, directory, GGUF file, hub id or object-store URL (see engine.sources)."""
    served_name: str | None = None
    """The name clients use; default: the model reference's last part."""
    chat_template: Annotated[
        str | None, Option("File with a Jinja chat template, in place of the model's own.")
    ] = None
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Option("Compute dtype: {choices}.")] = "auto"
    """`auto`: float32 on a CPU (bf16 has no fast path there), the checkpoint's own elsewhere."""
    kv_dtype: Annotated[Literal["auto", "int8"], Option("How keys and values are kept: {choices}.")] = "auto"
    """`auto`: in the compute dtype. `int8`: 8-bit values with one scale per token and head, a quarter of float32's
    memory, at a small loss (docs/quantization.md)."""
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        Option("Hold the weights in fewer bits: {choices} (docs/quantization.md)."),
    ] = None
    """On a CPU only."""
    loras: Annotated[
        tuple[LoraModule, ...],
        Option(
            "A LoRA adapter that requests choose by model name; repeatable (docs/lora.md).",
            name="lora",
            metavar="NAME=DIR",
            parse=LoraModule.parse,
        ),
    ] = ()
    reasoning: Annotated[
        Literal["auto", "none"],
        Option("auto: a model's reasoning is a field of its own; none: it stays in the content."),
    ] = "auto"
    device: Annotated[str, Option("cpu, cuda, …")] = "cpu"
    kv_memory: Annotated[
        int | None, Option("Memory for keys and values, e.g. 512M or 2G.", minimum=1, parse=parse_memory)
    ] = None
    """Bytes."""
    kv_share: Annotated[
        float | None,
        Option("Share of the memory that is free once the weights are loaded, for KV.", on_command_line=False),
    ] = None
    """Where neither `kv_memory` nor `num_blocks` is given."""
    num_blocks: Annotated[int | None, Option("KV blocks, instead of --kv-memory.", minimum=2)] = None
    block_size: Annotated[int, Option("Tokens per KV block.")] = 16
    max_model_len: Annotated[int | None, Option("Longest prompt plus output, in tokens.", minimum=2)] = None
    """Default: the model's own limit, or what the KV memory holds."""
    max_num_seqs: Annotated[int, Option("Most sequences in one step.", minimum=1)] = 64
    max_num_batched_tokens: Annotated[int, Option("Token budget of a step.", minimum=1)] = 512
    """Prefill chunks and decode rows together."""
    prefill_chunk: Annotated[
        int | None,
        Option("Most rows of one sequence in one step; default: the budget.", minimum=1, on_command_line=False),
    ] = None
    prefix_caching: Annotated[bool, Option("Reuse KV of shared prefixes.")] = True
    tp: Annotated[int, Option("Ranks that share every layer (tensor parallel).", minimum=1)] = 1
    pp: Annotated[int, Option("Ranks that hold consecutive layers (pipeline parallel).", minimum=1)] = 1
    cp: Annotated[int, Option("Ranks that share a sequence (context parallel).", minimum=1)] = 1
    dp: Annotated[int, Option("Lanes that serve different requests in one replica.", minimum=1)] = 1
    """Data parallel: each lane has its own scheduler and KV memory."""
    ep: Annotated[int, Option("Ranks that share the experts (expert parallel).", minimum=1)] = 1
    """Regroups dp·cp·tp. Alone, it means as many lanes."""
    spare_experts: Annotated[
        int, Option("With --ep: slots per rank and layer for replicas of hot experts.", minimum=0)
    ] = 0
    """Beyond the slots that a rank's share of the experts fills."""
    balance_steps: Annotated[
        int | None,
        Option("With --ep: steps after which experts may move to even out the load.", minimum=1),
    ] = None
    """None: never."""
    collectives: Annotated[Literal["auto", "shm", "gloo", "nccl"], Option("How ranks talk: {choices}.")] = "auto"
    """`auto`: NCCL on GPUs, shared memory on this host's CPU, Gloo otherwise."""
    overlap: Annotated[
        Literal["auto", "on", "off"],
        Option("With --ep: whether rows travel while others are computed: {choices}."),
    ] = "auto"
    """`on`: experts' rows travel in two halves, one under way while the other is computed. `auto`: where a
    measurement at start-up says that it is faster, never over shared memory."""
    rank_timeout: Annotated[float, Option("Seconds after which a silent or late rank has failed.")] = 5.0
    step_timeout: Annotated[
        float,
        Option("Seconds after which a step that has not come back is a dead rank.", on_command_line=False),
    ] = 300.0
    rendezvous: Annotated[
        Literal["local", "env"],
        Option("local: ranks are started here. env: by a launcher, such as torchrun, on any hosts."),
    ] = "local"
    """`env`: the launcher sets MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE; rank 0 serves."""
    seed: Annotated[int | None, Option("Makes requests that bring no seed repeatable.")] = None
    """Requests without a seed get seed, seed + 1, …. None: at random."""
    threads: Annotated[int | None, Option("Compute threads.", minimum=1)] = None
    """Of one rank; default: the cores this process may use."""
    generation_config: Annotated[
        Literal["auto", "none"],
        Option("auto: the model's own sampling defaults where a request is silent; none: not."),
    ] = "auto"
    """Those of temperature, top_k, top_p, min_p, repetition_penalty and max_new_tokens."""
    cache_dir: Annotated[str | None, Option("Where models are kept.")] = None
    offline: Annotated[bool, Option("Never use the network.")] = False
    kv_events: Annotated[
        str | None,
        Option("tcp://host:port to publish KV events at; replays are on the port after it.", on_command_line=False),
    ] = None
    """See engine.kv.publisher."""
    kv_transfer: Annotated[
        str | None,
        Option(
            "tcp://host:port to offer the KV of prompts at, for replicas that decode them; port 0: any free one.",
            on_command_line=False,
        ),
    ] = None
    """Also leave to take such offers of others. None: neither."""

    @property
    def layout(self) -> Layout:
        """The axes; `ep` alone means as many lanes. Raises InvalidOption naming the rule that they break."""
        try:
            layout = Layout(tp=self.tp, pp=self.pp, dp=self.dp, cp=self.cp, ep=self.ep).with_expert_lanes()
        except SpecError as error:
            axis = error.field.removeprefix("layout.")
            raise InvalidOption(axis, error.value, "a whole number >= 1") from None
        if layout.world > MAX_RANKS:
            raise InvalidOption("tp", self.tp, f"dp·pp·cp·tp of at most {MAX_RANKS} ranks, not {layout.world}")
        if layout.stage_ranks % layout.ep:
            valid = ", ".join(str(d) for d in range(1, layout.stage_ranks + 1) if layout.stage_ranks % d == 0)
            accepted = f"a divisor of dp·cp·tp = {layout.stage_ranks}, the ranks that it regroups: {valid}"
            raise InvalidOption("ep", self.ep, accepted)
        return layout

    def validate(self) -> None:
        """Raise `InvalidOption` for the first field that cannot work."""
        self._validate_bounds()
        self._validate_ranks()
        if not self.model:
            raise InvalidOption("model", self.model, "a catalog name, path, hub id or URL")
        if self.quantize is not None and self.device != "cpu":
            raise InvalidOption("quantize", self.quantize, f"the device cpu; kernels for {self.device} are missing")
        self._validate_loras()
        if self.block_size not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            raise InvalidOption("block_size", self.block_size, "a power of two from 1 to 256")
        if self.kv_share is not None and not 0 < self.kv_share <= 1:
            raise InvalidOption("kv_share", self.kv_share, "a share above 0 and up to 1")
        if self.kv_events is not None and not _EVENTS.match(self.kv_events):
            raise InvalidOption("kv_events", self.kv_events, "tcp://host:port with a port from 1 to 65534")
        self._validate_transfer()
        if not self.step_timeout > 0:
            raise InvalidOption("step_timeout", self.step_timeout, "seconds > 0")
        if self.num_blocks is not None and self.kv_memory is not None:
            raise InvalidOption("kv_memory", self.kv_memory, "either num_blocks or kv_memory, not both")

    def _validate_bounds(self) -> None:
        """Check choices and minimums as the fields themselves state them."""
        for name, field in option_fields(type(self)).items():
            value, minimum = getattr(self, name), field.option.minimum
            if value is None:
                continue
            if field.choices and value not in field.choices:
                raise InvalidOption(name, value, "one of " + ", ".join(field.choices))
            if minimum is not None and (type(value) is not int or value < minimum):
                raise InvalidOption(name, value, f"an integer >= {minimum}")

    def _validate_loras(self) -> None:
        names = [self.served_name]
        for lora in self.loras:
            if not _NAME.match(lora.name) or not lora.path:
                accepted = "name=directory, the name of 1 to 256 characters without white space"
                raise InvalidOption("lora", f"{lora.name}={lora.path}", accepted)
            if lora.name in names:
                raise InvalidOption("lora", lora.name, "a name that no other adapter and not the model itself has")
            names.append(lora.name)

    def _validate_transfer(self) -> None:
        if self.kv_transfer is None:
            return
        found = _TRANSFER.match(self.kv_transfer)
        if found is None or int(found[1]) > 65535:
            raise InvalidOption("kv_transfer", self.kv_transfer, "tcp://host:port with a port from 0 to 65535")
        if not self.prefix_caching:
            raise InvalidOption("kv_transfer", self.kv_transfer, "none without prefix_caching")
        if self.layout.world > 1 or self.rendezvous == "env":
            raise InvalidOption("kv_transfer", self.kv_transfer, "none for a replica of several ranks")

    def _validate_ranks(self) -> None:
        layout = self.layout
        if self.spare_experts and layout.ep == 1:
            raise InvalidOption("spare_experts", self.spare_experts, "0, or with ep > 1 a whole number of slots")
        if self.balance_steps is not None and layout.ep == 1:
            raise InvalidOption("balance_steps", self.balance_steps, "with ep > 1, a whole number of steps >= 1")
        if self.collectives == "nccl" and not self.device.startswith("cuda"):
            raise InvalidOption("collectives", self.collectives, f"shm or gloo with device {self.device}")
        if self.collectives == "shm" and (self.rendezvous == "env" or self.device != "cpu"):
            raise InvalidOption("collectives", self.collectives, "gloo or nccl: shm is for ranks of one host's CPU")
        if not self.rank_timeout > 0:
            raise InvalidOption("rank_timeout", self.rank_timeout, "seconds > 0")


def served_names(model: str, given: Sequence[str] = ()) -> tuple[str, ...]:
    """All names that clients may use, the model's own name in answers first. `org/name` is served as `name` too."""
    names = list(given) or [default_name(model)]
    hub = _HUB_ID.fullmatch(model)
    if not given and hub is not None and not Path(model).exists():
        names.append(hub[1])
    names += [name.rsplit("/", 1)[1] for name in names if _HUB_ID.fullmatch(name)]
    return tuple(dict.fromkeys(names))


def default_name(model: str) -> str:
    """The name clients use where none is given: the last part of the reference, without a GGUF ending."""
    last = model.rstrip("/").rsplit("/", 1)[-1]
    return _SHARD.sub("", last).removesuffix(".gguf") or model
