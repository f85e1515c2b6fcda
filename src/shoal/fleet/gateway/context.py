"""What a request is answered with: the gateway's parts, and what is known of the request itself."""

from dataclasses import dataclass

from starlette.types import Send

from shoal.fleet.gateway.body import Parsed
from shoal.fleet.gateway.config import GatewayConfig
from shoal.fleet.gateway.dispatch import Dispatcher
from shoal.fleet.gateway.record import Observers, RequestRecord
from shoal.fleet.gateway.reply import Headers
from shoal.fleet.gateway.split import Splitter
from shoal.fleet.gateway.stored import StoredResponses
from shoal.fleet.registry import Registry
from shoal.policy.retry import RetryPolicy
from shoal.policy.routing import RouteRequest


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of one gateway that all its requests share."""

    registry: Registry
    dispatcher: Dispatcher
    splitter: Splitter
    retries: RetryPolicy
    config: GatewayConfig
    observers: Observers
    stored: StoredResponses


@dataclass(slots=True)
class AdmittedRequest:
    """One request that was let in."""

    record: RequestRecord
    parsed: Parsed
    route: RouteRequest
    forwarded: Headers
    """Headers for the replica."""
    send: Send
