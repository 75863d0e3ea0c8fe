"""Endpoints that suggest labels, and answer badly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import pytest

from steerserve.hub import chats
from steerserve.hub.chats import ChatEndpoint
from steerserve.rules.bounds import LABEL_ANSWER_BYTES, LABEL_ANSWER_PARTS
from tests.refusals import refusal_of
from tests.waiting import soon

ANSWER = b'{"choices": [{"message": {"content": "the sea"}}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(parts: Iterable[bytes]) -> bytes:
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (chunked([ANSWER]), None),
        (chunked([ANSWER[:11], b" " * 1000, ANSWER[11:]]), None),
        (chunked([b" "] * (LABEL_ANSWER_PARTS + 1)), "more than 10000 parts"),
        (chunked([b" " * LABEL_ANSWER_BYTES, ANSWER]), "more than 1048576 bytes"),
        (HEAD + b"1\r\n \r\n", "longer than 0.2 s"),
        (b"HTTP/1.1 200 OK\r\n", "longer than 0.2 s"),
    ],
    ids=("whole", "spaces", "parts", "bytes", "slow body", "slow head"),
)
async def test_an_answer_has_bounds_in_time_bytes_and_parts(
    sent: bytes, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why is not None and "longer" in why:
        monkeypatch.setattr(chats, "LABEL_ANSWER_SECONDS", 0.2)

    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        # a client that gives the answer up closes the connection
        with suppress(OSError):
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        endpoint = ChatEndpoint(f"http://127.0.0.1:{port}/v1", None)
        asking = asyncio.ensure_future(endpoint.ask("m", "name this", 8))
        await soon(asyncio.wait([asking]))
        await endpoint.close()
        await soon(left.wait())
    if why is None:
        assert asking.result() == "the sea"
    else:
        refusal = refusal_of(asking.result)
        assert refusal.code == "LABEL_ENDPOINT_FAILED"
        assert why in refusal.message
