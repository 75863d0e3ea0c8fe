"""Texts that jobs read part by part, and how the reading is cut."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.control.inference.texts import TextReader
from steerserve.errors import Refusal

TEXTS = [
    "The boat sailed over the waves",
    "A whale swam near the ship while the sailor saw the lighthouse and the harbour in the rain of the night",
    "",
    "The king sat on the throne",
]


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
