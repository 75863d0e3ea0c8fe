"""Typed events: forms that owners publish (`control/bus.py`)."""

from __future__ import annotations

import re
from typing import ClassVar, get_type_hints

from msgspec import to_builtins
from msgspec.structs import FieldInfo

from steerserve.rules.form import Form
from steerserve.rules.throttle import WorkReport


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


def _snake(camel: str) -> str:
    return re.sub(r"[A-Z]", lambda match: "_" + match[0].lower(), camel)
