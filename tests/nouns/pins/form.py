"""What is stored of a pin, what the routes answer, and the live event."""

from __future__ import annotations

from typing import ClassVar

from steerserve.rules.events import LiveEvent
from steerserve.rules.form import Form


class Pin(Form, frozen=True):
    """A pinned feature of an SAE, and why it is pinned."""

    sae_id: str
    index: int
    note: str


class PinList(Form, frozen=True):
    """All pins, in the order of the features."""

    pins: list[Pin]


class PinSet(LiveEvent, frozen=True):
    """A feature was pinned."""

    wire: ClassVar = "pin:set"
    content: ClassVar = "pin"
    pin: Pin
