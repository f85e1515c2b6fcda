"""What one replica is told at start-up. Free of torch, so the command line can check it cheaply."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from shoal.engine.errors import InvalidOption
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout

DTYPES = ("auto", "float32", "bfloat16")
KV_DTYPES = ("auto", "int8")
GENERATION_CONFIGS = ("auto", "none")
SCHEMES = ("int8", "int4")
COLLECTIVES = ("auto", "shm", "gloo", "nccl")
REASONING = ("auto", "none")
MAX_RANKS = 4096
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:[:@].*)?")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_TRANSFER = re.compile(r"^tcp://[^/\s:]+:(\d{1,5})$")
_NAME = re.compile(r"^[^\s=]{1,256}$")
_EVENTS = re.compile(r"^tcp://[^/\s:]+:[1-9]\d{0,4}$")


class LoraModule(msgspec.Struct, frozen=True):
    """A LoRA adapter to serve beside the model."""

    name: str
    """The model name by which requests choose it."""
    path: str
    """A directory in PEFT's format: adapter_config.json and adapter_model.safetensors."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one replica; `validate` refuses what cannot work, by field.

    Memory for keys and values comes from `num_blocks`, else `kv_memory` (bytes), else a share of what is free.
    """

    model: str
    """Catalog name, directory, GGUF file, hub id or object-store URL (see engine.sources)."""
    served_name: str | None = None
    """The name clients use; default: the model reference's last part."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Compute dtype. `auto`: float32 on a CPU (bf16 has no fast path there), the checkpoint's own elsewhere."""
    kv_dtype: Literal["auto", "int8"] = "auto"
    """How keys and values are kept. `auto`: in the compute dtype; `int8`: in ±127 steps of a scale a token and
    head, a quarter of float32's memory, at a small loss (docs/quantization.md)."""
    quantize: Literal["int8", "int4"] | None = None
    """Hold matrices in fewer bits than the checkpoint has them in (docs/quantization.md); on a CPU."""
    reasoning: Literal["auto", "none"] = "auto"
    """`auto`: a model's reasoning is a field of its own in chat answers. `none`: it stays in the content."""
    loras: tuple[LoraModule, ...] = ()
    """LoRA adapters, loaded at start-up (docs/lora.md)."""
    device: str = "cpu"
    block_size: int = 16
    """Tokens of KV a block."""
    num_blocks: int | None = None
    kv_memory: int | None = None
    kv_share: float | None = None
    """Of the memory that is free once the weights are loaded, where neither of the two above is given."""
    max_model_len: int | None = None
    """Longest prompt plus output; default: the model's own limit, or what the KV memory holds."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """Token budget of a step: prefill chunks and decode rows together."""
    prefill_chunk: int | None = None
    """Rows of one sequence in one step at most; default: the whole budget."""
    prefix_caching: bool = True
    chat_template: str | None = None
    """File with a Jinja template, in place of the model's own."""
    generation_config: Literal["auto", "none"] = "auto"
    """`auto`: temperature, top_k, top_p, min_p, repetition_penalty and max_new_tokens that the model recommends
    apply where a request is silent. `none`: they don't."""
    seed: int | None = None
    """Seeds requests that bring none (seed, seed + 1, …), so that a whole run can be repeated. None: at random."""
    threads: int | None = None
    """Compute threads of a rank; default: the cores this process may use."""
    cache_dir: str | None = None
    offline: bool = False
    kv_events: str | None = None
    """`tcp://host:port` to publish KV events at (see engine.kv.publisher); replays are on the port after it."""
    kv_transfer: str | None = None
    """`tcp://host:port` to offer the KV of prompts at, for replicas that decode them, and leave to take such offers
    of others. Port 0: any free one. None: neither."""
    step_timeout: float = 300.0
    """Seconds after which a step that has not come back is a dead rank."""
    tp: int = 1
    """Tensor parallel: ranks that every matrix is cut over."""
    pp: int = 1
    """Pipeline stages of contiguous layers."""
    dp: int = 1
    """Data-parallel lanes within the replica, each with its own scheduler and KV memory."""
    cp: int = 1
    """Context parallel: ranks that every sequence is striped over."""
    ep: int = 1
    """Groups of ranks that share out the experts; regroups dp·cp·tp. Alone, it means as many lanes."""
    spare_experts: int = 0
    """Slots a rank and layer, beyond those its share of the experts fills, for replicas of hot experts."""
    balance_steps: int | None = None
    """Steps after which the load of experts is looked at, and experts move if that evens it out. None: never."""
    collectives: Literal["auto", "shm", "gloo", "nccl"] = "auto"
    """How ranks talk. `auto`: NCCL on GPUs, shared memory on this host's CPU, Gloo otherwise."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """With ep: whether experts' rows travel in two halves, one under way while the other is computed. `auto`: where
    a measurement at start-up says that it is faster, never over shared memory."""
    rank_timeout: float = 5.0
    """Seconds after which a rank that is stopped, or that others wait for, counts as failed."""
    rendezvous: Literal["local", "env"] = "local"
    """`local`: ranks are started here. `env`: by a launcher that sets MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE
    (as torchrun does), on one host or several; rank 0 serves."""

    @property
    def layout(self) -> Layout:
        """The axes; `ep` alone means as many lanes. Raises InvalidOption naming the rule that they break."""
        lanes = self.ep if self.ep > 1 and self.dp == self.cp == self.tp == 1 else self.dp
        try:
            layout = Layout(tp=self.tp, pp=self.pp, dp=lanes, cp=self.cp, ep=self.ep)
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
        self._validate_ranks()
        if not self.model:
            raise InvalidOption("model", self.model, "a catalog name, path, hub id or URL")
        if self.generation_config not in GENERATION_CONFIGS:
            raise InvalidOption("generation_config", self.generation_config, "auto or none")
        if self.dtype not in DTYPES:
            raise InvalidOption("dtype", self.dtype, "one of " + ", ".join(DTYPES))
        if self.kv_dtype not in KV_DTYPES:
            raise InvalidOption("kv_dtype", self.kv_dtype, "one of " + ", ".join(KV_DTYPES))
        if self.quantize is not None and self.quantize not in SCHEMES:
            raise InvalidOption("quantize", self.quantize, "one of " + ", ".join(SCHEMES))
        if self.quantize is not None and self.device != "cpu":
            raise InvalidOption("quantize", self.quantize, f"the device cpu; kernels for {self.device} are missing")
        self._validate_loras()
        if self.block_size not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            raise InvalidOption("block_size", self.block_size, "a power of two from 1 to 256")
        _at_least("num_blocks", self.num_blocks, 2)
        _at_least("kv_memory", self.kv_memory, 1)
        if self.kv_share is not None and not 0 < self.kv_share <= 1:
            raise InvalidOption("kv_share", self.kv_share, "a share above 0 and up to 1")
        if self.kv_events is not None and not _EVENTS.match(self.kv_events):
            raise InvalidOption("kv_events", self.kv_events, "tcp://host:port with a port from 1 to 65534")
        self._validate_transfer()
        _at_least("max_model_len", self.max_model_len, 2)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("prefill_chunk", self.prefill_chunk, 1)
        _at_least("threads", self.threads, 1)
        if not self.step_timeout > 0:
            raise InvalidOption("step_timeout", self.step_timeout, "seconds > 0")
        if self.reasoning not in REASONING:
            raise InvalidOption("reasoning", self.reasoning, "one of " + ", ".join(REASONING))
        if self.num_blocks is not None and self.kv_memory is not None:
            raise InvalidOption("kv_memory", self.kv_memory, "either num_blocks or kv_memory, not both")

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
        if self.spare_experts < 0 or (self.spare_experts and layout.ep == 1):
            raise InvalidOption("spare_experts", self.spare_experts, "0, or with ep > 1 a whole number of slots")
        if self.balance_steps is not None and (self.balance_steps < 1 or layout.ep == 1):
            raise InvalidOption("balance_steps", self.balance_steps, "with ep > 1, a whole number of steps >= 1")
        if self.collectives not in COLLECTIVES:
            raise InvalidOption("collectives", self.collectives, "one of " + ", ".join(COLLECTIVES))
        if self.overlap not in ("auto", "on", "off"):
            raise InvalidOption("overlap", self.overlap, "auto, on or off")
        if self.collectives == "nccl" and not self.device.startswith("cuda"):
            raise InvalidOption("collectives", self.collectives, f"shm or gloo with device {self.device}")
        if self.collectives == "shm" and (self.rendezvous == "env" or self.device != "cpu"):
            raise InvalidOption("collectives", self.collectives, "gloo or nccl: shm is for ranks of one host's CPU")
        if not self.rank_timeout > 0:
            raise InvalidOption("rank_timeout", self.rank_timeout, "seconds > 0")
        if self.rendezvous not in ("local", "env"):
            raise InvalidOption("rendezvous", self.rendezvous, "local or env")


def _at_least(field: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise InvalidOption(field, value, f"an integer >= {least}")


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
