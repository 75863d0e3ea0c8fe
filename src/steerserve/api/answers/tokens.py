"""What the routes of tokens answer."""

from __future__ import annotations

from typing_extensions import TypedDict


class TokenizedText(TypedDict):
    """A text and its tokens by the tokenizer of `model`. `pieces` has the text of each token, and `offsets` the
    character of `text` at which each begins."""

    model: str
    text: str
    count: int
    ids: list[int]
    pieces: list[str]
    offsets: list[int]
