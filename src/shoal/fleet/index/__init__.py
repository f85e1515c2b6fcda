"""Which replica holds which block: KV events from the wire into the router's index."""

from shoal.fleet.index.events import BadEvents, decode_batch
from shoal.fleet.index.follower import Follower, Followers

__all__ = ["BadEvents", "Follower", "Followers", "decode_batch"]
