"""What a client may do on a connection before and while it makes a request: raw sockets against a running service."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx2
import pytest

from steerserve import demo
from steerserve.http import connections
from steerserve.http.connections import Connections, Place
from steerserve.rules.bounds import HEAD_BYTES, PIPELINED_REQUESTS, RESERVED_CONNECTIONS
from steerserve.settings import Settings
from tests.conftest import Start
from tests.service import Running, load_demo, running

PATIENCE = 60.0
HOST = b"Host: localhost\r\n"
ALIVE = b"GET /api/health HTTP/1.1\r\n" + HOST + b"\r\n"
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose limits of time are half a second."""
    seconds = 0.5
    with running(
        tmp_path_factory.mktemp("tight"),
        request_headers_timeout=seconds,
        request_body_timeout=seconds,
        answer_stall_timeout=seconds,
    ) as live:
        yield live


@contextmanager
def linked(live: Running, room: int | None = None) -> Iterator[socket.socket]:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.socket() as link:
        if room is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        link.settimeout(PATIENCE)
        link.connect((host, int(port)))
        yield link


def pour(link: socket.socket, data: bytes) -> None:
    """Send the data. The service may close the connection meanwhile."""
    with suppress(OSError):
        link.sendall(data)


def until_closed(link: socket.socket) -> bytes:
    """Everything that the service sends until it closes the connection."""
    text = b""
    try:
        while part := link.recv(65536):
            text += part
    except ConnectionResetError:
        pass
    return text


def answer_to(live: Running, data: bytes) -> bytes:
    """Everything that the service sends to these bytes, until it closes the connection."""
    with linked(live) as link:
        pour(link, data)
        return until_closed(link)


