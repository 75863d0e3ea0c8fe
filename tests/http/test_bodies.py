"""Many large bodies at once, against a running service."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest

from tests.http.test_connections import HOST, linked, read_answer
from tests.service import running

FIELD = b'--X\r\nContent-Disposition: form-data; name="%s\r\n\r\n'
END = b"\r\n--X--\r\n"
BEGINNING = FIELD % b'purpose"' + b"batch\r\n" + FIELD % b'file"; filename="a"' + b" " * 400_000


def _send_most(link: socket.socket) -> None:
    """Send a form without its END."""
    length = len(BEGINNING + END)
    head = f"POST /v1/files HTTP/1.1\r\nContent-Length: {length}\r\n".encode() + HOST
    link.sendall(head + b"Content-Type: multipart/form-data; boundary=X\r\n\r\n" + BEGINNING)


def test_bodies_that_stand_still_make_room_for_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("bodies")
    # one client may have 1.06 MiB, which is two of these bodies
    limits = {"request_bodies_mb": 1, "batch_file_mb": 1, "max_body_bytes": 1 << 19}
    with running(home, **limits) as live, ExitStack() as stack:
        still, second, third = (stack.enter_context(linked(live)) for _ in range(3))
        for link in (still, second, third):
            _send_most(link)
            assert live.http.post("/v1/batches", json={}).status_code == 400
        status, body = read_answer(still)
        assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_bodies")
        for link in (second, third):
            link.sendall(END)
            assert read_answer(link)[0] == 200
        # a body that was answered needs no room
        for _ in range(3):
            _send_most(second)
            second.sendall(END)
            assert read_answer(second)[0] == 200
