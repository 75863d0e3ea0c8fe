"""Clients with a mix of requests: each answer is right, or a refusal of the kinds that may happen.

Seeded requests are compared with their texts alone. Their text depends on the live steering, so the steering changes
only while no seeded request is under way; all other requests run through the change.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from steerserve import demo
from steerserve.errors import TABLE

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ANSWER_SECONDS = 60.0
"""Every call has its answer by then, also while an engine starts anew."""
LEAVING = 0.15
"""Share of the calls whose client goes away."""
REFUSALS = {"queue_full", "engine_unavailable", "model_loading", "model_busy", "model_not_loaded"}
"""What a request may be refused for while engines are killed."""

STORY = "Once upon a time a small boat sailed home over the sea. "
LONG = STORY * 60
HELLO = [{"role": "user", "content": "Tell me of the harbour."}]
CARD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "topic": {"enum": ["sea", "farm", "castle"]},
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["topic", "name", "count"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "card", "schema": CARD}}

SEEDED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "text": (TEXT, {"prompt": "One day", "seed": 7, "temperature": 1.2, "max_tokens": 40}),
    "prompts": (TEXT, {"prompt": ["The boats", "A fox"], "seed": 8, "max_tokens": 24}),
    "choices": (CHAT, {"messages": HELLO, "seed": 9, "n": 3, "max_tokens": 24}),
    "long": (TEXT, {"prompt": LONG, "seed": 10, "temperature": 1.5, "max_tokens": 16}),
    "schema": (CHAT, {"messages": HELLO, "seed": 11, "response_format": FORMAT}),
}
"""Requests with seeds. The texts of all models of a run are known before the run."""
UNSEEDED = ("text", "long", "schema", "steered", "scoring")

States = Mapping[str, dict[str, float]]
Said = tuple[tuple[str, str | None], ...]
"""The text and the `finish_reason` of each choice."""


@dataclass(slots=True)
class Book:
    """What was answered: outcomes, durations in seconds, and what no answer may be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    durations: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Gate:
    """Lets any number of seeded requests through, or one change of the steering."""

    def __init__(self, state: str) -> None:
        self.state = state
        self._inside = 0
        self._changed = asyncio.Condition()
        self._is_closed = False

    @asynccontextmanager
    async def seeded(self) -> AsyncIterator[str]:
        """The state of the steering, which stays as it is while the block is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1
        try:
            yield self.state
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        async with self._changed:
            self._is_closed = True
            await self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            async with self._changed:
                self._is_closed = False
                self._changed.notify_all()


def choices(body: dict[str, Any]) -> Iterator[tuple[int, str, str | None]]:
    """The index, the text and the `finish_reason` of each choice of an answer or of an event."""
    for choice in body["choices"]:
        spoken = choice.get("message") or choice.get("delta") or {}
        text = choice.get("text") or spoken.get("content") or ""
        yield choice["index"], text, choice["finish_reason"]


def said(bodies: list[dict[str, Any]]) -> Said:
    """What the choices say in all bodies together."""
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    for body in bodies:
        for index, text, end in choices(body):
            texts[index] = texts.get(index, "") + text
            ends[index] = end or ends.get(index)
    return tuple((texts[index], ends[index]) for index in sorted(texts))


class Schedule:
    """One client with its own luck, which asks until it is told to end."""

    def __init__(
        self,
        seed: str,
        http: httpx2.AsyncClient,
        gate: Gate,
        known: Mapping[tuple[str, str], Said],
        book: Book,
    ) -> None:
        self._draw = random.Random(seed)
        self._http = http
        self._gate = gate
        self._known = known
        self._book = book

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            since = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._one()
            except TimeoutError:
                self._book.wrong.append(f"no answer in {ANSWER_SECONDS} s")
            self._book.durations.append(time.monotonic() - since)

    async def _one(self) -> None:
        if self._draw.random() < 0.5:
            kind = self._draw.choice(list(SEEDED))
            path, fields = SEEDED[kind]
            async with self._gate.seeded() as state:
                answered = await self._ask(f"seeded {kind}", path, fields)
            if answered is not None:
                self._compare(kind, state, said(answered))
            return
        kind = self._draw.choice(UNSEEDED)
        path, fields = self._unseeded(kind)
        answered = await self._ask(kind, path, fields)
        if answered is not None:
            self._check(kind, said(answered))

    def _unseeded(self, kind: str) -> tuple[str, dict[str, Any]]:
        size = self._draw.randint(1, 120)
        plain = {"prompt": STORY[: self._draw.randint(4, 50)], "max_tokens": size}
        match kind:
            case "long":
                return TEXT, plain | {"prompt": LONG[self._draw.randint(1, 600) :]}
            case "schema":
                return CHAT, {"messages": HELLO, "response_format": FORMAT}
            case "steered":
                features = [{"index": self._draw.randrange(1000), "value": 30.0}]
                return TEXT, plain | {"sae_steering": {"features": features}}
            case "scoring":
                return TEXT, plain | {"max_tokens": 1, "temperature": 0, "logprobs": 3}
        return TEXT, plain

    async def _ask(
        self, kind: str, path: str, fields: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """The bodies of a whole answer; None where it is refused, or where the client leaves."""
        # scores, documents that are validated whole, and several choices are not streamed
        is_whole = kind == "scoring" or "response_format" in fields or "n" in fields
        is_stream = not is_whole and self._draw.random() < 0.5
        stays = self._draw.random() >= LEAVING
        body = {"model": demo.MODEL_NAME, **fields, "stream": is_stream}
        if not stays and not is_stream:
            await self._leave_while_waiting(path, body)
            return None
        try:
            async with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    self._refused(kind, answer, await answer.aread())
                    return None
                if not is_stream:
                    return [json.loads(await answer.aread())]
                return await self._events(kind, answer, None if stays else self._draw.randint(1, 6))
        except httpx2.TransportError as error:
            self._book.wrong.append(f"{kind}: {error!r}")
            return None

    async def _leave_while_waiting(self, path: str, body: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._draw.uniform(0, 0.1)):
                await self._http.post(path, json=body)
        except TimeoutError:
            self._book.outcomes["left while waiting"] += 1
        else:
            self._book.outcomes["answered before leaving"] += 1

    async def _events(
        self, kind: str, answer: httpx2.Response, most: int | None
    ) -> list[dict[str, Any]] | None:
        events: list[dict[str, Any]] = []
        async for line in answer.aiter_lines():
            if not line:
                continue
            if line == "data: [DONE]":
                return events
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self._failed(kind, event["error"])
                return None
            events.append(event)
            if len(events) == most:
                self._book.outcomes["left while reading"] += 1
                return None
        self._book.wrong.append(f"{kind}: a stream without its end")
        return None

    # ------------------------------------------------------------- judging

    def _compare(self, kind: str, state: str, answered: Said) -> None:
        if answered == self._known[kind, state]:
            self._book.outcomes[f"seeded {kind}"] += 1
        else:
            expected = self._known[kind, state]
            self._book.wrong.append(f"seeded {kind}, {state}: {answered!r}, not {expected!r}")

    def _check(self, kind: str, answered: Said) -> None:
        self._book.outcomes[kind] += 1
        for text, end in answered:
            if end not in ("stop", "length"):
                self._book.wrong.append(f"{kind}: ended by {end!r}")
            if (
                kind == "schema"
                and end == "stop"
                and set(json.loads(text)) != set(CARD["required"])
            ):
                self._book.wrong.append(f"schema: {text!r}")

    def _refused(self, kind: str, answer: httpx2.Response, content: bytes) -> None:
        after = answer.headers.get("retry-after", "")
        if answer.status_code == 503 and not (after.isdigit() and 1 <= int(after) <= 60):
            self._book.wrong.append(f"{kind}: 503 with Retry-After {after!r}")
        self._failed(kind, json.loads(content)["error"], answer.status_code)

    def _failed(self, kind: str, error: Any, status: int | None = None) -> None:
        code = error.get("code")
        statuses = {row.v1 for row in TABLE.values() if row.v1_code == code}
        if code in REFUSALS and (status is None or status in statuses):
            self._book.outcomes[f"refused {code}"] += 1
        else:
            self._book.wrong.append(f"{kind}: {status} {error}")
