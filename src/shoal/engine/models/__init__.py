"""One file an architecture family: how layers are put together."""
