"""Clients that always have requests in flight, half of them streamed, and the book of what they were answered.

The texts of all requests under each steering are known before. So each answer tells under which steering it was written.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from steerserve import demo
from steerserve.errors import TABLE
from tests.engines.fleet.real import FEATURES, PROMPT, SAE, STRENGTH

COMPLETIONS = "/v1/completions"
BATCH = "/api/saes/steering/batch"
STATE = "x-service-steering-state"
CLIENTS = 6
PATIENCE = 120.0
"""Seconds in which every request has its answer, and in which the answers that a test waits for have come."""

STATES: Mapping[str, dict[str, float]] = {
    name: {str(other): STRENGTH * (other == feature) for other in FEATURES[:3]}
    for name, feature in zip(("first", "second", "third"), FEATURES, strict=False)
}
"""The states of the steering. Each steers one feature, and is one change, whatever the state before."""

REQUESTS: Mapping[str, dict[str, Any]] = {
    "short": {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, "seed": 1},
    "greedy": {"prompt": "The boats", "max_tokens": 100, "temperature": 0, "seed": 2},
    "seeded": {"prompt": "One day", "max_tokens": 100, "temperature": 1.2, "seed": 7},
}

LOST = "engine_unavailable"
"""The only refusal of a request that was accepted."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was answered while nothing was broken: texts by request and state, and the digest of each state."""

    texts: Mapping[tuple[str, str], str]
    digests: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer. `states` are those that were current while the request was in flight. `code` is that of the typed
    error which ended the answer. `fault` says what no answer may be."""

    request: str
    is_streamed: bool
    states: tuple[str, ...]
    text: str
    digest: str | None
    code: str | None = None
    fault: str | None = None


def attach(http: httpx2.Client) -> None:
    """Attach the SAE whose features the states steer."""
    added = http.post("/api/saes/download", json={"local_path": str(SAE.path)})
    path = f"/api/saes/{added.json()['data']['sae_id']}/attach"
    answer = http.post(path, json={"layer": SAE.layer})
    assert answer.status_code == 200, answer.text


def steer(http: httpx2.Client, state: str) -> None:
    answer = http.post(BATCH, json={"steering": STATES[state]})
    assert answer.status_code == 200, answer.text


def learned(http: httpx2.Client) -> Known:
    """Ask for everything alone. Different states give different texts and different digests."""
    texts: dict[tuple[str, str], str] = {}
    digests: dict[str, str | None] = {}
    for state in STATES:
        steer(http, state)
        for name in REQUESTS:
            heard = asked(http, name, is_streamed=False, states=(state,))
            assert heard.code is None, heard
            assert heard.fault is None, heard
            texts[name, state] = heard.text
            digests[state] = heard.digest
    assert len(set(texts.values())) == len(texts), texts
    assert len(set(digests.values())) == len(digests), digests
    return Known(texts, digests)


def asked(
    http: httpx2.Client, name: str, *, is_streamed: bool, states: tuple[str, ...] = ()
) -> Heard:
    """Send a request, and read its answer to the end."""
    body = {"model": demo.MODEL_NAME, "stream": is_streamed, **REQUESTS[name]}
    text, code, fault, digest = "", None, None, None
    try:
        with http.stream("POST", COMPLETIONS, json=body) as answer:
            digest = answer.headers.get(STATE)
            if answer.status_code != 200:
                code, fault = refused(answer)
            elif is_streamed:
                text, code, fault = streamed(answer)
            else:
                text = json.loads(answer.read())["choices"][0]["text"]
    except httpx2.TransportError as error:
        fault = repr(error)
    return Heard(name, is_streamed, states, text, digest, code, fault)


def refused(answer: httpx2.Response) -> tuple[str, str | None]:
    """The code of a refusal, and what is wrong with it."""
    error = json.loads(answer.read())["error"]
    statuses = {row.v1 for row in TABLE.values() if row.v1_code == error["code"]}
    if answer.status_code not in statuses:
        return error["code"], f"{answer.status_code} {error}"
    if answer.status_code == 503 and not answer.headers.get("retry-after", "").isdigit():
        return error["code"], "503 without Retry-After"
    return error["code"], None


def streamed(answer: httpx2.Response) -> tuple[str, str | None, str | None]:
    """The text of a stream, the code of the error that ended it, and what is wrong with it."""
    text = ""
    for line in answer.iter_lines():
        if line == "data: [DONE]":
            return text, None, None
        if line:
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return text, event["error"]["code"], None
            text += event["choices"][0]["text"]
    return text, None, "a stream without its end"


@dataclass(eq=False)
class Crowd:
    """The clients. The book of their answers is in `heard`."""

    url: str
    known: Known
    state: str
    heard: list[Heard] = field(default_factory=list)
    _changes: int = 0
    _states: list[str] = field(default_factory=list)
    _came: threading.Condition = field(default_factory=threading.Condition)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._states = [self.state]

    def steer(self, http: httpx2.Client, state: str) -> None:
        """Change the steering. From its beginning on, answers may have the new state; from its end on, they must."""
        self._states.append(state)
        steer(http, state)
        self._changes = len(self._states) - 1
        self.state = state

    def flow(self, rounds: int = 1) -> None:
        """Wait until each client could have had so many whole answers from now on."""
        with self._came:
            wanted = self._whole() + rounds * CLIENTS
            assert self._came.wait_for(lambda: self._whole() >= wanted, PATIENCE), self.outcomes()

    def _whole(self) -> int:
        return sum(one.code is None for one in self.heard)

    def outcomes(self) -> Counter[str]:
        kinds = ("stream" if one.is_streamed else "whole" for one in self.heard)
        ends = (one.fault or one.code or "answered" for one in self.heard)
        return Counter(f"{kind}: {end}" for kind, end in zip(kinds, ends, strict=True))

    def client(self, number: int) -> None:
        names = itertools.islice(itertools.cycle(REQUESTS), number, None)
        with httpx2.Client(base_url=self.url, timeout=PATIENCE) as http:
            while not self._is_over.is_set():
                first = self._changes
                one = asked(http, next(names), is_streamed=number % 2 == 0)
                self._take(one, tuple(self._states[first:]))

    def _take(self, one: Heard, states: tuple[str, ...]) -> None:
        with self._came:
            self.heard.append(replace(one, states=states))
            self._came.notify_all()

    def end(self) -> None:
        self._is_over.set()

    def check(self) -> None:
        """Nothing was lost without a typed error, and each answer is that of one state which was current."""
        assert not [one for one in self.heard if one.fault], self.outcomes()
        assert {one.code for one in self.heard} <= {None, LOST}, self.outcomes()
        for one in self.heard:
            assert self._is_right(one), (one, self.known.digests)

    def _is_right(self, one: Heard) -> bool:
        """(1) A refusal before the answer tells nothing. (2) The digest is that of a state which was current. (3) A
        whole text was written under such a state; one that was cut off is the beginning of such a text. Only a text
        that was written through a change may have parts of both, because live values hold from pass to pass."""
        if one.code is not None and not one.text and one.digest is None:
            return True  # (1)
        if one.digest not in {self.known.digests[state] for state in one.states}:
            return False  # (2)
        if len(one.states) > 1 and one.request != "short":
            return True
        texts = [self.known.texts[one.request, state] for state in one.states]
        if one.code is None:
            return one.text in texts
        return any(text.startswith(one.text) for text in texts)  # (3)


@contextmanager
def crowding(url: str, known: Known, state: str) -> Iterator[Crowd]:
    """Clients that ask while the block is open. Their answers are checked after it."""
    crowd = Crowd(url, known, state)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(crowd.client, number) for number in range(CLIENTS)]
        try:
            yield crowd
        finally:
            crowd.end()
        for client in clients:
            client.result(2 * PATIENCE)
    crowd.check()
