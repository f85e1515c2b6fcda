"""A prompt's token ids, asked of a replica: what an exact index needs where the client sent text.

Only a replica knows its chat template and tokenizer. The question costs a millisecond or so, the answer can save a
prefill; it is asked for prompts long enough, of replicas that announce their blocks, and never waited for long.
"""

import asyncio
from collections import OrderedDict

import msgspec
from msgspec import Raw

from shoal.fleet.gateway.body import Parsed
from shoal.fleet.registry import Registry, Replica
from shoal.policy.outcomes import LegFailed
from shoal.policy.routing import RouteRequest
from shoal.policy.routing.contracts import Index

_SECONDS = 0.5
_LEAST_TOKENS = 64
_MOST_TOKENS = 200_000
"""By the router's estimate; no replica tokenizes more in the time it is given."""
_CACHED = 256
_FIELDS = ("model", "messages", "prompt", "tools", "chat_template_kwargs", "add_generation_prompt")


class _Tokens(msgspec.Struct):
    tokens: list[int]


_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode = msgspec.json.Decoder(_Tokens).decode


class TokenSource:
    """Asks `/tokenize`, which vLLM and Shoal serve; remembers the last few answers."""

    def __init__(self, registry: Registry, index: Index | None) -> None:
        self._registry = registry
        self._index = index if index is not None and "tokens" in index.needs else None
        self._cache: OrderedDict[bytes, list[int]] = OrderedDict()
        self.asked = self.failed = 0

    def wants(self, route: RouteRequest) -> bool:
        """Whether the answer could change where it goes."""
        return (
            self._index is not None
            and route.tokens is None
            and _LEAST_TOKENS <= route.prompt_tokens <= _MOST_TOKENS
            and len(self._registry) > 1
            and self._someone(route.model) is not None
        )

    async def fill(self, parsed: Parsed, route: RouteRequest) -> None:
        """Set `route.tokens` if somebody answers in time; else nothing."""
        key = route.tail + b"".join(route.blocks[-1:])
        tokens = self._cache.get(key) if key else None
        if tokens is None:
            tokens = await self._ask(parsed, route.model)
            if tokens is None:
                return
            if key:
                self._cache[key] = tokens
                while len(self._cache) > _CACHED:
                    self._cache.popitem(last=False)
        route.tokens = tokens
        route.prompt_tokens = len(tokens)

    def _someone(self, model: str) -> Replica | None:
        index = self._index
        if index is None:
            return None
        for replica in self._registry.replicas:
            state = replica.state
            if state.healthy and not state.draining and model in state.models and index.knows(replica.name):
                return replica
        return None

    async def _ask(self, parsed: Parsed, model: str) -> list[int] | None:
        replica = self._someone(model)
        if replica is None:
            return None
        asked = _fields(parsed.body)
        asked["model"] = Raw(msgspec.json.encode(replica.handle.engine_model or model))
        body = msgspec.json.encode({name: asked[name] for name in _FIELDS if name in asked})
        self.asked += 1
        try:
            status, data = await replica.endpoint.post(b"/tokenize", body, seconds=_SECONDS)
            if status == 200:
                return await asyncio.to_thread(_tokens, data) if len(data) > 2**20 else _tokens(data)
        except (LegFailed, TimeoutError, msgspec.MsgspecError):
            pass
        self.failed += 1
        return None


def _tokens(data: bytes) -> list[int]:
    return _decode(data).tokens
