"""The heartbeat of the engine: one number, which the main loop writes and the control plane reads. The number stays
readable when the engine stands still. Only the main thread writes it, so that no other thread hides a loop that is
stuck."""

from __future__ import annotations

import ctypes
from typing import Protocol

from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Activity


class Word(Protocol):
    """A number of 64 bits that both processes see."""

    value: int


class Pulse:
    """Writes what the engine is doing, and a count that grows with every sign."""

    def __init__(self, word: Word | None = None) -> None:
        self._word: Word = ctypes.c_uint64() if word is None else word
        self._activity = Activity.STARTING
        self._count = 0

    def doing(self, activity: Activity) -> None:
        """The engine does this from now on."""
        self._activity = activity
        self.beat()

    def passing(self, activity: Activity) -> None:
        """A pass begins. A pass within a load or an attach is a sign of that work, which may be silent for longer."""
        is_within = self._activity in (Activity.LOAD, Activity.SAE)
        self.doing(self._activity if is_within else activity)

    def beat(self) -> None:
        """The engine gets on with what it is doing."""
        self._count += 1
        self._word.value = heartbeat.word(self._activity, self._count)
