"""A gate between a terminal and a service, which holds a streamed answer in its middle."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2

PIECES = 3
"""Pieces of a text that pass before the answer is held."""
PATIENCE = 90


class Gate:
    """Passes every request on to the service. Of a streamed answer the first pieces pass; the rest is held until the
    client leaves, or the gate dies."""

    def __init__(self, service: str) -> None:
        self._held: queue.Queue[tuple[str, socket.socket]] = queue.Queue()
        self._left: queue.Queue[None] = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(service))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def held(self) -> tuple[str, socket.socket]:
        """The text that has passed of an answer, once the rest is held, and the connection of the client."""
        return self._held.get(timeout=PATIENCE)

    def wait_until_left(self) -> None:
        """Return once the client of a held answer has left."""
        self._left.get(timeout=PATIENCE)

    def die(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self, service: str) -> type[BaseHTTPRequestHandler]:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.close_connection = True
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                kind = {"content-type": self.headers.get("content-type", "")}
                asked = {"content": body, "headers": kind, "timeout": PATIENCE}
                with httpx2.stream(self.command, service + self.path, **asked) as answer:  # type: ignore[arg-type]
                    told = answer.headers["content-type"]
                    self.send_response(answer.status_code)
                    self.send_header("content-type", told)
                    self.send_header("transfer-encoding", "chunked")
                    self.send_header("connection", "close")
                    self.end_headers()
                    if told.startswith("text/event-stream"):
                        self._hold(answer.iter_lines())
                    else:
                        self._chunk(answer.read())
                        self._chunk(b"")

            do_POST = do_PUT = do_DELETE = do_GET

            def _chunk(self, content: bytes) -> None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

            def _hold(self, lines: Iterator[str]) -> None:
                passed: list[str] = []
                while len(passed) < PIECES:
                    line = next(lines)
                    self._chunk(f"{line}\n".encode())
                    if line.startswith("data: "):
                        text = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                        passed += [text["content"]] if text.get("content") else []
                gate._held.put(("".join(passed), self.connection))
                with suppress(OSError):
                    self.connection.recv(1)  # until one of both sides ends the connection
                gate._left.put(None)

            def log_message(self, *_: object) -> None: ...

        return Handler


@contextmanager
def gate(service: str) -> Iterator[Gate]:
    """A gate to a service, which dies with the block."""
    made = Gate(service)
    try:
        yield made
    finally:
        made.die()
