"""A prompt's token ids, asked of a replica: what an exact index needs where the client sent text.

Only a replica knows its chat template and tokenizer. The question costs a millisecond or so, the answer can save a
prefill; which replica is asked, and for which prompts, is decided by `Router.token_source`.
"""

import asyncio
from collections import OrderedDict

import msgspec
from msgspec import Raw

from shoal.fleet.gateway.body import Parsed
from shoal.fleet.registry import Registry
from shoal.policy.outcomes import LegFailed
from shoal.policy.routing import RouteRequest

_SECONDS = 0.5
_CACHED = 256
_FIELDS = ("model", "messages", "prompt", "tools", "chat_template_kwargs", "add_generation_prompt")


class _Tokens(msgspec.Struct):
    tokens: list[int]


_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.Decoder(_Tokens).decode


class TokenSource:
    """Asks `/tokenize`, which vLLM and Shoal serve; remembers the last few answers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._cache: OrderedDict[bytes, list[int]] = OrderedDict()

    async def fill(self, parsed: Parsed, route: RouteRequest, source: str) -> None:
        """Set `route.tokens` if the replica `source` answers in time; else nothing."""
        key = route.tail + b"".join(route.blocks[-1:])
        tokens = self._cache.get(key) if key else None
        if tokens is None:
            tokens = await self._ask(parsed, route.model, source)
            if tokens is None:
                return
            if key:
                self._cache[key] = tokens
                while len(self._cache) > _CACHED:
                    self._cache.popitem(last=False)
        route.tokens = tokens
        route.prompt_tokens = len(tokens)

    async def _ask(self, parsed: Parsed, model: str, source: str) -> list[int] | None:
        replica = self._registry.get(source)
        asked = _fields(parsed.body)
        asked["model"] = Raw(msgspec.json.encode(replica.handle.engine_model or model))
        body = msgspec.json.encode({name: asked[name] for name in _FIELDS if name in asked})
        try:
            status, data = await replica.endpoint.post(b"/tokenize", body, seconds=_SECONDS)
            if status == 200:
                return await asyncio.to_thread(_tokens, data) if len(data) > 2**20 else _tokens(data)
        except (LegFailed, TimeoutError, msgspec.MsgspecError):
            pass
        return None


def _tokens(data: bytes) -> list[int]:
    return _decode(data).tokens
