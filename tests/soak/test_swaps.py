"""Many clients that want two models in turn: every answer is a refusal with a time, or the text of the model it names."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.soak import watching
from tests.soak.watching import in_ms, sizes, stressed

SEED = 20
ANSWER_SECONDS = 30.0
"""Every call has its answer by then."""
LEAVING = 0.2
"""Share of the calls whose client goes away."""
LEAVE_SECONDS = 0.05
"""A client that goes away while it waits does so within this time."""
REFUSALS = {"model_busy", "queue_full"}

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 24}
MESSAGES = [{"role": "user", "content": "the boats were coming home"}]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, GREEDY | {"messages": MESSAGES}),
    "text": (TEXT, GREEDY | {"prompt": "the boats were coming home"}),
    "seeded": (TEXT, {"prompt": "baskets", "temperature": 1.0, "seed": 7, "max_tokens": 16}),
}


@dataclass(frozen=True, slots=True)
class Storm:
    """How many clients, for how many seconds."""

    clients: int
    seconds: float


@dataclass(slots=True)
class Tally:
    """What was answered: outcome -> count, durations in seconds, and what no answer may be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    durations: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def said(path: str, choice: dict[str, Any]) -> str:
    """The text of a choice, whole or a chunk of it."""
    if path == TEXT:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


def known_texts(http: httpx2.Client) -> dict[tuple[str, str], str]:
    """What each model says to each kind of request when nothing else happens."""
    texts = {}
    for model in ("red", "blue"):
        for kind, (path, body) in KINDS.items():
            answer = http.post(path, json=body | {"model": model})
            assert answer.status_code == 200, answer.text
            texts[model, kind] = said(path, answer.json()["choices"][0])
    for kind in KINDS:
        assert texts["red", kind] != texts["blue", kind], "the models cannot be told apart"
    return texts


class Client:
    """One client with its own luck. It asks until the time is over, and never waits after a refusal."""

    def __init__(
        self, number: int, http: httpx2.AsyncClient, known: dict[tuple[str, str], str], tally: Tally
    ) -> None:
        self._draw = random.Random(SEED * 1000 + number)
        self._http = http
        self._known = known
        self._tally = tally
        self._calls = number

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            self._calls += 1
            model = ("red", "blue")[self._calls % 2]
            kind = self._draw.choice(list(KINDS))
            is_stream, is_leaving = self._draw.random() < 0.5, self._draw.random() < LEAVING
            since = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._ask(model, kind, is_stream, is_leaving)
            except TimeoutError:
                self._tally.wrong.append(f"{kind} of {model}: no answer in {ANSWER_SECONDS} s")
            self._tally.durations.append(time.monotonic() - since)

    async def _ask(self, model: str, kind: str, is_stream: bool, is_leaving: bool) -> None:
        path, fields = KINDS[kind]
        body = fields | {"model": model, "stream": is_stream}
        if is_leaving and self._draw.random() < 0.5:
            await self._leave_while_waiting(path, body)
            return
        async with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                self._note_refusal(answer)
            elif not is_stream:
                await answer.aread()
                self._note_text(model, kind, said(path, answer.json()["choices"][0]))
            else:
                await self._read(answer, model, kind, most=3 if is_leaving else None)

    async def _leave_while_waiting(self, path: str, body: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._draw.uniform(0, LEAVE_SECONDS)):
                await self._http.post(path, json=body)
        except TimeoutError:
            self._tally.outcomes["left while waiting"] += 1
        else:
            self._tally.outcomes["answered before leaving"] += 1

    async def _read(self, answer: httpx2.Response, model: str, kind: str, most: int | None) -> None:
        path, text, count = KINDS[kind][0], "", 0
        async for line in answer.aiter_lines():
            if not line:
                continue
            if line == "data: [DONE]":
                self._note_text(model, kind, text)
                return
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self._tally.wrong.append(f"{kind} of {model}: {event['error']} in a stream")
                return
            text += said(path, event["choices"][0])
            count += 1
            if count == most:
                self._tally.outcomes["left while reading"] += 1
                return
        self._tally.wrong.append(f"{kind} of {model}: a stream without its end")

    def _note_text(self, model: str, kind: str, text: str) -> None:
        if text == self._known[model, kind]:
            self._tally.outcomes[f"200 {model}"] += 1
        else:
            expected = self._known[model, kind]
            self._tally.wrong.append(f"{kind} of {model}: said {text!r}, not {expected!r}")

    def _note_refusal(self, answer: httpx2.Response) -> None:
        code = answer.json()["error"]["code"]
        after = answer.headers.get("retry-after", "")
        is_allowed = answer.status_code == 503 and code in REFUSALS
        if is_allowed and after.isdigit() and 1 <= int(after) <= 60:
            self._tally.outcomes[f"503 {code}"] += 1
        else:
            self._tally.wrong.append(f"{answer.status_code}, Retry-After {after!r}: {answer.text}")


async def rage(url: str, known: dict[tuple[str, str], str], size: Storm) -> Tally:
    tally = Tally()
    until = time.monotonic() + size.seconds
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=None) as http:
        clients = [Client(number, http, known, tally) for number in range(size.clients)]
        await asyncio.gather(*(client.run(until) for client in clients))
    return tally


@sizes(Storm(10, 3.0), Storm(10, 60.0), seconds=240)
@pytest.mark.soak
def test_a_storm_of_swaps_answers_each_with_the_model_it_names(
    tmp_path: Path, folders: dict[str, Path], size: Storm
) -> None:
    with stressed(tmp_path, max_concurrent_requests=3, max_pending_requests=6) as served:
        for name, folder in folders.items():
            watching.register(served.http, folder, name)
        known = known_texts(served.http)
        tally = asyncio.run(rage(served.url, known, size))
        idle = watching.until_idle(served.http)
        print(f"swap storm of {size}: {dict(tally.outcomes)}; {in_ms(tally.durations)}")
        assert tally.wrong == [], f"seed {SEED}"
        assert tally.outcomes["200 red"] > 0
        assert tally.outcomes["200 blue"] > 0
        assert known_texts(served.http) == known
        assert len(watching.engines(served)) == 1
        assert watching.zombies(served) == []
        print(f"idle after {idle:.2f} s, stopped after {watching.stop(served):.2f} s")
