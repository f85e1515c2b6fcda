"""Two network namespaces as two hosts, joined by a link that can be changed while programs talk over it.

    host 0, 10.77.0.1   ── veth, tbf ────────────────  host 1, 10.77.0.2      a link without delay
                        ── tun, tbf ── relay ── tun ──                        a link with delay (wire/relay.py)

Programs bind to one address; a route says which of the two wires carries it. Needs root, iproute2 and /dev/net/tun.
Both names, and every process started inside, are gone when the context ends, however it ends; a run that was killed
is cleaned up by the next (names carry the process id).
"""

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PREFIX = "shoalwire"
_MTU = 9000
"""Jumbo frames: the relay spends its time by the packet."""
_BURST = 64 * 1024
_PATIENCE = 10.0
"""Seconds that a process is given to end by itself."""


class Unavailable(Exception):
    """This machine cannot make such hosts; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A link's make-up."""

    name: str
    rate: float | None
    """Bytes a second in each direction; None: as fast as the kernel copies."""
    delay: float
    """Seconds, one way."""


@dataclass(slots=True)
class Hosts:
    """Two namespaces, joined. Made by `hosts`."""

    names: tuple[str, str]
    relay: "subprocess.Popen[bytes]"
    running: list["subprocess.Popen[str]"]

    addresses = ("10.77.0.1", "10.77.0.2")
    interface = "tun"

    def use(self, wire: Wire) -> None:
        """Have everything between the hosts travel over `wire` from now on, connections that are open too."""
        device = "tun" if wire.delay else "veth"
        assert self.relay.stdin is not None
        self.relay.stdin.write(f"{wire.delay}\n".encode())
        self.relay.stdin.flush()
        for host, other in ((0, 1), (1, 0)):
            inside = self.names[host]
            # Each way is shaped where it leaves, so both have the whole rate.
            _quiet("tc", "-n", inside, "qdisc", "del", "dev", device, "root")
            if wire.rate is not None:
                shape = ("rate", f"{int(wire.rate * 8)}bit", "burst", str(_BURST), "latency", "400ms")
                _run("tc", "-n", inside, "qdisc", "add", "dev", device, "root", "tbf", *shape)
            way = ("dev", device, "src", self.addresses[host])
            _run("ip", "-n", inside, "route", "replace", f"{self.addresses[other]}/32", *way)

    def start(
        self, host: int, command: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[str]":
        """A process on a host, talking over pipes; its errors go to `log`. It ends with the context."""
        with log.open("a") as errors:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *command],
                # Nobody answers name look-ups in there, and rendezvous makes some.
                env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", **environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.running.append(process)
        return process


@contextlib.contextmanager
def hosts() -> Iterator[Hosts]:
    """Raises Unavailable where the kernel or the user's rights don't allow it."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        raise Unavailable("network namespaces need root and /dev/net/tun")
    _sweep()
    names = (f"{_PREFIX}-{os.getpid()}-a", f"{_PREFIX}-{os.getpid()}-b")
    running: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminable())
        for name in names:
            stack.callback(_end_namespace, name)
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            # bbr paces by what it has seen, which of short messages is little; idle gaps are the benchmark's own.
            for setting in ("tcp_congestion_control=reno", "tcp_slow_start_after_idle=0"):
                _run("ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{setting}")
        relay = stack.enter_context(_relay(names))
        stack.callback(_end_processes, running)
        _veth(names)
        yield Hosts(names, relay, running)


def _veth(names: tuple[str, str]) -> None:
    peer = ("peer", "name", "veth", "netns", names[1])
    _run("ip", "link", "add", "name", "veth", "netns", names[0], "type", "veth", *peer)
    for name in names:
        _run("ip", "-n", name, "link", "set", "veth", "mtu", str(_MTU), "up")


@contextlib.contextmanager
def _relay(names: tuple[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A TUN device in each namespace, named tun, and the process that joins them; the devices end with it."""
    ends: list[int] = []
    try:
        for name, address in zip(names, Hosts.addresses, strict=True):
            temporary = f"sw{os.getpid() % 100000}{len(ends)}"
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            ends.append(end)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", temporary.encode(), _IFF_TUN | _IFF_NO_PI))
            # A device may move while a process holds it.
            _run("ip", "link", "set", temporary, "netns", name)
            _run("ip", "-n", name, "link", "set", temporary, "name", "tun")
            _run("ip", "-n", name, "address", "add", f"{address}/32", "dev", "tun")
            _run("ip", "-n", name, "link", "set", "tun", "mtu", str(_MTU), "txqueuelen", "1000", "up")
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("relay.py")), *map(str, ends)],
            stdin=subprocess.PIPE,
            pass_fds=ends,
            start_new_session=True,
        )
    finally:
        for end in ends:
            os.close(end)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by way of the contexts too."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_processes(running: Sequence["subprocess.Popen[str]"]) -> None:
    """Closed pipes tell them to end; those that don't are killed, with their children."""
    for process in running:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
    deadline = time.monotonic() + _PATIENCE
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _end_namespace(name: str) -> None:
    pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
    for pid in pids.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _quiet("ip", "netns", "del", name)


def _sweep() -> None:
    """Remove what runs that were killed outright have left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, _, _ = line.partition(" ")
        if name.startswith(f"{_PREFIX}-") and not Path(f"/proc/{name.split('-')[1]}").exists():
            _end_namespace(name)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")


def _quiet(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)


def line(stream: IO[str] | None, process: "subprocess.Popen[str]", what: str) -> str:
    """The next line that a process writes. Raises RuntimeError if it ended instead."""
    assert stream is not None
    read = stream.readline()
    if not read:
        raise RuntimeError(f"{what} ended with {process.wait(_PATIENCE)} and said nothing")
    return read
