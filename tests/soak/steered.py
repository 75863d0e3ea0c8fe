"""An operator that changes the steering of a service again and again, clients beside it, and the book of their answers.

Every change has a digest of its own, and each of the next changes makes the model write another word. So every answer
tells the change under which it was admitted by its digest, and an answer of one token tells the change under which it
was written by its word.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from steerserve import demo
from steerserve.errors import TABLE
from tests.engines.fleet.real import FEATURES, PROMPT, STRENGTH

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BATCH = "/api/saes/steering/batch"
STATE = "x-service-steering-state"
LOST = "engine_unavailable"
FINE = 1e-4
VALUES = 100
"""So many strengths, FINE apart from each other, give so many digests and the same words."""
MOST_BETWEEN = 12
"""The most answers between two changes."""

WORD: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}
STORY: dict[str, Any] = {"prompt": "One day", "max_tokens": 24, "seed": 7}
TALK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me of the harbour."}],
    "max_tokens": 8,
}
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "word": (TEXT, WORD),
    "story": (TEXT, STORY),
    "talk": (CHAT, TALK),
}


@dataclass(frozen=True, slots=True)
class Admitted:
    """A whole answer. While it was in flight, the changes from `first` to `last` were current. `least` is the newest
    change that an answer had told before the request was sent, by its digest as `shown`."""

    kind: str
    digest: str | None
    text: str
    first: int
    last: int
    shown: str | None


@dataclass(slots=True)
class Records:
    """What was answered, and what no answer may be."""

    answers: list[Admitted] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Operator:
    """Makes the changes. The changes up to `made` are over; those up to `begun` have begun."""

    def __init__(self, http: httpx2.AsyncClient, records: Records, draw: random.Random) -> None:
        self.made = self.begun = 0
        self._http = http
        self._records = records
        self._draw = draw

    async def change(self) -> None:
        """Make one change, and ask for a word: its answer has the digest of the change."""
        number = self.begun + 1
        values = {str(FEATURES[self.begun % len(FEATURES)]): 0.0}
        values[str(FEATURES[number % len(FEATURES)])] = STRENGTH + FINE * (number % VALUES)
        self.begun = number
        answer = await self._http.post(BATCH, json={"steering": values})
        assert answer.status_code == 200, answer.text
        self.made = number
        while True:
            answer = await self._http.post(TEXT, json={"model": demo.MODEL_NAME, **WORD})
            if answer.status_code == 200:
                self._records.digests[number] = answer.headers[STATE]
                return
            assert answer.json()["error"]["code"] == LOST, answer.text

    async def run(self, is_over: asyncio.Event) -> None:
        """Change the steering, with a few answers between two changes."""
        while not is_over.is_set():
            await self.change()
            target = len(self._records.answers) + self._draw.randrange(MOST_BETWEEN)
            while len(self._records.answers) < target and not is_over.is_set():
                await asyncio.sleep(0.001)


class Asker:
    """One client."""

    def __init__(
        self, http: httpx2.AsyncClient, operator: Operator, records: Records, draw: random.Random
    ) -> None:
        self._http = http
        self._operator = operator
        self._records = records
        self._draw = draw

    async def run(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            kind = self._draw.choice(list(KINDS))
            try:
                await self._ask(kind, is_streamed=self._draw.random() < 0.5)
            except httpx2.TransportError as error:
                self._records.wrong.append(f"{kind}: {error!r}")

    async def _ask(self, kind: str, *, is_streamed: bool) -> None:
        path, fields = KINDS[kind]
        body = {"model": demo.MODEL_NAME, "stream": is_streamed, **fields}
        first = self._operator.made
        shown = self._records.answers[-1].digest if self._records.answers else None
        async with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                return self._refused(kind, answer.status_code, json.loads(await answer.aread()))
            if is_streamed:
                text = await self._streamed(kind, answer)
            else:
                text = text_of(json.loads(await answer.aread()))
        if text is not None:
            digest, last = answer.headers.get(STATE), self._operator.begun
            self._records.outcomes[f"{kind}, {'streamed' if is_streamed else 'whole'}"] += 1
            self._records.answers.append(Admitted(kind, digest, text, first, last, shown))

    async def _streamed(self, kind: str, answer: httpx2.Response) -> str | None:
        """The text of a stream; None where a typed error ended it."""
        text = ""
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return text
            if line:
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self._refused(kind, None, event)
                    return None
                text += text_of(event)
        self._records.wrong.append(f"{kind}: a stream without its end")
        return None

    def _refused(self, kind: str, status: int | None, body: dict[str, Any]) -> None:
        code = body["error"]["code"]
        statuses = {row.v1 for row in TABLE.values() if row.v1_code == code}
        if code == LOST and (status is None or status in statuses):
            self._records.outcomes[f"refused {code}"] += 1
        else:
            self._records.wrong.append(f"{kind}: {status} {body}")


def text_of(body: dict[str, Any]) -> str:
    """The text of an answer, or of one event of it."""
    text = ""
    for choice in body["choices"]:
        spoken = choice.get("message") or choice.get("delta") or {}
        text += choice.get("text") or spoken.get("content") or ""
    return text


async def words_of(http: httpx2.AsyncClient, operator: Operator) -> dict[str, int]:
    """The word of each feature -> its place in FEATURES."""
    made: dict[str, int] = {}
    for _ in FEATURES:
        await operator.change()
        answer = await http.post(TEXT, json={"model": demo.MODEL_NAME, **WORD})
        made[text_of(answer.json())] = operator.made % len(FEATURES)
    assert len(made) == len(FEATURES), made
    return made


def judged(records: Records, words: Mapping[str, int]) -> list[str]:
    """What is wrong with the answers.

    (1) The digest is that of one change that was current while the request was admitted, from the last one that was
    made before it to the last one that had begun when its answer ended. (2) It is never older than the digest of an
    answer that had ended before the request was sent. (3) A word was written under that change or a later one that had
    begun, and never under an older one.
    """
    by_digest: dict[str, list[int]] = {}
    for number, digest in records.digests.items():
        by_digest.setdefault(digest, []).append(number)
    wrong = list(records.wrong)
    for one in records.answers:
        numbers = [n for n in by_digest.get(one.digest or "", []) if one.first <= n <= one.last]
        if len(numbers) != 1:  # (1)
            wrong.append(f"the digest of no current change: {one}, {numbers}")
            continue
        shown = [n for n in by_digest.get(one.shown or "", []) if n <= one.last]
        if shown and numbers[0] < max(shown):  # (2)
            wrong.append(f"older than an earlier answer ({max(shown)}): {one}, {numbers}")
        later = range(numbers[0], one.last + 1)
        if one.kind == "word" and all(n % len(FEATURES) != words.get(one.text) for n in later):
            wrong.append(f"a word of another change: {one}, {numbers}")  # (3)
    return wrong
