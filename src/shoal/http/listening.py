"""The listening socket: bound before anything slow is done, with errors that say what to do."""

import errno
import socket


class AddressInUse(Exception):
    """The address can't be listened on; the message says why and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket on the first address of `host`; port 0: any free one. Raises `AddressInUse`."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressInUse(f"cannot resolve host {host!r}: {error.strerror}") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        where = f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            reason = f"{where} is in use by another program; choose another --port, or 0 for any free one"
        elif error.errno == errno.EACCES:
            reason = f"{where} may not be listened on by this user; choose a --port from 1024 to 65535"
        else:
            reason = f"cannot listen on {where}: {error.strerror}"
        raise AddressInUse(reason) from None
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """The endpoint's base URL as a client on this machine can use it."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
