"""A fleet's part in shared state: connected as `fleet.yaml` says, handed from gateway to gateway at a reload."""

import asyncio
import os
from typing import Any

from shoal.fleet.config import SharedConfig
from shoal.fleet.gateway import Gateway
from shoal.fleet.registry import Registry
from shoal.fleet.shared import SharedState


class MissingRedis(ValueError):
    """The package that speaks to Redis is not installed."""


class Sharing:
    """Owned by the fleet's event loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._config: SharedConfig | None = None
        self._client: Any = None
        self._attaching = asyncio.Lock()
        self.state: SharedState | None = None
        """None: nothing is shared."""

    async def attach(self, gateway: Gateway, config: SharedConfig | None) -> None:
        """Let a new gateway share its decisions from now on. Raises `MissingRedis`."""
        async with self._attaching:
            await self._attach(gateway, config)

    async def _attach(self, gateway: Gateway, config: SharedConfig | None) -> None:
        state = self.state
        if state is not None and (config != self._config or state.router is not gateway.router):
            await self.close()
            state = None
        if state is None and config is not None:
            self._config, self._client = config, connect(config)
            state = self.state = SharedState(self._client, self._registry, gateway.router, prefix=config.prefix)
            gateway.share(state)
            await state.start()
        elif state is not None:
            gateway.share(state)

    async def close(self) -> None:
        """Take this gateway's load out of the shared state and hang up."""
        state, self.state = self.state, None
        client, self._client = self._client, None
        if state is not None:
            await state.stop()
        if client is not None:
            await client.aclose()


def connect(config: SharedConfig) -> Any:
    """Return a client; it connects when it is used. Raises `MissingRedis`."""
    try:
        from redis.asyncio import Redis
    except ImportError as error:
        raise MissingRedis(f"shared state needs one more package: pip install 'shoal[redis]' ({error})") from None
    password = os.environ.get(config.password_env) if config.password_env is not None else None
    return Redis.from_url(config.redis, password=password, socket_connect_timeout=1.0)
