"""How much clients of live events may send, how many there may be, and how far behind one may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress

import httpx2
import pytest
import websockets.exceptions
from websockets.sync.client import ClientConnection, connect

from steerserve.rules.bounds import (
    LIVE_BURST_BYTES,
    LIVE_FRAGMENTS,
    LIVE_MESSAGE_BYTES,
    LIVE_POLL_BYTES,
    LIVE_UNREAD_EVENTS,
)
from tests.conftest import Start
from tests.service import Running

JOIN = "/socket.io/?EIO=4&transport=polling"


def joined(http: httpx2.Client) -> str:
    """The session of a new client that polls."""
    answer = http.get(JOIN)
    assert answer.status_code == 200, answer.text
    return str(json.loads(answer.text[1:])["sid"])


def websocket(live: Running) -> ClientConnection:
    return connect(live.url.replace("http", "ws") + "/socket.io/?EIO=4&transport=websocket")


def closing_code(link: ClientConnection) -> int | None:
    """The code with which the service closes the connection."""
    with suppress(websockets.exceptions.ConnectionClosed):
        while True:
            link.recv(10)
    return link.close_code


def test_a_message_a_fragment_and_a_flood_are_bounded(shared: Running) -> None:
    with websocket(shared) as link:
        link.send('42["' + "a" * LIVE_MESSAGE_BYTES + '"]')
        assert closing_code(link) == 1009
    with websocket(shared) as link:
        codes = []

        def fragments() -> Iterator[str]:
            yield from [""] * (LIVE_FRAGMENTS + 1)
            codes.append(closing_code(link))

        with suppress(websockets.exceptions.ConnectionClosed):
            link.send(fragments())
        assert codes == [1008]
    with websocket(shared) as link:
        link.send("40")
        with suppress(websockets.exceptions.ConnectionClosed):
            for _ in range(LIVE_BURST_BYTES):
                link.send('42["system:leave"]')
        # the close frame may be lost, because the client still sends
        assert closing_code(link) in (1008, 1006)
    assert shared.http.get("/api/health").status_code == 200


def test_a_poll_is_bounded(shared: Running) -> None:
    path = f"{JOIN}&sid={joined(shared.http)}"
    large = shared.http.post(path, content="40" + " " * LIVE_POLL_BYTES)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert shared.http.post(path, content=iter([b"4", b"0"])).text == "OK"
    assert '"sid"' in shared.http.get(path).text
    assert shared.http.get(f"{path}&j=0").status_code == 400
    assert shared.http.get(f"{path}&x={'a' * 2000}").status_code == 400


def test_sessions_are_bounded_and_those_that_never_join_make_room(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with start(max_live_clients=2) as live:
        gone = [joined(live.http) for _ in range(4)]
        with websocket(live) as link:
            assert live.http.post(f"{JOIN}&sid={gone[0]}", content="40").status_code == 400
            last = joined(live.http)
            assert live.http.post(f"{JOIN}&sid={last}", content="40").text == "OK"
            refused = live.http.get(JOIN)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "TOO_MANY_CONNECTIONS"
            assert int(refused.headers["retry-after"]) >= 1
            with pytest.raises(websockets.exceptions.InvalidStatus) as status:
                websocket(live)
            assert status.value.response.status_code == 503
            link.send("40")
        while live.http.get(JOIN).status_code == 503:
            pass
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


def test_one_request_of_a_session_waits_for_events(shared: Running) -> None:
    path = f"{JOIN}&sid={joined(shared.http)}"
    assert shared.http.post(path, content="40").text == "OK"
    shared.http.get(path)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(shared.http.get, path) for _ in range(3)]
        done, rest = wait(waiting, return_when=FIRST_COMPLETED)
        while len(done) < 2:
            done, rest = wait(waiting, timeout=0.05)
        assert {one.result().status_code for one in done} == {400}
        (last,) = rest
        # to join twice is answered with an event
        assert shared.http.post(path, content="40").text == "OK"
        assert last.result().status_code == 200


def test_a_client_that_fetches_no_events_is_disconnected(steered: Running) -> None:
    path = f"{JOIN}&sid={joined(steered.http)}"
    assert steered.http.post(path, content="40").text == "OK"
    session = steered.service.live.server.eio.sockets[path.rpartition("=")[2]]
    for _ in range(LIVE_UNREAD_EVENTS):
        session.queue.put_nowait(None)
    steered.data("POST", "/api/saes/steering", {"feature_idx": 1, "value": 1})
    while steered.http.post(path, content="3").status_code == 200:
        pass
    assert session.queue.qsize() < LIVE_UNREAD_EVENTS
