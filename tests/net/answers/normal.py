"""An answer in the form in which two runs of one build have the same: ids, times and lengths become placeholders.

The bytes are pinned too: what is left out of a placeholder's value is checked here, and every JSON text must be the one
that the encoder of the service makes of its value.
"""

from __future__ import annotations

import base64
import re
import struct
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from httpx2 import Response

Normal = dict[str, Any]
"""The status, the headers and the body or the events of an answer."""

_ID = re.compile(r"\b(chatcmpl-|cmpl-|resp_|msg_|req_|comparison_)([0-9a-f]{24})\b")
_DURATION = re.compile(r"dur=[0-9.]+")
_SEED = re.compile(r"^\d+")
_TIMES = ("created", "created_at")
_OF_MACHINES = ("versions", "machine")
"""Objects about the machine and the libraries of a run."""
_CLOCK_SECONDS = 600
_UNPINNED_HEADERS = ("date",)
_encoded = msgspec.json.Encoder().encode


class Told:
    """Replaces what differs between two runs in an answer, and in what is asked after it. Equal ids have equal
    placeholders.

    The choices of a stream come as it happens: which of them waits for a beginning that another one reads depends on
    what is kept. They are put in their order.

    Args:
        names: the texts that a world has chosen for its ids, with the names of these in the tables.
        is_seeded: whether the request has a seed; otherwise a seed in the answer is one that the service chose.
    """

    def __init__(self, names: Mapping[str, str], *, is_seeded: bool = True) -> None:
        self._names = names
        self._is_seeded = is_seeded
        self._ids: dict[str, int] = {}

    def normal(self, answer: Response) -> Normal:
        """An answer without what differs between two runs."""
        headers = {
            name: self.header(name, value, answer)
            for name, value in answer.headers.items()
            if name not in _UNPINNED_HEADERS
        }
        made: Normal = {"status": answer.status_code, "headers": headers}
        if answer.headers["content-type"].startswith("text/event-stream"):
            return made | {"events": self.events(answer.content)}
        return made | {"body": self.json(answer.content)}

    def header(self, name: str, value: str, answer: Response) -> str:
        if name == "content-length":
            assert int(value) == len(answer.content)
            return "<length>"
        if name == "server-timing":
            return _DURATION.sub("dur=<ms>", value)
        if name == "x-service-seed" and not self._is_seeded:
            return _SEED.sub("<seed>", value)
        return self.text(value)

    def text(self, text: str) -> str:
        for actual, name in self._names.items():
            text = text.replace(actual, name)
        return _ID.sub(self._id, text)

    def _id(self, found: re.Match[str]) -> str:
        number = self._ids.setdefault(found[2], len(self._ids) + 1)
        return f"{found[1]}<{number}>"

    def json(self, content: bytes) -> Any:
        """The value of a JSON text, which must be as short as the encoder makes it."""
        value = msgspec.json.decode(content)
        assert _encoded(value) == content, "the JSON is not in the form of the encoder"
        return self.value(value)

    def value(self, value: Any, name: str = "") -> Any:
        match value:
            case dict() if name in _OF_MACHINES:
                return {key: f"<{key}>" for key in value}
            case dict():
                return {self.text(key): self.value(one, key) for key, one in value.items()}
            case list():
                return [self.value(one) for one in value]
            case str() if name == "embedding":
                return _numbers(value)
            case int() | str() if name in _TIMES:
                return _time(value)
            case str():
                return self.text(value)
            case int() if name == "seed" and not self._is_seeded:
                return "<seed>"
        return value

    def events(self, content: bytes) -> list[Any]:
        """The events of a stream, each as its data, or with its name beside the data. A comment is a text."""
        whole = content.decode()
        assert whole.endswith("\n\n")
        found = [self._event(part) for part in whole.removesuffix("\n\n").split("\n\n")]
        return _in_order(found)

    def _event(self, part: str) -> Any:
        if part.startswith(":"):
            return part
        name, _, data = part.rpartition("\n")
        assert data.startswith("data: "), part
        text = data.removeprefix("data: ")
        told = text if text == "[DONE]" else self.json(text.encode())
        if not name:
            return told
        assert name.startswith("event: "), part
        return {"event": name.removeprefix("event: "), "data": told}


def _in_order(events: list[Any]) -> list[Any]:
    """The events of a stream by their choices. What only the last event has comes behind them, because any choice may be
    the last."""
    chunks = [one for one in events if isinstance(one, dict) and one.get("choices")]
    if len({one["choices"][0]["index"] for one in chunks}) < 2:
        return events
    others = [one for one in events if one not in chunks]
    *before, last = chunks
    shared = {name for one in before for name in one}
    rest = {name: value for name, value in last.items() if name not in shared}
    plain = [*before, {name: value for name, value in last.items() if name in shared}]
    return [*sorted(plain, key=lambda one: one["choices"][0]["index"]), rest, *others]


def _time(told: int | str) -> str:
    """The placeholder of a time, which must be now."""
    seconds = told if isinstance(told, int) else datetime.fromisoformat(told).timestamp()
    assert abs(seconds - time.time()) < _CLOCK_SECONDS
    return "<seconds>" if isinstance(told, int) else "<time>"


def _numbers(text: str) -> dict[str, list[float]]:
    """The float32 numbers in base64, whose last bits may differ."""
    data = base64.b64decode(text, validate=True)
    return {"base64 of float32": [number for (number,) in struct.iter_unpack("<f", data)]}
