"""Questions to the process that tokenizes the prompts of a checkpoint, and their answers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from steerserve.rules.steering.positions import Span
from steerserve.rules.text_offsets import BROKEN


class Spelling(msgspec.Struct, frozen=True, array_like=True):
    """A text and its tokens: their ids, the text of each token, and the character of `text` at which each begins. `bos`
    and `eos` are the tokens that the tokenizer names as the beginning and the end of a text. `spans` are the contents
    of the messages of a conversation, where they are asked for."""

    text: str
    ids: list[int]
    pieces: list[str]
    offsets: list[int]
    bos: int | None = None
    eos: int | None = None
    spans: tuple[Span, ...] = ()


def place_contents(spelling: Spelling, contents: Iterable[Span]) -> tuple[Span, ...]:
    """The tokens of the contents of messages, from their characters. A content without tokens is left out."""
    spans = (Span(one.role, *tokens_of(spelling, one.start, one.end)) for one in contents)
    return tuple(span for span in spans if span.start < span.end)


def tokens_of(spelling: Spelling, start: int, end: int) -> tuple[int, int]:
    """The tokens [first, last) that contain any of the characters [start, end) of the text. A token with a part of a
    character contains that character."""
    having: list[int] = []
    ends = after = len(
        spelling.text
    )  # where the next token begins, and the next one that begins later than that
    for at in range(len(spelling.offsets) - 1, -1, -1):
        begins = spelling.offsets[at]
        if begins < ends:
            after = ends
        if max(begins, start) < min(after if BROKEN in spelling.pieces[at] else ends, end):
            having.append(at)
        ends = begins
    return (having[-1], having[0] + 1) if having else (0, 0)


class TextQuestion(msgspec.Struct, array_like=True):
    """Texts to tokenize, each with whether it gets the tokenizer's special tokens.

    `path` is the folder of the checkpoint. `longest` is the number of characters above which only the beginning of a
    text is tokenized first: a text whose beginning has more than `context` tokens is answered by that number alone. The
    process ends itself after `seconds`. With `is_trial`, the tokens of the vocabulary are decoded too. With
    `is_spelled` the answer has the spelling of the one text, and with `ids` that of the text that these ids stand for.
    """

    path: str
    trust_remote_code: bool
    texts: list[tuple[str, bool]]
    context: int
    longest: int
    seconds: float
    is_trial: bool = False
    is_spelled: bool = False
    ids: list[int] | None = None


class TextAnswer(msgspec.Struct, array_like=True):
    """For each text its token ids, or for a text that is too long a number of tokens that it has at least.

    `reason` says why there is no answer."""

    rows: list[list[int] | int] = []
    reason: str | None = None
    spelling: Spelling | None = None
