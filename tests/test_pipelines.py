"""Requests that a client sends on one connection before it has the answers to the earlier ones."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

from steerserve import demo
from tests.resident import standing_still
from tests.service import Running
from tests.soak.inside import until_inactive
from tests.soak.watching import counters, until

HEALTH = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECONDS = 60.0


def connect(live: Running) -> socket.socket:
    parts = urlsplit(live.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=SECONDS)


def posted(is_stream: bool) -> bytes:
    """A request for a text that the demo model writes for minutes."""
    body = {
        "model": demo.MODEL_NAME,
        "prompt": ["One day"] * 16,
        "max_tokens": 900,
        "stream": is_stream,
    }
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_ends_its_request_also_if_another_one_waits_behind(
    shared: Running, is_stream: bool
) -> None:
    with standing_still(shared):
        # the engine does not move: the request ends only if it is cancelled
        with connect(shared) as link:
            link.sendall(posted(is_stream) + HEALTH)
            until(
                lambda: counters(shared.http)["in_flight"] == 1, "the request has a slot", SECONDS
            )
        until_inactive(shared, SECONDS)


def test_requests_behind_one_that_the_client_left_are_not_answered(
    shared: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(shared) as link:
        link.sendall(HEALTH * 10)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    for _ in range(10):
        assert shared.http.get("/api/health").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_the_body_behind_a_refused_upgrade_is_not_a_request(shared: Running, protocol: str) -> None:
    head = f"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n"
    with connect(shared) as link:
        content = f"POST /v1/completions HTTP/1.1\r\n{head}Content-Length: {len(HEALTH)}\r\n\r\n"
        link.sendall(content.encode() + HEALTH)
        answered = b""
        while part := link.recv(4096):
            answered += part
    assert answered.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answered
    assert answered.count(b"HTTP/1.1 ") == 1
