"""One replica of a fleet: its place, the engine that fills the place now, and the requests that run on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TypeVar

from steerserve import messages as m
from steerserve.messages.engine import Engine
from steerserve.rules.residency.heartbeat import Silence
from steerserve.rules.residency.replicas import Candidate, ReplicaState, ReplicaView

Told = TypeVar("Told", m.Recorded, m.SensedSpans, m.SensedEdges)


class Replica:
    """A replica keeps its name when its engine is started again. `number` names the engine of the moment. `leaving` is
    set once the replica is to be taken away, and `idle` is set while no request runs on it. `failures` counts its ends
    and failed starts since it last served for long, `failed_starts` the failed starts since it last served.
    `is_counted` says that the steering which its engine applied was counted after the end of the engine. `replaces` is
    the name of the replica in whose place it is started, until it serves. `given_up` has the labels of the requests
    that another replica runs, because this one stood still.

    Args:
        announce: is called after each change of the state.
        slots: the requests that are meant to run on it at once.
    """

    def __init__(self, name: str, announce: Callable[[Replica], None], slots: int) -> None:
        self.name = name
        self.number = 0
        self.state = ReplicaState.STARTING
        self.engine: Engine | None = None
        self.facts: m.Loaded | None = None
        self.kind: str | None = None
        self.epoch = 0
        self.turn = 0
        self.rows = 0
        self.tokens = 0
        self.requests = 0
        self.failures = 0
        self.failed_starts = 0
        self.is_counted = False
        self.restarts = 0
        self.replaces: str | None = None
        self.reason: str | None = None
        self.served_at: float | None = None
        self.silence: Silence | None = None
        self.given_up: set[str] = set()
        self.leaving = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._announce = announce
        self._slots = slots
        self._since = datetime.now(UTC)

    # ------------------------------------------------------------- state

    def move(self, state: ReplicaState, reason: str | None = None) -> None:
        """Come into a state, and announce it."""
        self.state = state
        self.reason = None if state is ReplicaState.SERVING else reason or self.reason
        self._since = datetime.now(UTC)
        self._announce(self)

    def fill(self, engine: Engine, number: int) -> None:
        """A new engine fills the place."""
        self.engine, self.number, self.facts = engine, number, None
        self.silence, self.is_counted, self.given_up = None, False, set()

    def heeded(self, report: Callable[[Told], None]) -> Callable[[Told], None]:
        """`report` for what the engine says of requests, without the requests that another replica runs."""

        def report_heeded(event: Told) -> None:
            if event.label not in self.given_up:
                report(event)

        return report_heeded

    def load(self, facts: m.Loaded) -> None:
        """The engine has loaded the model."""
        self.facts = facts
        device = facts.device.partition(",")[0].partition(":")[0]
        self.kind = f"{device}/{facts.dtype}/{facts.probe[:16]}"

    @property
    def is_alive(self) -> bool:
        """Whether the engine runs and sends heartbeats."""
        engine = self.engine
        return engine is not None and not engine.ended.done() and engine.heartbeat.stalled is None

    @property
    def has_state(self) -> bool:
        """Whether the engine has been told what all engines are told, and has to be told every change of it."""
        return self.state in (ReplicaState.SERVING, ReplicaState.DRAINING, ReplicaState.STALLED)

    @property
    def is_restored(self) -> bool:
        """Whether the engine has been told what all engines are told, or is being told."""
        return self.has_state or self.state is ReplicaState.RESTORING

    @property
    def running(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def lose(self, reason: str) -> None:
        """End the engine by force. Its place gets no request from now on. An engine that has ended is left alone."""
        if self.engine is None or self.engine.ended.done():
            return
        self.engine.lose(reason)
        if self.state is not ReplicaState.DRAINING:
            self.move(ReplicaState.LOST, reason)

    # ------------------------------------------------------------- requests

    @contextmanager
    def holding(self, rows: int, tokens: int, turn: int) -> Iterator[None]:
        """A request with so many rows and tokens runs inside the block."""
        self.turn = turn
        self.requests += 1
        self.rows += rows
        self.tokens += tokens
        self.idle.clear()
        try:
            yield
        finally:
            self.requests -= 1
            self.rows -= rows
            self.tokens -= tokens
            if not self.requests:
                self.idle.set()

    # ------------------------------------------------------------- as others see it

    def candidate(self, held: int) -> Candidate:
        """The replica as the choice for a request sees it; `held` counts the blocks of the prompt that it holds."""
        is_lost = self.state is ReplicaState.SERVING and not self.is_alive
        state = ReplicaState.LOST if is_lost else self.state
        return Candidate(state, self.epoch, self.kind, self.rows, self.tokens, held, self.turn)

    def view(self) -> ReplicaView:
        engine = self.engine
        is_running = engine is not None and not engine.ended.done()
        facts = self.facts if is_running else None
        memory = facts.memory_by_device_mb if facts is not None else {}
        return ReplicaView(
            name=self.name,
            node=engine.node if engine is not None else None,
            address=engine.address if engine is not None else None,
            pid=engine.pid if engine is not None and is_running else None,
            state=self.state,
            epoch=self.epoch,
            requests=self.requests,
            slots=self._slots,
            gpu_indices=tuple(facts.gpu_indices) if facts is not None else (),
            devices=tuple(memory),
            memory_mb=tuple(memory.values()),
            kind=self.kind,
            restarts=self.restarts,
            reason=self.reason,
            since=self._since,
            replaces=self.replaces,
        )
