"""Clients of live events that speak badly: each is refused at once, and none leaves anything behind."""

from __future__ import annotations

import json
from contextlib import suppress

import httpx2
import pytest
import socketio
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from steerserve.events.packets import CheckedPackets, is_understood
from steerserve.rules.bounds import LIVE_POLL_BYTES
from tests.service import Running

OPEN = "/socket.io/?EIO=4&transport=polling"
WEBSOCKET = "/socket.io/?EIO=4&transport=websocket"


def session(live: Running) -> str:
    """The address of a session that a polling client opened."""
    answer = live.http.get(OPEN)
    assert answer.status_code == 200
    return f"{OPEN}&sid={json.loads(answer.text[1:])['sid']}"


def check_refused(answer: httpx2.Response, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["success"], body["data"]) == (False, None)
    assert body["error"]["code"] != "INTERNAL_ERROR"


@pytest.mark.parametrize(
    "packet",
    [
        "1",
        "3",
        "40",
        '40{"token":"x"}',
        "40/other,",
        "41",
        "41/other,",
        '42["system:join"]',
        '420["x",{}]',
    ],
)
def test_packets_that_clients_send_are_understood(packet: str) -> None:
    assert is_understood(packet)


UNKNOWN = (
    "",
    "2",
    "2probe",
    "0",
    "9",
    "b",
    "bAAAA",
    "b!!!!",
    "4",
    "42",
    "42[",
    "42[]",
    "42[1]",
    "42null",
    "42{}",
    "42" + "[" * 5000,
    '42["x",' + "1" * 101 + "]",
    "40[]",
    "430[]",
    "44",
    "49",
    '451-["x",{"_placeholder":true,"num":0}]',
    "\U0001f600",
)


@pytest.mark.parametrize("packet", UNKNOWN, ids=lambda packet: ascii(packet[:20]))
def test_a_polling_client_that_sends_another_packet_is_answered_at_once(
    shared: Running, packet: str
) -> None:
    address = session(shared)
    check_refused(shared.http.post(address, content=f"40\x1e{packet}", timeout=60))
    assert shared.http.post(address, content="1").status_code == 200


def test_packets_for_a_session_that_has_ended_are_refused(shared: Running) -> None:
    address = session(shared)
    assert shared.http.post(address, content="1").status_code == 200
    check_refused(shared.http.post(address, content="40"))
    check_refused(shared.http.post(f"{OPEN}&sid=nobody", content="40"))
    check_refused(shared.http.post(OPEN, content="40"))


def test_packets_behind_the_end_of_their_session_are_refused(
    shared: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    address = session(shared)
    check_refused(shared.http.post(address, content="1\x1e40"))
    assert shared.http.post(address, content="41\x1e1").status_code == 200
    with connect(shared.url.replace("http", "ws") + WEBSOCKET) as link:
        link.recv(timeout=60)
        link.send("1")
        with suppress(ConnectionClosed):
            link.send("40")
            link.send("40")
        with suppress(ConnectionClosed):
            while link.recv(timeout=60):
                pass
    assert "Traceback" not in capfd.readouterr().err


async def test_a_client_that_left_before_its_request_was_read_reaches_no_library() -> None:
    async def never(*_: object) -> None:
        raise AssertionError("the request was passed on")

    async def left() -> dict[str, str]:
        return {"type": "http.disconnect"}

    server = socketio.AsyncServer(async_mode="asgi")
    checked = CheckedPackets(never, server, never, 10)  # type: ignore[arg-type]
    path, _, query = OPEN.partition("?")
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    await checked(scope | {"query_string": query.encode()}, left, never)


def test_a_request_with_many_or_large_packets_is_refused(shared: Running) -> None:
    address = session(shared)
    check_refused(shared.http.post(address, content="\x1e".join(["3"] * 17)))
    check_refused(shared.http.post(address, content="4" * (LIVE_POLL_BYTES + 1)), 413)
    check_refused(shared.http.post(address, content=b"\xff"))
    shared.http.post(address, content="1")


def test_a_method_that_the_socket_does_not_take_names_those_that_it_takes(shared: Running) -> None:
    answer = shared.http.put(OPEN, content="40")
    check_refused(answer, 405)
    assert answer.headers["allow"] == "GET, OPTIONS, POST"


@pytest.mark.parametrize("packet", ["9", "42[", b"binary"], ids=ascii)
def test_a_websocket_with_another_packet_is_closed(shared: Running, packet: str | bytes) -> None:
    with connect(shared.url.replace("http", "ws") + WEBSOCKET) as link:
        assert str(link.recv(timeout=60)).startswith("0{")
        link.send(packet)
        with pytest.raises(ConnectionClosed):
            link.recv(timeout=60)
        assert link.close_code == 1008
