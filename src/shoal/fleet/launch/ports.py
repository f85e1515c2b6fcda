"""Ports for replicas."""

import contextlib
import socket


def free_port_pair() -> int:
    """A port that is free now, and so is the one after it."""
    for _ in range(50):
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            if port >= 65534:
                continue
            with socket.socket() as second, contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                return port
    raise OSError("no two neighbouring ports are free")
