"""Typed events inside the control plane. Owners publish them, and subscribers get them.

An event is a form (`rules/events.py`) of its noun, or of its domain (`events.py` in its folder).
An exception in a subscriber is logged, and the other subscribers still get the event.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from steerserve.rules.events import Event

log = structlog.get_logger(__name__)

Subscriber = Callable[[Event], None]


class Bus:
    """Calls every subscriber with each event, in the order of their subscription, before `publish` returns."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def publish(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                log.exception("subscriber_failed", published=type(event).__name__)
