"""A model hub on a loopback port. It answers the requests of huggingface_hub, and makes the faults that a test asks
for.

`python -m tests.loopback_hub FOLDER` serves `FOLDER/<owner>/<name>/…` until Ctrl-C: set HF_ENDPOINT to what it prints.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PATIENCE = 30.0
_ROUTES = (
    (re.compile(r"/api/models"), "search"),
    (re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)/tree/(?P<rev>[^/]+)"), "tree"),
    (re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)/revision/(?P<rev>[^/]+)"), "info"),
    (re.compile(r"/api/(?P<repo>spaces/[^/]+/[^/]+)/tree/(?P<rev>[^/]+)"), "tree"),
    (re.compile(r"/api/(?P<repo>spaces/[^/]+/[^/]+)/revision/(?P<rev>[^/]+)"), "info"),
    (re.compile(r"/api/(?P<repo>spaces/[^/]+/[^/]+)"), "info"),
    (
        re.compile(
            r"/(?P<repo>(?:datasets|spaces)/[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)"
        ),
        "file",
    ),
    (re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<rev>[^/]+)/(?P<path>.+)"), "file"),
    (re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)"), "info"),
    (re.compile(r"/blob/(?P<digest>[0-9a-f]{64})"), "blob"),
)
_LFS = (".safetensors", ".gguf", ".bin")


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class Fault:
    """A fault in the answers to the next `times` requests whose `METHOD path` contains `match`.

    `status`, `headers` and `body` replace the answer. `cut` sends this many bytes of the right body, then resets the
    connection. `short` sends only this many bytes, with a Content-Length that fits them. `claim` sends this number as
    the Content-Length. `hold` sends this many bytes, sets `held`, and waits for `release`. `drip` sends this many bytes
    each hundredth of a second until `release` is set.
    """

    match: str
    times: int = 1_000_000
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None
    short: int | None = None
    claim: int | None = None
    hold: int | None = None
    drip: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


@dataclass
class Repo:
    """A repository. `extra` are further entries, which the listing has unchanged. `info` overrides facts."""

    files: dict[str, bytes]
    sha: str
    gated: str | bool = False
    private: bool = False
    tokens: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)


class LoopbackHub:
    """`with LoopbackHub() as hub: hub.add("acme/tiny", {"config.json": b"{}"})`."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.blobs: dict[str, bytes] = {}
        self.known_tokens: set[str] = set()
        self.blobs_at: str | None = None
        """The address to which requests for large files are redirected; None means that this hub serves them."""
        self.page = 1000
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Answer)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> LoopbackHub:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for fault in self.faults:
            fault.release.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, bytes], **facts: Any) -> Repo:
        """Add a repository. If it is gated or private, only its `tokens` have access."""
        blobs = {name: _digest(body) for name, body in sorted(files.items())}
        digest = hashlib.sha1(repr(blobs).encode()).hexdigest()
        repo = Repo(files, facts.pop("sha", digest), **facts)
        self.repos[name] = repo
        self.known_tokens.update(repo.tokens)
        self.blobs.update({blobs[name]: body for name, body in files.items()})
        return repo

    def fault(self, match: str, **how: Any) -> Fault:
        """Make this fault from now on."""
        made = Fault(match, **how)
        self.faults.append(made)
        return made

    def heal(self) -> None:
        """Make no more faults."""
        self.faults.clear()

    def asked(self, match: str) -> list[Seen]:
        """The requests so far whose `METHOD path` contains `match`."""
        with self._changed:
            return [seen for seen in self.seen if match in f"{seen.method} {seen.path}"]

    def wait_for(self, match: str, count: int = 1) -> None:
        """Block until `count` requests whose `METHOD path` contains `match` have arrived."""
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: sum(match in f"{s.method} {s.path}" for s in self.seen) >= count, PATIENCE
            )
        assert is_there, f"no {match!r} in {[seen.path for seen in self.seen]}"

    def record(self, seen: Seen) -> Fault | None:
        """Keep a request, and return the fault to make in its answer, if any."""
        with self._changed:
            self.seen.append(seen)
            self._changed.notify_all()
            for fault in self.faults:
                if fault.times > 0 and fault.match in f"{seen.method} {seen.path}":
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    hub: LoopbackHub
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: tests let clients break off their connections."""


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: tests read `seen` instead."""

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._seen = Seen(self.command, self.path, headers)
        self._fault = self.server.hub.record(self._seen)
        if self._fault and self._fault.status is not None:
            self._send(self._fault.status, self._fault.headers, self._fault.body)
            return
        parts = urlsplit(self.path)
        for pattern, name in _ROUTES:
            if found := pattern.fullmatch(parts.path):
                getattr(self, f"_{name}")(
                    **{key: unquote(value) for key, value in found.groupdict().items()}
                )
                return
        self._refuse(404, "")

    do_HEAD = do_GET

    # ------------------------------------------------------------- what a hub answers

    def _search(self) -> None:
        """The public repositories whose names contain the text and that have all tags."""
        asked = parse_qs(urlsplit(self.path).query)
        found = []
        for name, repo in self.server.hub.repos.items():
            tags = repo.info.get("tags", [])
            is_named = asked.get("search", [""])[0] in name
            if is_named and set(asked.get("filter", [])) <= set(tags) and not repo.private:
                facts = {fact: repo.info.get(fact) for fact in asked.get("expand[]", [])}
                found.append({"_id": "0", "id": name} | facts)
        self._json(found[: int(asked["limit"][0])])

    def _info(self, repo: str, rev: str = "main") -> None:
        if (held := self._repo(repo, rev, needs_access=False)) is None:
            return
        facts = {
            "_id": "0",
            "id": repo.removeprefix("spaces/"),
            "modelId": repo,
            "sha": held.sha,
            "private": held.private,
            "gated": held.gated,
            "siblings": [{"rfilename": path} for path in held.files],
        }
        self._json(facts | held.info)

    def _tree(self, repo: str, rev: str) -> None:
        if (held := self._repo(repo, rev, needs_access=False)) is None:
            return
        entries = [_entry(path, body) for path, body in held.files.items()] + held.extra
        folders = {path.rpartition("/")[0] for path in held.files} - {""}
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": f} for f in folders]
        cursor = re.search(r"cursor=(\d+)", self.path)
        begin = int(cursor[1]) if cursor else 0
        end = begin + self.server.hub.page
        following = f"{self.server.hub.url}{urlsplit(self.path).path}?recursive=true&cursor={end}"
        link = {"Link": f'<{following}>; rel="next"'} if end < len(entries) else {}
        self._json(entries[begin:end], link)

    def _file(self, repo: str, rev: str, path: str) -> None:
        if (held := self._repo(repo, rev, needs_access=True)) is None:
            return
        if path not in held.files:
            self._refuse(404, "EntryNotFound")
            return
        body, hub = held.files[path], self.server.hub
        digest = _digest(body)
        headers = {"X-Repo-Commit": held.sha, "ETag": f'"{_entry(path, body)["oid"]}"'}
        if path.endswith(_LFS):
            headers |= {"X-Linked-Size": str(len(body)), "X-Linked-Etag": f'"{digest}"'}
            if hub.blobs_at:
                target = f"{hub.blobs_at}/blob/{digest}?signature=secret"
                self._send(302, headers | {"Location": target}, b"")
                return
        self._body(body, headers | (self._fault.headers if self._fault else {}))

    def _blob(self, digest: str) -> None:
        self._body(self.server.hub.blobs[digest], {"ETag": f'"{digest}"'})

    def _repo(self, name: str, rev: str, *, needs_access: bool) -> Repo | None:
        """The repository; None if the request has been refused."""
        hub, token = self.server.hub, self._seen.token
        held = hub.repos.get(name)
        if token is not None and token not in hub.known_tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif held is None or (held.private and token not in held.tokens):
            self._refuse(404 if token else 401, "RepoNotFound" if token else "")
        elif rev not in ("main", held.sha):
            self._refuse(404, "RevisionNotFound")
        elif needs_access and held.gated and token not in held.tokens:
            self._refuse(403 if token else 401, "GatedRepo")
        else:
            return held
        return None

    # ------------------------------------------------------------- how it is sent

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(
            200, {"Content-Type": "application/json"} | (headers or {}), json.dumps(value).encode()
        )

    def _refuse(self, status: int, code: str, message: str = "no") -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(status, headers, json.dumps({"error": message}).encode())

    def _body(self, body: bytes, headers: dict[str, str]) -> None:
        """Send the whole body, or the part that the Range header asks for."""
        headers = {"Accept-Ranges": "bytes"} | headers
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self._seen.range or "")
        if wanted is None:
            self._send(200, headers, body)
        elif int(wanted[1]) >= len(body):
            self._send(416, {"Content-Range": f"bytes */{len(body)}"}, b"")
        else:
            begin, last = int(wanted[1]), len(body) - 1
            last = min(last, int(wanted[2] or last))
            content = f"bytes {begin}-{last}/{len(body)}"
            self._send(206, headers | {"Content-Range": content}, body[begin : last + 1])

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        fault = self._fault or Fault("")
        if fault.short is not None:
            body = body[: fault.short]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header(
                "Content-Length", str(len(body) if fault.claim is None else fault.claim)
            )
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.hold is not None:
            self._write(body[: fault.hold])
            fault.held.set()
            fault.release.wait(PATIENCE)
            body = body[fault.hold :]
        while fault.drip and body and not fault.release.wait(0.01):
            self._write(body[: fault.drip])
            body = body[fault.drip :]
        self._write(body if fault.cut is None else body[: fault.cut])
        if fault.cut is not None:
            linger = struct.pack("ii", 1, 0)  # closing resets the connection
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if fault.cut is not None or fault.claim is not None:
            self.close_connection = True

    def _write(self, body: bytes) -> None:
        self.wfile.write(body)
        self.wfile.flush()


@lru_cache(maxsize=256)
def _digest(body: bytes) -> str:
    """The SHA-256 of a file. Many tests add the same files, which take longer to read than the rest of the test."""
    return hashlib.sha256(body).hexdigest()


def _entry(path: str, body: bytes) -> dict[str, Any]:
    """The entry of a file in the listing."""
    oid = hashlib.sha1(b"blob %d\x00" % len(body) + body).hexdigest()
    entry: dict[str, Any] = {"type": "file", "oid": oid, "size": len(body), "path": path}
    if path.endswith(_LFS):
        digest = _digest(body)
        entry |= {"oid": "1" * 40, "lfs": {"oid": digest, "size": len(body), "pointerSize": 134}}
    return entry


def serve(folder: Path, say: Callable[[str], None]) -> None:
    with LoopbackHub() as hub:
        for config in folder.glob("*/*"):
            files = {p.relative_to(config).as_posix(): p for p in config.rglob("*") if p.is_file()}
            hub.add(
                config.relative_to(folder).as_posix(),
                {path: file.read_bytes() for path, file in files.items()},
            )
        say(hub.url)
        threading.Event().wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), print)
