"""HTTP in, bytes out: parse once, relay without re-serializing."""

from shoal.fleet.gateway.app import Gateway
from shoal.fleet.gateway.config import GatewayConfig, KeyConfig
from shoal.fleet.gateway.record import Observer, RequestRecord

__all__ = ["Gateway", "GatewayConfig", "KeyConfig", "Observer", "RequestRecord"]
