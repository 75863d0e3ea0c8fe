"""Where the tokens of a text begin in it, from the text of each token."""

from __future__ import annotations

from collections.abc import Sequence

BROKEN = "\ufffd"
"""Stands in the text of a token that has a part of a character."""

NEAR = 8
"""How many characters after its expected place a token is looked for. Some tokenizers leave out a leading blank in the
text of a single token."""


def span_offsets(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The place in `text` at which each token begins, from the part of the text that a tokenizer says each token has. A
    special token has the empty part (0, 0), and begins where the text before it ends."""
    offsets = []
    end = 0
    for start, stop in spans:
        if start == stop:
            offsets.append(end)
            continue
        # a blank before the part belongs to the token
        offsets.append(end if text[end:start].isspace() else start)
        end = stop
    return offsets


def text_offsets(text: str, tokens: Sequence[str]) -> list[int]:
    """The place in `text` at which each token begins. A token that is no part of the text (a special token), and a
    token that has only a part of a character, begin where the text before them ends."""
    offsets = []
    end = 0
    for token in tokens:
        start = -1
        if token and BROKEN not in token:
            start = text.find(token, end, end + NEAR + len(token))
        if start < 0:
            offsets.append(end)
            continue
        # a blank that the text of the token leaves out belongs to the token
        offsets.append(end if text[end:start].isspace() else start)
        end = start + len(token)
    return offsets
