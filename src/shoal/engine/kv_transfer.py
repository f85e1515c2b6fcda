"""What passes through the client between the two replicas: where the KV is, signed by who holds it.

The fields are those of vLLM's NIXL connector. A replica connects only to what a replica with the same key has
named: whoever can send a request must not be able to make it fetch from anywhere, or to plant KV in its cache.
"""

import hashlib
import hmac

import msgspec


class KvTransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """`kv_transfer_params` of a request or an answer. Fields of other engines are passed over."""

    do_remote_decode: bool = False
    """In a request: keep the prompt's KV for another replica, and say in the answer where it is."""
    do_remote_prefill: bool = False
    """In a request: the prompt's KV is at the place that follows."""
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    """Names the blocks; can't be guessed."""
    remote_block_ids: list[int] | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    signature: str | None = None
    """HMAC-SHA256 of the other fields, in hex."""


def signed(params: KvTransferParams, key: bytes) -> KvTransferParams:
    return msgspec.structs.replace(params, signature=_signature(params, key))


def genuine(params: KvTransferParams, key: bytes) -> bool:
    """Whether a holder of `key` made them. Compares in constant time."""
    return hmac.compare_digest(_signature(params, key), params.signature or "")


def _signature(params: KvTransferParams, key: bytes) -> str:
    fields = msgspec.structs.astuple(msgspec.structs.replace(params, signature=None))
    return hmac.new(key, msgspec.json.encode(fields), hashlib.sha256).hexdigest()
