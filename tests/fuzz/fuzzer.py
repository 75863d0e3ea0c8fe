"""The threads of a run, and what each of them sends."""

from __future__ import annotations

import itertools
import json
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random

from tests.described import Description
from tests.fuzz import bodies, documents, events, raw, report
from tests.fuzz.client import Answer, Client, Request
from tests.fuzz.described import Described
from tests.fuzz.races import Race
from tests.fuzz.report import Chunk, Tally
from tests.fuzz.routes import JSON, ROUTES
from tests.fuzz.sequences import Caller, Sequence
from tests.fuzz.world import World

THREADS = 6
NICENESS = 10
BESIDE = 2
"""Threads whose requests change nothing while sequences and races run."""
COUNT = 40
"""Requests of a chunk of bodies or of bytes."""
DOCUMENTS = 4
"""Documents of a chunk, each of up to five requests."""
WEIGHTS = {"described": 5, "bodies": 7, "documents": 4, "raw": 3, "events": 2}
"""How often chunks of each kind are drawn while everything is mixed."""
TIDY_EVERY = 2000
"""Requests after which one thread removes what was added."""


class Fuzzer:
    """The threads of a run."""

    def __init__(self, world: World, seed: int, kinds: tuple[str, ...] = ()) -> None:
        self._world = world
        self._seed = seed
        self._weights = {k: w for k, w in WEIGHTS.items() if k in kinds or not kinds}
        document = world.description()
        self._described = Described(document)
        paths = [path for _, path in self._described.routes] + ["/", "/docs", "/openapi.json"]
        self.tally = Tally(world.url, report.patterns(paths), Description(document))
        self.routes = self._described.routes
        self._tidying = threading.Lock()
        self._tidied = 0

    # ------------------------------------------------------------- phases

    def mixed(self, requests: int, name: str = "") -> None:
        """Everything at once, until so many requests were sent."""
        chunks = _drawn(Random(f"{self._seed}/{name}/mixed"), self._weights, name)
        self._drive([lambda: self._work(chunks, requests)] * THREADS)

    def stateful(self, requests: int) -> None:
        """Sequences and races in turn, beside requests that change nothing."""
        chunks = (Chunk(("sequences", "sequences", "races")[n % 3], n) for n in itertools.count())
        over = threading.Event()

        def lane() -> None:
            try:
                self._work(chunks, requests)
            finally:
                over.set()

        def beside(number: int) -> None:
            for turn in itertools.count():
                if over.is_set():
                    return
                self.run(Chunk("quiet", number + turn * BESIDE))

        requests += self.tally.total
        self._world.restore()
        self._drive([lane, *(lambda number=n: beside(number) for n in range(BESIDE))])

    def _work(self, chunks: Iterator[Chunk], requests: int) -> None:
        while self.tally.total < requests:
            with self._tidying:
                chunk = next(chunks)
                if chunk.kind not in ("sequences", "races") and self._is_untidy():
                    self._world.tidy()
            self.run(chunk)

    def _is_untidy(self) -> bool:
        is_untidy = self.tally.total - self._tidied > TIDY_EVERY
        if is_untidy:
            self._tidied = self.tally.total
        return is_untidy

    @staticmethod
    def _drive(work: list[Callable[[], None]]) -> None:
        """Run in threads; the first exception of one is raised here."""
        raised: list[BaseException] = []

        def guarded(one: Callable[[], None]) -> None:
            try:
                os.nice(
                    NICENESS
                )  # of this thread: clients are elsewhere, and take no time from the service
                one()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]

    # ------------------------------------------------------------- chunks

    def run(self, chunk: Chunk) -> None:
        """Send the requests of one chunk."""
        seed = f"{self._seed}/{chunk.kind}/{chunk.number}"
        draw = Random(seed)
        client = Client(self._world.url)
        try:
            match chunk.kind.removeprefix("warm "):
                case "described":
                    self._send_all(
                        chunk, client, self._described.requests(chunk.number, seed, self._world)
                    )
                case "bodies":
                    made = (bodies.hostile(draw, self._world) for _ in range(COUNT))
                    self._send_all(chunk, client, made)
                case "documents":
                    for _ in range(DOCUMENTS):
                        documents.hostile(draw, self._world, partial(self._sent, chunk, client))
                case "raw":
                    for _ in range(COUNT):
                        sent = raw.hostile(draw)
                        self.tally.take(chunk, sent, client.send_bytes(sent))
                case "events":
                    self._talk(chunk, client, draw)
                case "quiet":
                    self._send_all(chunk, client, (_quiet(draw) for _ in range(COUNT)))
                case "sequences":
                    Sequence(self._world, Caller(client, self.tally, chunk), draw).run()
                case "races":
                    Race(self._world, self.tally, chunk, draw).run()
        except Exception as error:  # the other chunks still tell something
            trace = traceback.format_exc().strip().splitlines()[-3:-1]
            self.tally.note(chunk, f"{type(error).__name__}: {error} {' '.join(trace)}")
        finally:
            client.close()

    def _send_all(self, chunk: Chunk, client: Client, requests: Iterable[Request]) -> None:
        for request in requests:
            self.tally.take(chunk, request, client.send(request))

    def _sent(self, chunk: Chunk, client: Client, request: Request) -> Answer:
        answer = client.send(request)
        self.tally.take(chunk, request, answer)
        return answer

    def _talk(self, chunk: Chunk, client: Client, draw: Random) -> None:
        for _ in range(3):
            self._send_all(chunk, client, events.polled(draw, client))
            sent, wrong = events.spoken(draw, client)
            self.tally.take(chunk, sent, Answer())
            if wrong:
                self.tally.note(chunk, wrong, "/socket.io", sent)


def _drawn(draw: Random, weights: dict[str, int], name: str) -> Iterator[Chunk]:
    kinds = list(weights)
    numbers = {kind: itertools.count() for kind in kinds}
    while True:
        kind = draw.choices(kinds, list(weights.values()))[0]
        yield Chunk(f"{name} {kind}".strip(), next(numbers[kind]))


READ = [path for _, method, path, _ in ROUTES if method == "GET" and "{" not in path]


def _quiet(draw: Random) -> Request:
    """A request that changes nothing."""
    if draw.random() < 0.5:
        return Request("GET", draw.choice(READ))
    body = {
        "model": "steerserve-demo",
        "prompt": "One day",
        "max_tokens": 2,
        "stream": draw.random() < 0.5,
    }
    headers = (("Content-Type", JSON), ("X-Service-Load-Policy", "refuse"))
    return Request("POST", "/v1/completions", json.dumps(body).encode(), headers)