def parts(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """The status, the headers and the JSON of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body) if body else None


def check_refused(answer: bytes, status: int, code: str) -> None:
    """The answer is one refusal in the form of `/api`, and its connection is closed."""
    got, headers, body = parts(answer)
    assert (got, body["error"]["code"]) == (status, code)
    assert (body["success"], body["data"]) == (False, None)
    assert headers["connection"] == "close"


def read_answer(link: socket.socket) -> tuple[int, bytes]:
    """One answer with a Content-Length; the connection stays open."""
    text = b""
    while (end := text.find(b"\r\n\r\n")) < 0:
        text += _more(link, text)
    length = re.search(rb"content-length: (\d+)", text)
    assert length is not None, text
    whole = end + 4 + int(length[1])
    while len(text) < whole:
        text += _more(link, text)
    assert len(text) == whole
    return int(text.split()[1]), text[end + 4 :]


def _more(link: socket.socket, text: bytes) -> bytes:
    part = link.recv(65536)
    assert part, text
    return part


def is_alive(live: Running) -> bool:
    return live.http.get("/api/health").status_code == 200


# ---------------------------------------------------------------- how large


ENDLESS = {
    "one value": b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * MEGABYTE,
    "one name": b"GET / HTTP/1.1\r\n" + HOST + b"X" * MEGABYTE,
    "many headers": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * (MEGABYTE // 6),
    "request line": b"GET /" + b"a" * MEGABYTE,
    "query": b"GET /api/models?" + b"a" * MEGABYTE,
    "blank lines": b"\r\n" * (MEGABYTE // 2),
    "blanks in a value": b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b" " * MEGABYTE,
}
CHUNKED = b"POST /api/models HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n"
CHUNKED += b"Content-Type: application/json\r\n\r\n"
ENDLESS_BODIES = {
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\n" + b"X: a\r\n" * (MEGABYTE // 6),
    "one trailer": CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"a" * MEGABYTE,
    "extension": CHUNKED + b"2;" + b"a" * MEGABYTE,
    "extensions": CHUNKED + (b"1;" + b"a" * 1000 + b"\r\n \r\n") * 1000,
    "digits of a chunk": CHUNKED + b"0" * MEGABYTE,
}


@pytest.mark.parametrize("name", [*ENDLESS, *ENDLESS_BODIES])
def test_bytes_beside_the_body_are_bounded(shared: Running, name: str) -> None:
    answer = answer_to(shared, (ENDLESS | ENDLESS_BODIES)[name])
    check_refused(answer, 431, "HEADERS_TOO_LARGE")
    assert is_alive(shared)


def test_headers_that_end_within_the_limit_are_served_and_larger_ones_are_not(
    shared: Running,
) -> None:
    def ask(size: int) -> bytes:
        head = b"GET /api/health HTTP/1.1\r\n" + HOST + b"Connection: close\r\nX: "
        return answer_to(shared, head + b"a" * (size - len(head) - 4) + b"\r\n\r\n")

    assert parts(ask(HEAD_BYTES - 100))[0] == 200
    assert parts(ask(HEAD_BYTES + 10_000))[0] == 431


def test_the_refusal_of_large_headers_has_the_form_of_its_path(shared: Running) -> None:
    asked = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"X: " + b"a" * MEGABYTE
    status, headers, body = parts(answer_to(shared, asked))
    assert (status, body["error"]["code"]) == (431, "headers_too_large")
    assert body["error"]["type"] == "invalid_request_error"
    assert headers["x-service-batch"] == "extra_messages"
    asked = b"GET /api/models HTTP/1.1\r\n" + HOST + b"X: " + b"a" * MEGABYTE
    check_refused(answer_to(shared, asked), 431, "HEADERS_TOO_LARGE")


def test_large_headers_after_a_first_request_are_refused_too(shared: Running) -> None:
    with linked(shared) as link:
        link.sendall(ALIVE)
        assert read_answer(link)[0] == 200
        pour(link, b"GET /api/health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * MEGABYTE)
        check_refused(until_closed(link), 431, "HEADERS_TOO_LARGE")


def test_a_large_body_in_tiny_chunks_is_read_and_its_trailers_are_no_headers(
    shared: Running,
) -> None:
    body = b'{"model": "%s", "prompt": "%s"}' % (demo.MODEL_NAME.encode(), b"a" * 50_000)
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    sent = head + chunks + b"0\r\nX-Request-Id: trailer\r\n\r\n"
    status, headers, answer = parts(answer_to(shared, sent))
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert headers["x-request-id"] != "trailer"


def test_what_is_not_http_is_refused_with_a_code(shared: Running) -> None:
    check_refused(answer_to(shared, b"hello\r\n\r\n"), 400, "MALFORMED_REQUEST")
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    status, _, body = parts(answer_to(shared, head + b"no chunk"))
    assert (status, body["error"]["code"]) == (400, "malformed_request")


def test_requests_that_wait_on_one_connection_are_answered_in_order_and_bounded(
    shared: Running,
) -> None:
    last = ALIVE.replace(HOST, HOST + b"Connection: close\r\n")
    answers = answer_to(shared, ALIVE * PIPELINED_REQUESTS + last)
    assert answers.count(b"HTTP/1.1 200") == PIPELINED_REQUESTS + 1
    answers = answer_to(shared, ALIVE * 10_000)
    assert answers.count(b"HTTP/1.1 200") <= 2 * PIPELINED_REQUESTS
    assert is_alive(shared)


def test_a_body_that_nobody_reads_is_not_taken_without_end(start: Start) -> None:
    with start(max_body_bytes=1000) as live, linked(live) as link:
        head = b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
        pour(link, head)
        assert read_answer(link)[0] == 404
        pour(link, (b"2000\r\n" + b"a" * 0x2000 + b"\r\n") * 1000)
        assert until_closed(link) == b""


# ---------------------------------------------------------------- how long


def test_headers_that_do_not_arrive_end_the_connection(
    tight: Running,
) -> None:
    assert answer_to(tight, b"") == b""
    asked = b"GET /v1/models HTTP/1.1\r\nHost: local"
    status, headers, body = parts(answer_to(tight, asked))
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert headers["connection"] == "close"
    with linked(tight) as link:
        link.sendall(ALIVE)
        assert read_answer(link)[0] == 200
        link.sendall(b"GET /api/models HTTP/1.1\r\n")
        check_refused(until_closed(link), 408, "REQUEST_TIMEOUT")


def test_a_body_that_does_not_arrive_is_refused_with_a_code(
    tight: Running,
) -> None:
    fields = b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    asked = b"POST /v1/completions HTTP/1.1\r\n" + HOST + fields
    status, headers, body = parts(answer_to(tight, asked))
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert headers["connection"] == "close"
    for path in (b"/api/models", b"/socket.io/?EIO=4&transport=polling&sid=x"):
        answer = answer_to(tight, b"POST " + path + b" HTTP/1.1\r\n" + HOST + fields)
        check_refused(answer, 408, "REQUEST_TIMEOUT")
    # nobody waits for this body, so its connection is closed after the answer
    with linked(tight) as link:
        link.sendall(b"GET /api/health HTTP/1.1\r\n" + HOST + fields)
        assert read_answer(link)[0] == 200
        assert until_closed(link) == b""


def test_a_long_answer_is_not_cut_by_the_time_that_a_request_may_take(
    tight: Running,
) -> None:
    joined = tight.http.get("/socket.io/?EIO=4&transport=polling").text
    sid = re.search(r'"sid":"([^"]+)"', joined)
    assert sid is not None
    path = f"/socket.io/?EIO=4&transport=polling&sid={sid[1]}"
    assert tight.http.post(path, content="40").text == "OK"
    tight.http.get(path)
    with linked(tight) as link:
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        # both limits pass on another connection before the event comes
        for _ in range(2):
            assert answer_to(tight, b"") == b""
        load_demo(tight)
        event = b""
        while b"model:load:progress" not in event:
            event += _more(link, event)
    assert event.startswith(b"HTTP/1.1 200")


def test_a_client_that_reads_nothing_is_cut_and_one_that_reads_slowly_is_not(
    tight: Running,
) -> None:
    page = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with ExitStack() as stack:
        whole = len(tight.http.get("/openapi.json").content)
        stopped, slow = (stack.enter_context(linked(tight, room=2048)) for _ in range(2))
        for link in (stopped, slow):
            pour(link, page * PIPELINED_REQUESTS)
        cut = select.poll()
        cut.register(stopped, select.POLLHUP)
        read = len(_more(slow, b""))
        while not cut.poll(10):
            read += len(slow.recv(1000))
        while read < whole * PIPELINED_REQUESTS:
            read += len(_more(slow, b""))
        assert len(until_closed(stopped)) < whole * PIPELINED_REQUESTS


def test_answers_that_nobody_reads_are_bounded_over_all_clients(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = len(shared.http.get("/openapi.json").content)
    # what asyncio holds of an answer that waits for its client is above 64 KiB, eight times
    monkeypatch.setattr(connections, "UNREAD_BYTES", 5 << 16)
    page = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with ExitStack() as stack:
        links = [stack.enter_context(linked(shared, room=2048)) for _ in range(8)]
        cut = select.poll()
        for link in links:
            pour(link, page * PIPELINED_REQUESTS)
            cut.register(link, select.POLLHUP)
        (first, _), *_ = cut.poll(1000 * PATIENCE)
        (link,) = [link for link in links if link.fileno() == first]
        assert len(until_closed(link)) < whole * PIPELINED_REQUESTS
        # the answers to the others go on
        assert len(cut.poll(0)) < len(links) - 1


# ---------------------------------------------------------------- how many


def test_above_the_limit_probes_are_answered_and_other_requests_are_refused(start: Start) -> None:
    with start(max_connections=2, request_headers_timeout=60) as live, ExitStack() as stack:
        live.http.close()
        body = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n"
        for _ in range(2):
            # a request whose body is on its way keeps its place
            stack.enter_context(linked(live)).sendall(body)
        with httpx2.Client(base_url=live.url) as other:
            while (refused := other.get("/v1/models")).status_code == 200:
                pass
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "too_many_connections"
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
            assert other.get("/api/health").status_code == 200
            assert other.get("/api/health/ready").status_code == 200
            refused = other.get("/api/models")
            assert (refused.status_code, refused.json()["success"]) == (503, False)
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
            path = "/socket.io/?EIO=4&transport=websocket"
            assert other.get(path, headers=upgrade).status_code == 503


def test_a_connection_without_a_request_makes_room_for_a_new_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.0)
    with start(max_connections=4, request_headers_timeout=60) as live, ExitStack() as stack:
        idle = [stack.enter_context(linked(live)) for _ in range(4)]
        for link in idle:
            link.sendall(b"GET / HTT")
        for _ in range(4):
            link = stack.enter_context(linked(live))
            link.sendall(ALIVE)
            assert read_answer(link)[0] == 200
        for link in idle:
            assert until_closed(link) == b""


def test_every_request_of_a_burst_of_connections_is_answered(start: Start) -> None:
    with start(max_connections=4, request_headers_timeout=60) as live, ExitStack() as stack:
        live.http.close()
        links = [stack.enter_context(linked(live)) for _ in range(4 + 3 * RESERVED_CONNECTIONS)]
        for link in links:
            link.sendall(b"GET /api/models HTTP/1.1\r\n" + HOST + b"\r\n")
        answered = Counter(read_answer(link)[0] for link in links)
    # places become free meanwhile
    assert set(answered) == {200, 503}


class Unread:
    """Stands for a connection whose client has not read its last answer."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.is_held_up = True

    def get_write_buffer_size(self) -> int:
        return 1


async def test_beyond_the_reserve_no_connection_has_a_place() -> None:
    connections = Connections(Settings(_env_file=None, max_connections=1))  # type: ignore[call-arg]
    loop = asyncio.get_running_loop()
    places = []
    while connections.has_place(0, loop.time()):
        places.append(connections.enter(Unread(), loop))
    assert places == [Place.ANY, *[Place.PROBES] * RESERVED_CONNECTIONS]
