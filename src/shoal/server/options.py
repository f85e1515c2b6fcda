"""What one replica's endpoint is told at start-up. It imports no web framework."""

from typing import Annotated

import msgspec

from shoal.specs.option import Option


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the endpoint listens, and its limits. `shoal serve`'s options are made of these fields."""

    host: Annotated[str, Option("Address to listen on; 0.0.0.0 opens it to the network.")] = "127.0.0.1"
    port: Annotated[int, Option("0: any free port.", minimum=0, maximum=65535)] = 8000
    """Printed when ready."""
    cors_origins: Annotated[
        tuple[str, ...],
        Option("Web page's origin that may call from a browser; several times, or *.", name="cors_origin"),
    ] = ()
    api_key: Annotated[
        str | None, Option("Key that clients must send; better by environment.", variable="SHOAL_API_KEY")
    ] = None
    kv_key: str | None = None
    """What replicas that hand KV to each other share; needed with the engine's `kv_transfer`."""
    max_body_bytes: Annotated[
        int, Option("Largest request body, MiB.", name="max_body_mb", minimum=1, unit=2**20)
    ] = 16 * 2**20
    body_seconds: float = 60.0
    """A body must have arrived within this."""
    drain_seconds: Annotated[float, Option("Time for requests in flight on shutdown.", minimum=0)] = 30.0
    heartbeat_seconds: Annotated[
        float, Option("A stream silent for so long gets an SSE comment; 0: never.", minimum=0)
    ] = 10.0
    """So that no proxy takes the stream for dead."""
    access_log: Annotated[bool, Option("One JSON line per request on standard error.")] = False
    aliases: tuple[str, ...] = ()
    """Further names that clients may use for the model."""

    def __repr__(self) -> str:
        return f"ServerOptions(host={self.host!r}, port={self.port}, api_key={'set' if self.api_key else 'none'})"
