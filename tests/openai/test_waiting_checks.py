"""Requests whose schema waits for its check: they are counted, bounded, served in a fair order, and leave with their
clients.

The check of a costly schema does not end here, so no test depends on the speed of the machine.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from steerserve import demo
from steerserve.engines.sandbox.pool_process import PoolProcess
from tests.openai.conftest import PATIENCE, Zoo, asked, pending, until_idle
from tests.service import Running

CHAT = "/v1/chat/completions"
COSTLY, NEIGHBOUR = "127.0.0.1", "127.0.0.2"
"""Addresses of two clients on this machine."""


def body(schema: dict[str, Any], model: str = demo.MODEL_NAME) -> dict[str, Any]:
    named = {"name": "x", "schema": schema}
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 1,
        "response_format": {"type": "json_schema", "json_schema": named},
    }


def costly(number: int, model: str = demo.MODEL_NAME) -> dict[str, Any]:
    """A request whose check does not end. No two have the same schema."""
    return body({"type": "string", "title": f"costly {number}"}, model)


@pytest.fixture(autouse=True)
def _costly(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = PoolProcess._exchange

    async def held(process: PoolProcess, child: Process, body: bytes, seconds: float) -> bytes:
        if b"costly" in body:
            await asyncio.Event().wait()
        return await exchange(process, child, body, seconds)

    monkeypatch.setattr(PoolProcess, "_exchange", held)


@contextmanager
def waiting(live: Running, bodies: list[dict[str, Any]]) -> Iterator[None]:
    """Requests of one client, which leaves at the end of the block."""
    split = urlsplit(live.url)
    assert split.hostname is not None
    with ExitStack() as stack:
        for sent in bodies:
            raw = json.dumps(sent).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            link = socket.create_connection(
                (split.hostname, split.port), source_address=(COSTLY, 0)
            )
            stack.enter_context(link)
            link.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        yield


def until_pending(live: Running, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while pending(live) != count:
        assert time.monotonic() < deadline, "the requests are not counted"


def test_costly_checks_are_counted_and_do_not_delay_a_neighbour(shared: Running) -> None:
    with waiting(shared, [costly(i) for i in range(20)]):
        until_pending(shared, 20)
        harmless = body({"type": "string", "title": "harmless"})
        answer = asked(shared, CHAT, harmless, NEIGHBOUR)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-service-constrained"] == "json_schema;name=x"
        assert shared.chat("One day", max_tokens=1)["choices"]
        assert pending(shared) == 20
    until_idle(shared)


def test_checks_that_wait_fill_the_room_like_every_request(zoo: Zoo) -> None:
    with waiting(zoo.live, [costly(i, "tiny") for i in range(3)]):
        until_pending(zoo.live, 3)
        refused = asked(zoo.live, CHAT, body({"type": "null"}, "tiny"), COSTLY)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
    until_idle(zoo.live)
