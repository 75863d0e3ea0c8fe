"""The client at a server that answers what steerserve never does: each answer ends in an error of the client's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, cast

import pytest

from steerserve import AsyncClient, Client, ServiceError
from steerserve.client import calls
from tests.client.awaiting import Awaiting

DEEP = b"[" * 100_000
EVENTS = {"content-type": "text/event-stream"}
CHUNK = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
ODD: dict[str, bytes] = {
    "html": b"<html><body>Sign in</body></html>",
    "nothing": b"",
    "null": b"null",
    "number": b"1",
    "list": b"[]",
    "deep": DEEP,
    "deep data": b'{"data": ' + DEEP,
    "null data": b'{"success": true, "data": null, "error": null}',
    "null error": b'{"success":false,"data":null,"error":null}',
    "text as error": b'{"success":false,"error":"no"}',
    "error without words": b'{"success":false,"error":{"code":null,"details":[1]}}',
    "no UTF-8": b'{"data": "\xff"}',
    "choices of null": b'{"model": "m", "choices": null}',
    "no choices": b'{"model": "m", "choices": []}',
    "choice of text": b'{"model": "m", "choices": ["a"], "service": 1}',
}


class Server(ThreadingHTTPServer):
    """Answers every request with the same status, headers and parts."""

    daemon_threads = True
    status = 200
    headers: ClassVar[dict[str, str]] = {}
    parts: Callable[[], Iterator[bytes]]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        one = cast("Server", self.server)
        self.send_response(one.status)
        for name, value in one.headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for part in one.parts():
                self.wfile.write(part)
        except OSError:
            return

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture(params=[Client, AsyncClient])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    server.status, Server.headers = 200, {}
    with asyncio.Runner() as runner:
        made = request.param(f"http://127.0.0.1:{server.server_port}", model="m")
        yield made if request.param is Client else cast("Client", Awaiting(made, runner))
        if request.param is Client:
            made.close()
        else:
            runner.run(made.close())


ASKS: dict[str, Callable[[Client], Any]] = {
    "record": lambda client: client.vectors.get("x"),
    "list": lambda client: client.models.list(),
    "job": lambda client: client.jobs.get("x"),
    "document": lambda client: client.vectors.export("x"),
    "chat": lambda client: client.chat("a"),
    "embed": lambda client: client.embed("a"),
    "stream": lambda client: list(client.chat("a", stream=True)),
}


@pytest.mark.parametrize("ask", ASKS)
def test_an_odd_answer_is_an_error_of_the_client(client: Client, server: Server, ask: str) -> None:
    for status in (200, 400, 502):
        for name, body in ODD.items():
            server.status, Server.headers = status, {"content-type": "application/json"}
            server.parts = lambda body=body: iter([body])
            if ask == "document" and status == 200 and name not in ("html", "nothing", "deep"):
                continue  # whatever is valid may be the content of a file
            with pytest.raises(ServiceError):
                ASKS[ask](client)


@pytest.mark.parametrize(
    "after", ["-5", "nan", "inf", "1e400", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "", "999999"]
)
def test_an_odd_retry_after_is_no_time_to_wait(client: Client, server: Server, after: str) -> None:
    server.status, Server.headers = 503, {"retry-after": after}
    server.parts = lambda: iter([b'{"success":false,"error":{"code":"QUEUE_FULL","message":"m"}}'])
    with pytest.raises(ServiceError) as refused:
        client.models.list()
    assert refused.value.code == "QUEUE_FULL"
    assert refused.value.retry_after == (999999 if after == "999999" else None)


@pytest.mark.parametrize("name", ["null", "number", "html", "deep", "text as error"])
def test_an_odd_line_of_a_stream_ends_it(client: Client, server: Server, name: str) -> None:
    Server.headers = EVENTS
    server.parts = lambda: iter([CHUNK, b"data: " + ODD[name] + b"\n\n"])
    with pytest.raises(ServiceError):
        list(client.complete("a", stream=True))


def test_an_answer_without_end_is_given_up(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CLIENT_ANSWER_BYTES", 1 << 20)
    for part in (b"a" * 65_536, b": a comment\n\n" * 5000, CHUNK * 1000):

        def endless(part: bytes = part) -> Iterator[bytes]:
            while True:
                yield part

        server.parts = endless
        for ask in (client.models.list, lambda: list(client.complete("a", stream=True))):
            with pytest.raises(ServiceError, match="more than 1048576 bytes"):
                ask()
