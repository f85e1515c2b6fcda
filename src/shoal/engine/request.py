"""A request on its way into the engine: checked, tokenized, complete."""

import msgspec

from shoal.engine.kv_transfer import KvTransferParams
from shoal.engine.sampling.params import SamplingParams


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `Frontend.prepare` makes and `EngineCore.add` takes. Everything in it has been validated."""

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    """With a seed, unless greedy."""
    priority: int = 0
    """Lower is served earlier."""
    cache_salt: str | None = None
    lora: str | None = None
    """The adapter it is computed with; None: the base model alone."""
    output: tuple[int, ...] = ()
    """Tokens that another replica has given already. What comes is what it would have given after them."""
    kv_transfer: KvTransferParams | None = None
    """The prompt's KV is to be kept for another replica, or to be taken over from one."""
    text_prompt: bool = False
    """The prompt came as text to be continued, so a leading space of the answer is part of it."""
