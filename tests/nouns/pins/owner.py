"""Owner of the pins."""

from __future__ import annotations

from steerserve.control.bus import Bus

from .form import Pin, PinList, PinSet
from .rules import check_note
from .store import PinStore


class Pins:
    """Keeps pins, and says when one is set."""

    def __init__(self, store: PinStore, bus: Bus) -> None:
        self._store = store
        self._bus = bus

    async def all(self) -> PinList:
        return PinList(await self._store.all())

    async def set(self, pin: Pin) -> Pin:
        """Raises:
        Refusal: VALIDATION_ERROR, DATABASE_UNAVAILABLE.
        """
        check_note(pin.note)
        await self._store.put(pin)
        self._bus.publish(PinSet(pin))
        return pin
