"""Twenty requests where three have room: exactly three are served, the others are told at once when to come back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil

from tests.conftest import Start
from tests.soak import watching
from tests.soak.clients import SHORT, text_of
from tests.soak.inside import engine, one_model, until_inactive
from tests.soak.watching import frozen, in_ms, sizes

CONCURRENT, PENDING, FLOOD = 1, 2, 20
ACCEPTED = CONCURRENT + PENDING
REFUSAL_SECONDS = 2.0
IDLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Floods:
    """How often."""

    count: int


async def flood(url: str, slow: psutil.Process, expected: str) -> list[float]:
    """Requests at once while the engine `slow` does not move; the seconds of the refusals."""
    durations = []

    async def ask(http: httpx2.AsyncClient) -> httpx2.Response:
        since = time.monotonic()
        answer = await http.post("/v1/completions", json=SHORT)
        if answer.status_code == 503:
            durations.append(time.monotonic() - since)
        return answer

    async with httpx2.AsyncClient(base_url=url, timeout=watching.PATIENCE) as http:
        with frozen(slow):
            left = {asyncio.create_task(ask(http)) for _ in range(FLOOD)}
            while len(left) > ACCEPTED:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    check_refusal(task.result())
            block = (await http.get("/api/health/detailed")).json()["data"]["inference"]
            assert block["queue_pending"] == ACCEPTED
            assert (block["in_flight"], block["queue_waiting"]) == (CONCURRENT, PENDING)
        answers = await asyncio.gather(*left)
    assert [answer.status_code for answer in answers] == [200] * ACCEPTED
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {expected}
    return durations


def check_refusal(answer: httpx2.Response) -> None:
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("queue_full", "invalid_request_error")
    assert 1 <= int(answer.headers["retry-after"]) <= 60


@sizes(Floods(3), Floods(50), seconds=200)
def test_a_flood_is_refused_quickly_and_those_accepted_are_served(
    start: Start, folders: dict[str, Path], size: Floods
) -> None:
    room = {"max_concurrent_requests": CONCURRENT, "max_pending_requests": PENDING}
    with one_model(start, folders["red"], **room) as live:
        text = text_of(live.http)
        refused = []
        for _ in range(size.count):
            refused += asyncio.run(flood(live.url, engine(live), text))
            until_inactive(live, IDLE_SECONDS)
        print(f"{len(refused)} refused: {in_ms(refused)}")
        assert len(refused) == size.count * (FLOOD - ACCEPTED)
        assert max(refused) < REFUSAL_SECONDS
