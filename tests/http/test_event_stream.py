"""The comments of a stream whose first token takes long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from steerserve import demo
from steerserve.http import event_stream
from steerserve.http.event_stream import with_waits
from tests.service import Running

MESSAGES = [{"role": "user", "content": "Hello"}]


def due(times: int) -> Callable[[asyncio.Future[object]], Awaitable[None]]:
    """A wait whose time is over at once, so many times."""
    left = times

    async def until_due(first: asyncio.Future[object]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            await asyncio.wait({first})

    return until_due


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0)
        yield number
    if not count:
        raise ValueError("no numbers")


@pytest.mark.parametrize("times", [0, 1, 2])
async def test_only_the_wait_for_the_first_item_is_told(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "until_due", due(times))
    assert [item async for item in with_waits(numbers(3))] == [None] * times + [0, 1, 2]


async def test_an_error_and_a_reader_that_leaves_reach_the_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="no numbers"):
        [item async for item in with_waits(numbers(0))]
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            await asyncio.Event().wait()
            yield 1
        finally:
            ended.set()

    monkeypatch.setattr(event_stream, "until_due", due(1))
    waiting = with_waits(endless())
    assert await anext(waiting) is None
    monkeypatch.setattr(event_stream, "until_due", lambda _: asyncio.sleep(0))
    assert await anext(waiting) is None
    await waiting.aclose()  # type: ignore[attr-defined]
    assert ended.is_set()


NAMED = {"model": demo.MODEL_NAME}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", NAMED | {"messages": MESSAGES, "max_tokens": 2}),
        ("/v1/completions", NAMED | {"prompt": "One", "max_tokens": 2}),
        ("/v1/responses", NAMED | {"input": "Hello", "max_output_tokens": 2}),
        ("/api/compare", {"prompt": "One", "steering": {"1": 2}, "max_tokens": 2}),
    ],
)
def test_a_stream_sends_comments_until_its_first_token(
    steered: Running, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "until_due", due(2))
    answer = steered.http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.text.count(": the model reads the prompt\n\n") == 2
    blocks = [block for block in answer.text.split("\n\n") if not block.startswith(":")]
    assert all(block.startswith(("data: ", "event: ")) or not block for block in blocks)
