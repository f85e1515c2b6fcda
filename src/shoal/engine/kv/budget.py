"""How many KV blocks a rank gets, and what to say when that cannot work."""

from dataclasses import dataclass

import psutil

from shoal.engine.errors import OutOfMemory
from shoal.engine.machine import memory
from shoal.engine.options import EngineOptions

FREE_SHARE = 0.25
"""Share of the memory available after the weights are loaded that KV takes when nobody says how much. The rest is
for activations, the page cache of the next load, and neighbours on a shared host."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    num_blocks: int
    """Including the null block."""
    max_model_len: int


def available_memory() -> int:
    """Bytes this process may still take: what the host has free, or what its cgroup leaves, whichever is less."""
    found = memory()
    return found.usable if found is not None else int(psutil.virtual_memory().available)


def kv_budget(options: EngineOptions, block_bytes: int, model_limit: int, available: int) -> KvBudget:
    """Blocks and context length from what was asked and what there is; `block_bytes` is one block over all layers.

    Raises OutOfMemory, saying what would fit, when the memory asked for is not there or cannot hold one sequence of
    the length asked for.
    """
    block = options.block_size
    wanted_len = min(options.max_model_len or model_limit, model_limit)
    if options.num_blocks is not None:
        blocks = options.num_blocks
    elif options.kv_memory is not None:
        blocks = options.kv_memory // block_bytes
    else:
        needed = options.max_num_seqs * -(-wanted_len // block) + 1
        blocks = min(needed, int(available * (options.kv_share or FREE_SHARE)) // block_bytes)
    most = available // block_bytes
    if blocks > most:
        raise OutOfMemory(
            f"KV memory of {_size(blocks * block_bytes)} ({blocks} blocks) was asked for and {_size(available)} is "
            f"available: at most {most} blocks, {max(0, most - 1) * block} tokens, would fit"
        )
    capacity = (blocks - 1) * block
    if capacity < 2 or (options.max_model_len is not None and capacity < wanted_len):
        length = wanted_len if options.max_model_len is not None else 2
        raise OutOfMemory(
            f"{_size(max(0, blocks) * block_bytes)} of KV memory holds {max(0, capacity)} tokens, but one "
            f"sequence of max_model_len {length} needs {_size((-(-length // block) + 1) * block_bytes)}: "
            f"raise kv_memory, or set max_model_len to at most {max(0, capacity)}"
        )
    return KvBudget(blocks, min(wanted_len, capacity))


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
