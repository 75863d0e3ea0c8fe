"""An engine that a test drives by messages alone: it gets commands turn by turn, and what it sends is kept."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from steerserve import messages as m
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.process.loading import LoadedModel
from steerserve.worker.process.loop import Worker
from steerserve.worker.process.wire import Wire
from tests import asking
from tests.worker.saes import source

KEY = "sae@0"
MEMBERS = [m.ClusterMember(feature, 2.0) for feature in (0, 8, 27)]
CLUSTER = m.ArmedCluster("c", "C", KEY, MEMBERS, 2, 50, 2)
CIRCUIT = m.ArmedCircuit(
    "e",
    "E",
    [m.CircuitFeature(KEY, 0, 0, 2.0), m.CircuitFeature(KEY, 0, 44, 2.0)],
    [m.CircuitEdge("edge", 0, 1, 1, "said", None)],
    2,
    50,
    2,
)
LIVE = m.Steering(1, True, {KEY: {5: 3.0}})
"""What is sensed in rows that are recorded, and what steers rows that follow the live steering."""
PATIENCE = 30.0
"""Seconds after which a test that still waits for a thread of the engine fails."""

FIRST_ID = 1_000_000
"""The number of the first request. No token and no position has such a number."""

VOLATILE = ("id", "seconds", "overhead_ms")
"""The fields of outcomes that differ from run to run."""

NUMBERS = ("vector", "states", "values")
"""The fields of outcomes that hold float32; other bytes hold whole numbers."""

Turn = Sequence[m.Command]
Answer = dict[str, Any]


class Script(Wire):
    """A wire that brings the commands of one turn after the other, and closes once all requests have ended. `live` says
    whether a live request has come that the engine has not read yet."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.sent: list[m.Event] = []
        self.is_closed = False
        self.live: Callable[[], bool] = lambda: False
        self._rows: dict[int, int] = {}
        self._arrival = threading.Event()

    @property
    def is_answered(self) -> bool:
        """Whether every request has ended."""
        return not self._rows

    def wake(self) -> None:
        self._arrival.set()

    def receive(self, *, wait: bool, seconds: float | None = None) -> Iterator[m.Command]:
        if self.turns:
            for command in self.turns.pop(0):
                if prompts := getattr(command, "prompts", ()):
                    self._rows[command.id] = len(prompts) * command.goal.rows
                elif isinstance(command, m.Cancel):
                    self._rows.pop(command.id, None)
                yield command
        elif self.is_answered:
            self.is_closed = True
        elif wait:
            is_awake = self._arrival.wait(PATIENCE if seconds is None else seconds)
            assert is_awake or seconds is not None, f"no end of the requests {list(self._rows)}"
            self._arrival.clear()

    def pending(self) -> Sequence[m.Command]:
        return [asking.generate(0, [])] if self.live() else []

    def send(self, event: m.Event) -> None:
        m.frame(event)
        self.sent.append(event)
        if isinstance(event, m.Refused):
            self._rows.pop(event.id, None)
        for outcome in event.outcomes if isinstance(event, m.Stepped) else ():
            if m.is_last(outcome):
                self._end_row(outcome.id)

    def _end_row(self, request: int) -> None:
        assert request in self._rows, f"the request {request} has ended already"
        self._rows[request] -= 1
        if not self._rows[request]:
            del self._rows[request]


class Engine:
    """An engine with the checkpoint and the SAE, which is attached as KEY at layer 0, monitored and sensed."""

    def __init__(self, checkpoint: Path, sae: Path, **fields: Any) -> None:
        self.wire = Script()
        self.worker = Worker(self.wire)
        wanted: dict[str, Any] = {"kv_cache_mb": 64, "prefix_cache_mb": 0, **fields}
        load = m.Load(1, str(checkpoint), "FP16", False, 1, min_context=16, **wanted)
        placed = m.PlacedSae(KEY, source(sae), 0, check=False)
        self.state = m.State((placed,), LIVE, m.Monitored(KEY, None, 4), CLUSTER, (CIRCUIT,))
        events = self.run([load], [m.Apply(2, self.state)])
        assert any(isinstance(event, m.Applied) for event in events), events
        self.loaded = next(event for event in events if isinstance(event, m.Loaded))
        self._ids = count(FIRST_ID)

    @property
    def model(self) -> Checkpoint:
        """The loaded model."""
        loaded = self.worker.commands.loaded
        assert isinstance(loaded, LoadedModel)
        return loaded.model

    def next_id(self) -> int:
        """A number that no request had."""
        return next(self._ids)

    def run(self, *turns: Turn) -> list[m.Event]:
        """The events of these turns, and of those until all requests have ended."""
        self.wire.turns, self.wire.is_closed = list(turns), False
        before = len(self.wire.sent)
        self.worker.run()
        return self.wire.sent[before:]

    def told(self, *commands: m.Command, at_once: bool = True) -> dict[int, Answer]:
        """The answers to these requests, which come in one turn or each in a turn of its own."""
        turns = [list(commands)] if at_once else [[command] for command in commands]
        return answers(self.run(*turns))

    def answer(self, make: Callable[[int], m.Command]) -> Answer:
        """The answer to a request that has the engine to itself."""
        number = self.next_id()
        return self.told(make(number))[number]

    def close(self) -> None:
        """Stop the engine, with its hooks at the model."""
        self.run([m.Apply(3, m.State())], [m.Stop(4)])


def answers(events: Sequence[m.Event]) -> dict[int, Answer]:
    """What each request was answered, without what differs from run to run. The readings of passes are joined, because
    how a prompt is cut is nobody's business."""
    told: dict[int, Answer] = {}
    for event in events:
        outcomes = event.outcomes if isinstance(event, m.Stepped) else [event]
        for outcome in outcomes:
            if not getattr(outcome, "id", 0):
                continue
            of = told.setdefault(outcome.id, {})
            plain = _plain(outcome)
            choice = getattr(outcome, "choice", 0)
            if (read := asking.told(outcome, "activations")) is not None:
                of.setdefault(f"activations {choice}", []).extend(_plain(read))
            if isinstance(outcome, m.Piece | m.Scored):
                names = (name for name in outcome.parts if name != "activations")
                plain["parts"] = {name: _plain(asking.told(outcome, name)) for name in names}
            if isinstance(outcome, m.Piece) and not (
                outcome.text or outcome.finish or plain["parts"]
            ):
                continue
            of.setdefault(f"{type(outcome).__name__} {choice}", []).append(plain)
    return told


def _plain(value: Any, name: str = "") -> Any:
    """An event, or a part of one, as plain values."""
    if isinstance(value, msgspec.Struct):
        fields = structs.asdict(value)
        return {of: _plain(part, of) for of, part in fields.items() if of not in VOLATILE}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        kind = "f" if name in NUMBERS else "I"
        return list(struct.unpack(f"<{len(value) // 4}{kind}", value))
    return value


def text_of(answer: Answer, choice: int = 0) -> str:
    """The text of a choice."""
    return "".join(piece["text"] for piece in answer[f"Piece {choice}"])


def code_of(answer: Answer) -> str | None:
    """The code with which a request was refused."""
    refusals = answer.get("Refused 0", [])
    return refusals[0]["code"] if refusals else None
