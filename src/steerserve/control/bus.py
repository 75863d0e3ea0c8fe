"""Typed events inside the control plane. Owners publish them, and subscribers get them.

An event is a form of its domain (`events.py` in the folder of the domain). A `LiveEvent` goes to clients too.
An exception in a subscriber is logged, and the other subscribers still get the event.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, get_type_hints

import structlog
from msgspec import to_builtins
from msgspec.structs import FieldInfo

from steerserve.rules.form import Form
from steerserve.rules.throttle import WorkReport

log = structlog.get_logger(__name__)


class Event(Form, frozen=True):
    """What happened. Only owners get it."""


class LiveEvent(Event, frozen=True, omit_defaults=True, rename="camel"):
    """An event that clients get too, under the name `wire`. Its keys are camelCase, and each is repeated in snake_case
    for clients that read those names. A field with its default is left out.

    Attributes:
        content: the field whose value is sent in place of the event; None where the event itself is sent.
    """

    wire: ClassVar[str]
    content: ClassVar[str | None] = None

    def work_report(self) -> WorkReport | None:
        """What the event reports of, where there are so many reports that clients get only some of them."""
        return None

    def payload(self) -> dict[str, object]:
        sent: dict[str, object] = to_builtins(getattr(self, self.content) if self.content else self)
        return sent if self.content else sent | {_snake(key): sent[key] for key in sent}

    @classmethod
    def described(cls) -> object:
        """The type of what is sent, for the description of the API."""
        return get_type_hints(cls)[cls.content] if cls.content else cls

    @classmethod
    def _keys(cls, field: FieldInfo) -> tuple[str, ...]:
        return tuple(dict.fromkeys((field.encode_name, _snake(field.encode_name))))


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


def _snake(camel: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), camel)
