"""Small HTTP servers that speak enough of S3, of the Hugging Face hub and of a package index to be pulled from.

A `Store` holds files and remembers what was asked of it. Its gate can hold back the rest of a body, so that a
download can be met half-way.
"""

import hashlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 1 << 16
GATE_DEADLINE_SECONDS = 60.0


@dataclass
class Store:
    """Files by path, and the requests made for their bodies as (path, first byte)."""

    files: dict[str, bytes]
    hold_after: int | None = None
    """Bodies stop at this absolute offset until `gate` is set."""
    held: set[str] | None = None
    """The paths this is done to; None: all."""
    gate: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, int]] = field(default_factory=list)
    status: int | None = None
    """Answer everything with this."""
    headers: dict[str, str] = field(default_factory=dict)
    promised: dict[str, str] = field(default_factory=dict)
    """sha256 the hub states for a file, where it is to differ from the file's own."""
    url: str = ""

    def fetched(self, path: str) -> list[int]:
        """Offsets from which the body of a path was asked for."""
        return [start for name, start in self.requests if name == path]


class Handler(http.server.BaseHTTPRequestHandler):
    """Files with ranges; subclasses add what a protocol needs beside them."""

    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if self.store.status is not None:
            self.send(self.store.status, b"", self.store.headers, body=body)
            return
        parsed = urllib.parse.urlsplit(self.path)
        self.route(urllib.parse.unquote(parsed.path), dict(urllib.parse.parse_qsl(parsed.query)), body=body)

    def route(self, path: str, query: dict[str, str], *, body: bool) -> None:
        raise NotImplementedError

    def send(self, status: int, data: bytes, headers: dict[str, str] | None = None, *, body: bool) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def send_file(self, path: str, headers: dict[str, str], *, body: bool) -> None:
        data = self.store.files[path]
        first, last, status = 0, len(data) - 1, 200
        headers = {"Accept-Ranges": "bytes", "Last-Modified": formatdate(1_700_000_000, usegmt=True)} | headers
        if asked := self.headers.get("Range"):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end or last), last), 206
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(last - first + 1)}).items():
            self.send_header(name, value)
        self.end_headers()
        if not body:
            return
        self.store.requests.append((path, first))
        for start in range(first, last + 1, PIECE):
            held = self.store.held is None or path in self.store.held
            if held and self.store.hold_after is not None and start >= self.store.hold_after:
                self.wfile.flush()
                self.store.gate.wait(GATE_DEADLINE_SECONDS)
            try:
                self.wfile.write(data[start : min(start + PIECE, last + 1)])
            except OSError:  # the client was killed
                self.close_connection = True
                return


class S3Handler(Handler):
    """Path-style S3: HEAD and GET of objects, ListObjectsV2 of a bucket."""

    def route(self, path: str, query: dict[str, str], *, body: bool) -> None:
        bucket, _, key = path.lstrip("/").partition("/")
        if not key:
            self.send(200, self._listing(bucket, query), {"Content-Type": "application/xml"}, body=body)
        elif path.lstrip("/") in self.store.files:
            name = path.lstrip("/")
            etag = hashlib.md5(self.store.files[name], usedforsecurity=False).hexdigest()
            self.send_file(name, {"ETag": f'"{etag}"'}, body=body)
        else:
            text = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
            self.send(404, text, {"Content-Type": "application/xml"}, body=body)

    def _listing(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        rows = []
        for name, data in self.store.files.items():
            key = name.removeprefix(f"{bucket}/")
            if key.startswith(prefix) and "/" not in key[len(prefix) :]:
                etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
                rows.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                    f'<ETag>"{etag}"</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>'
                )
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows)}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
        ).encode()


class HubHandler(Handler):
    """The hub's model info, tree and file endpoints. Store paths are `org/name/file`; weights are LFS files."""

    def route(self, path: str, query: dict[str, str], *, body: bool) -> None:
        parts = path.lstrip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._api("/".join(parts[2:4]), parts[4:], body=body)
        elif len(parts) >= 5 and parts[2] == "resolve" and f"{parts[0]}/{parts[1]}/{parts[4]}" in self.store.files:
            name = f"{parts[0]}/{parts[1]}/{parts[4]}"
            self.send_file(name, {"ETag": f'"{self._etag(name)}"', "X-Repo-Commit": COMMIT}, body=body)
        else:
            self._missing("EntryNotFound", body=body)

    def _api(self, repo: str, rest: list[str], *, body: bool) -> None:
        names = [n for n in self.store.files if n.startswith(f"{repo}/")]
        if not names:
            self._missing("RepoNotFound", body=body)
        elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
            self._missing("RevisionNotFound", body=body)
        elif rest[:1] == ["tree"]:
            rows = [
                {"type": "file", "path": n.split("/")[-1], "size": len(self.store.files[n]), "oid": self._etag(n)}
                | ({"lfs": self._lfs(n)} if self._is_lfs(n) else {})
                for n in names
            ]
            self._json(rows, body=body)
        else:
            siblings = [
                {"rfilename": n.split("/")[-1], "size": len(self.store.files[n]), "blobId": self._etag(n)}
                | ({"lfs": self._lfs(n)} if self._is_lfs(n) else {})
                for n in names
            ]
            self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}, body=body)

    def _json(self, value: object, *, body: bool) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body=body)

    def _missing(self, code: str, *, body: bool) -> None:
        self.send(404, b"{}", {"X-Error-Code": code, "Content-Type": "application/json"}, body=body)

    def _is_lfs(self, name: str) -> bool:
        return name.endswith((".safetensors", ".gguf", ".bin"))

    def _lfs(self, name: str) -> dict[str, object]:
        digest, size = self.promised(name), len(self.store.files[name])
        return {"oid": digest, "sha256": digest, "size": size, "pointerSize": 134}

    def _etag(self, name: str) -> str:
        if self._is_lfs(name):
            return self.promised(name)
        return hashlib.sha1(self.store.files[name], usedforsecurity=False).hexdigest()

    def promised(self, name: str) -> str:
        return self.store.promised.get(name) or hashlib.sha256(self.store.files[name]).hexdigest()


class IndexHandler(Handler):
    """A package index (PEP 503): /simple/PROJECT/ lists the wheels, /wheels/FILE serves them."""

    def route(self, path: str, query: dict[str, str], *, body: bool) -> None:
        if path.startswith("/simple/"):
            project = path.split("/")[2].replace("-", "_")
            links = [f'<a href="/wheels/{n}">{n}</a>' for n in self.store.files if n.startswith(f"{project}-")]
            status = 200 if links else 404
            self.send(status, "".join(links).encode(), {"Content-Type": "text/html"}, body=body)
        else:
            self.send_file(path.removeprefix("/wheels/"), {}, body=body)


@contextmanager
def serving(store: Store, handler: type[Handler]) -> Iterator[Store]:
    """Serve a store on a free port of the loopback until the block ends."""
    bound = type(handler.__name__, (handler,), {"store": store})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield store
    finally:
        store.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def until(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    """Wait for something another process does; fail with `what` when it does not happen."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        time.sleep(0.02)
