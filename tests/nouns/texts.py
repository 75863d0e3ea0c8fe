"""Texts that jobs read part by part, and how the reading is cut."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.control.inference.texts import TextReader
from steerserve.errors import Refusal
from tests.service import Running

TEXTS = [
    "The boat sailed over the waves",
    "A whale swam near the ship while the sailor saw the lighthouse and the harbour in the rain of the night",
    "",
    "The king sat on the throne",
]


def contexts(live: Running, texts: list[str], size: int) -> list[tuple[int, int, list[int]]]:
    """The tokens of each context, with the numbers of its text and of the context."""
    found = []
    for number, text in enumerate(texts):
        ids = live.data("POST", "/api/tokenize", {"text": text})["ids"]
        bos, ids = ids[0], ids[1:]
        for at, start in enumerate(range(0, len(ids), size - 1)):
            found.append((number, at, [bos, *ids[start : start + size - 1]]))
    return found


def cut_after(monkeypatch: pytest.MonkeyPatch, parts: int) -> list[int]:
    """The model goes before the part after so many parts. Gives the number of contexts of each part that is read."""
    read, counted = TextReader.read, []

    async def cut(self: Any, texts: Any, *rest: Any, **named: Any) -> Any:
        if len(counted) == parts:
            raise Refusal("MODEL_NOT_LOADED", "the model went")
        counted.append(len(texts))
        return await read(self, texts, *rest, **named)

    monkeypatch.setattr(TextReader, "read", cut)
    return counted
