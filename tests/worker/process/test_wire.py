"""The engine's end of the socket gives each command once, in the order in which they came."""

from __future__ import annotations

import socket

from steerserve import messages as m
from steerserve.worker.process.wire import Wire


def test_commands_that_were_looked_at_are_received_in_their_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Wire(theirs) as wire:
        assert list(wire.pending()) == []
        frame = m.frame(m.Measure(2))
        ours.sendall(m.frame(m.Measure(1)) + frame[:3])
        assert list(wire.pending()) == [m.Measure(1)]
        ours.sendall(frame[3:] + m.frame(m.Cancel(3)))
        assert list(wire.pending()) == [m.Measure(1), m.Measure(2), m.Cancel(3)]
        ours.sendall(m.frame(m.Measure(4)))
        received = list(wire.receive(wait=True))
        assert received == [m.Measure(1), m.Measure(2), m.Cancel(3), m.Measure(4)]
        assert list(wire.receive(wait=False)) == []


def test_a_look_at_the_commands_leaves_a_wake_for_the_next_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Wire(theirs) as wire:
        wire.wake()
        assert list(wire.pending()) == []
        assert list(wire.receive(wait=True)) == []


def test_a_look_finds_that_the_other_end_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Wire(theirs) as wire:
        ours.sendall(m.frame(m.Measure(1)))
        ours.close()
        assert list(wire.pending()) == [m.Measure(1)]
        assert wire.is_closed
        assert list(wire.receive(wait=True)) == [m.Measure(1)]
