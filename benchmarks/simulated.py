"""Engines that wait instead of computing: `python -m benchmarks.simulated SOCKET FACTS [--step-ms MS] [--rows ROWS]`.

The process listens on a Unix socket. Each connection is one engine, which speaks the wire of the real one. All rows of
an engine share a step, which takes a fixed time, and each row gets a token at the end of each step. Commands are
carried out between two steps, as by the real batch. FACTS is a file of `Facts`: what a real engine said about the model
and an SAE.

A token is the text of a `Mark`: the steering that was live when the token was made, and the time at which the engine
sent it. So the client sees what steered each token, and how long the token was on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import struct
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from steerserve import messages as m

DIMENSIONS = 64
"""The length of the vectors of embeddings."""


MARKS = 16
"""The number of marks for each unit of a steering value."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What one token says: the largest live steering value, times MARKS, and the time when the token was sent in
    microseconds of `time.perf_counter`, which all processes of a machine share."""

    steering: int
    sent_us: int

    def __str__(self) -> str:
        return f" {self.steering}@{self.sent_us}"

    @classmethod
    def of(cls, text: str) -> list[Mark]:
        """The marks of the tokens of a text."""
        pairs = (word.split("@") for word in text.split())
        return [cls(int(steering), int(sent)) for steering, sent in pairs]


class Facts(msgspec.Struct, frozen=True):
    """The answers of a real engine to a load, an inspection of an SAE, and an attach."""

    loaded: m.Loaded
    claims: m.Claims
    attached: m.Attached


class Shape(msgspec.Struct, frozen=True):
    """How an engine steps: the seconds of a step, and the most rows that share one."""

    step_s: float
    rows: int


class _Row:
    """One choice that is being written."""

    __slots__ = ("choice", "maximum", "number", "tokens")

    def __init__(self, number: int, choice: int, maximum: int) -> None:
        self.number = number
        self.choice = choice
        self.maximum = maximum
        self.tokens = 0


class SimulatedEngine(asyncio.Protocol):
    """One connection: the end of an engine."""

    def __init__(self, facts: Facts, shape: Shape) -> None:
        self._facts = facts
        self._shape = shape
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._commands: list[m.Command] = []
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._ends_at: float | None = None
        """When the running step ends; None while no step runs."""
        self._steering = 0
        self._applied: dict[str, int] = {}
        self._transport: asyncio.Transport | None = None

    # ------------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= m.LENGTH.size:
            end = m.LENGTH.size + m.LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                break
            self._commands.append(m.decode_command(bytes(buffer[m.LENGTH.size : end])))
            del buffer[:end]
        if self._ends_at is None:
            self._turn(self._loop.time())

    def _send(self, event: m.Event) -> None:
        if self._transport is not None:
            self._transport.write(m.frame(event))

    # ------------------------------------------------------------- the batch

    def _turn(self, now: float) -> None:
        """Carry out what was asked, and begin a step if there are rows. A step begins when the step before was due to
        end, so a timer that is late does not make the engine slower."""
        commands, self._commands = self._commands, []
        for command in commands:
            self._obey(command)
        while self._waiting and len(self._rows) < self._shape.rows:
            self._rows.append(self._waiting.popleft())
        self._ends_at = None
        if self._rows and self._transport is not None:
            self._ends_at = now + self._shape.step_s
            self._loop.call_at(self._ends_at, self._end_step)

    def _end_step(self) -> None:
        assert self._ends_at is not None
        text = str(Mark(self._steering, int(time.perf_counter() * 1e6)))
        pieces: list[m.Outcome] = []
        staying = []
        for row in self._rows:
            row.tokens += 1
            is_over = row.tokens >= row.maximum
            finish = "length" if is_over else None
            pieces.append(m.Piece(row.number, row.choice, text, row.tokens, finish))
            if not is_over:
                staying.append(row)
        self._rows = staying
        if self._steering:
            self._applied = {key: count + 1 for key, count in self._applied.items()}
        if pieces:
            self._send(m.Stepped(pieces, self._applied))
        late = self._loop.time() - self._ends_at
        self._turn(self._ends_at if late < self._shape.step_s else self._loop.time())

    # ------------------------------------------------------------- commands

    def _obey(self, command: m.Command) -> None:
        match command:
            case m.Request():
                lengths = [len(p.ids) for p in command.prompts if isinstance(p, m.Tokens)]
                self._send(m.Started(command.id, lengths))
                self._begin(command)
            case m.Cancel():
                self._rows = [row for row in self._rows if row.number != command.id]
                self._waiting = deque(row for row in self._waiting if row.number != command.id)
            case m.Stop():
                if self._transport is not None:
                    self._transport.close()
            case _:
                self._send(self._answer(command))

    def _begin(self, request: m.Request) -> None:
        """Answer a request: texts are written step by step, and all else is told at once."""
        number, each = request.id, range(len(request.prompts))
        match request.goal:
            case m.Generate() as goal:
                for choice in range(len(request.prompts) * goal.rows):
                    self._waiting.append(_Row(number, choice, goal.promised))
            case m.Score():
                best = m.TokenScore(0, " 0", -1.0)
                scored: list[m.Outcome] = [m.Scored(number, i, best, [best]) for i in each]
                self._send(m.Stepped(scored, self._applied))
            case m.Embed():
                vector = struct.pack(f"<{DIMENSIONS}f", *([1.0] * DIMENSIONS))
                embedded: list[m.Outcome] = [m.Embedded(number, i, vector) for i in each]
                self._send(m.Stepped(embedded, self._applied))
            case _:
                self._send(m.Done(number))

    def _answer(self, command: m.Command) -> m.Event:
        """The answer to a command that is one event."""
        number, facts = command.id, self._facts
        match command:
            case m.Load():
                self._send(m.Progress(number, m.LOADING_WEIGHTS, 50.0))
                return msgspec.structs.replace(facts.loaded, id=number)
            case m.Measure():
                return m.Measured(number)
            case m.Inspect():
                return m.Inspected(number, facts.claims)
            case m.Apply():
                steering, keys = command.state.steering, command.state.keys
                values = [v for of in steering.values.values() for v in of.values()]
                self._steering = round(MARKS * max(values, default=0)) if steering.enabled else 0
                self._applied = {key: self._applied.get(key, 0) for key in keys}
                return m.Applied(number, dict.fromkeys(keys, facts.attached))
            case m.ReadStatistics():
                return m.Statistics(number, [], 0, 0)
            case m.ReadContexts():
                return m.Contexts(number, 0, [])
            case m.Explore():
                return m.Explored(number, [], [])
            case _:
                pass
        return m.Done(number)


async def _serve(path: str, facts: Facts, shape: Shape) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    server = await loop.create_unix_server(lambda: SimulatedEngine(facts, shape), path)
    async with server:
        await over.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("facts", type=Path)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rows", type=int, default=64)
    given = parser.parse_args()
    facts = msgspec.msgpack.decode(given.facts.read_bytes(), type=Facts)
    uvloop.run(_serve(given.socket, facts, Shape(given.step_ms / 1e3, given.rows)))


if __name__ == "__main__":
    main()
