"""What one replica is told at start-up. Free of torch, so the command line can check it cheaply."""

from typing import Literal

import msgspec

from shoal.engine.errors import InvalidOption

DTYPES = ("auto", "float32", "bfloat16")


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
    device: str = "cpu"
    block_size: int = 16
    """Tokens of KV a block."""
    num_blocks: int | None = None
    kv_memory: int | None = None
    max_model_len: int | None = None
    """Longest prompt plus output; default: the model's own limit, or what the KV memory holds."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """Token budget of a step: prefill chunks and decode rows together."""
    prefix_caching: bool = True
    seed: int | None = None
    """Seeds requests that bring none (seed, seed + 1, …), so that a whole run can be repeated. None: at random."""
    threads: int | None = None
    """Compute threads of a rank; default: the cores this process may use."""
    cache_dir: str | None = None
    offline: bool = False
    step_timeout: float = 300.0
    """Seconds after which a step that has not come back is a dead rank."""

    def validate(self) -> None:
        """Raise `InvalidOption` for the first field that cannot work."""
        if not self.model:
            raise InvalidOption("model", self.model, "a catalog name, path, hub id or URL")
        if self.dtype not in DTYPES:
            raise InvalidOption("dtype", self.dtype, "one of " + ", ".join(DTYPES))
        if self.block_size not in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            raise InvalidOption("block_size", self.block_size, "a power of two from 1 to 256")
        _at_least("num_blocks", self.num_blocks, 2)
        _at_least("kv_memory", self.kv_memory, 1)
        _at_least("max_model_len", self.max_model_len, 2)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("threads", self.threads, 1)
        if not self.step_timeout > 0:
            raise InvalidOption("step_timeout", self.step_timeout, "seconds > 0")
        if self.num_blocks is not None and self.kv_memory is not None:
            raise InvalidOption("kv_memory", self.kv_memory, "either num_blocks or kv_memory, not both")


def _at_least(field: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise InvalidOption(field, value, f"an integer >= {least}")
