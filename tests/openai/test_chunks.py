"""The chunks of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.openai.chunks import Chunks
from steerserve.openai.shape import CHAT, COMPLETION, AnswerShape

BASE: dict[str, Any] = {"id": "an id", "created": 1, "model": 'a "model"\u0000'}
TEXTS = ["one", ' "quoted"\\', "\n\t\u0000\u001f", "\u00e9\u6f22\U0001f600", " 1"]


@pytest.mark.parametrize("shape", [CHAT, COMPLETION])
@pytest.mark.parametrize("text", TEXTS)
def test_the_chunk_of_a_text_is_the_chunk_of_its_delta(shape: AnswerShape, text: str) -> None:
    chunks = Chunks(BASE, shape)
    for index in (0, 1, 0):
        written = chunks.text(index, text)
        assert written == chunks.chunk([shape.delta(index, text, None)])
        assert json.loads(written.removeprefix(b"data: "))["choices"][0]["index"] == index
