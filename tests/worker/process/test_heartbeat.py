"""The engine's heartbeats: what the number says before, within and after the work of the main loop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steerserve import messages as m
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Activity
from steerserve.worker.heartbeat import Pulse
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.process import loop
from steerserve.worker.process import wire as wires
from steerserve.worker.process.wire import Wire
from tests.worker.running import Bench, words


class Recorded:
    """A number that remembers the activities that were written, each with the count of its signs."""

    def __init__(self) -> None:
        self.written: list[tuple[Activity, int]] = []
        self._value = 0

    @property
    def value(self) -> int:
        return self._value

    @value.setter
    def value(self, number: int) -> None:
        self._value = number
        activity = heartbeat.sign(number).activity
        if self.written and self.written[-1][0] is activity:
            self.written[-1] = activity, self.written[-1][1] + 1
        else:
            self.written.append((activity, 1))


def test_every_layer_of_a_pass_is_a_sign(llama: Checkpoint) -> None:
    word = Recorded()
    before, llama.pulse = llama.pulse, Pulse(word)
    try:
        bench = Bench(llama)
        bench.ask(1, words(20), max_tokens=2)
        bench.run()
    finally:
        llama.pulse = before
    # a pass, and its two layers
    assert word.written == [(Activity.PREFILL, 3), (Activity.DECODE, 3)]


@pytest.mark.parametrize("activity", [Activity.LOAD, Activity.SAE])
def test_a_pass_within_an_attach_or_a_load_is_a_sign_of_that_work(
    llama: Checkpoint, activity: Activity
) -> None:
    word = Recorded()
    before, llama.pulse = llama.pulse, Pulse(word)
    try:
        llama.pulse.doing(activity)
        bench = Bench(llama)
        bench.ask(1, words(20), max_tokens=2)
        bench.run()
    finally:
        llama.pulse = before
    assert word.written == [(activity, 7)]


class Scripted(Wire):
    """A wire that brings these commands at once, then closes."""

    def __init__(self, *commands: m.Command) -> None:
        self.commands = list(commands)
        self.events: list[Any] = []
        self.is_closed = False

    def receive(self, *, wait: bool, seconds: float | None = None) -> Iterator[m.Command]:
        self.is_closed = not self.commands
        yield from self.commands
        self.commands = []

    def send(self, event: m.Event) -> None:
        self.events.append(event)


def test_the_loop_says_what_it_is_doing(folder: Callable[[str], Path]) -> None:
    word = Recorded()
    load = m.Load(
        id=1,
        path=str(folder("llama")),
        quantization="FP16",
        trust_remote_code=False,
        threads=1,
        kv_cache_mb=8,
        min_context=16,
    )
    loop.Worker(Scripted(load, m.Measure(2)), Pulse(word)).run()
    assert [activity for activity, _ in word.written] == [
        Activity.IDLE,
        Activity.LOAD,
        Activity.COMMAND,
        Activity.IDLE,
    ]
    assert word.written[1][1] > 3  # the stages of a load are signs


def test_a_command_that_comes_with_its_cancel_is_refused() -> None:
    wire = Scripted(m.Measure(1), m.Measure(2), m.Cancel(1))
    loop.Worker(wire).run()
    answers = [event for event in wire.events if not isinstance(event, m.TurnsChanged)]
    assert [(event.id, type(event)) for event in answers] == [(1, m.Refused), (2, m.Measured)]


def test_an_idle_wire_gives_a_sign_until_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "SIGN_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs, Wire(theirs) as wire:
        signs_given: list[int] = []

        def beat() -> None:
            signs_given.append(1)
            if len(signs_given) == 3:
                ours.sendall(m.frame(m.Measure(7)))

        wire.beat = beat
        assert list(wire.receive(wait=True)) == [m.Measure(7)]
        assert len(signs_given) == 3
        assert list(wire.receive(wait=True, seconds=0.005)) == []
        assert len(signs_given) == 3
        assert list(wire.receive(wait=False)) == []
