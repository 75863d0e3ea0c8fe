"""The tokens of a text: where each begins in it, and what of it each has."""

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


def place_tokens(text: str, tokens: Sequence[str]) -> tuple[list[str], list[int]]:
    """The text of each token as `text` has it, and the place at which the token begins. A token that is no part of the
    text (a special token), and a token that has only a part of a character, begin where the text before them ends.

    `tokens` are the texts of the tokens inside a text. Some tokenizers put a blank before a text, which their first
    token then has and the text has not.
    """
    texts, offsets = [], []
    end, is_in_character = 0, False
    for token in tokens:
        start = -1
        if BROKEN in token:
            is_in_character = True
        elif token:
            is_longer = not is_in_character and token[0] == " " and not text.startswith(token, end)
            if is_longer and text.startswith(token[1:], end):
                token = token[1:]
            start = text.find(token, end, end + NEAR + len(token))
        if start < 0:
            texts.append(token)
            offsets.append(end)
            continue
        # a blank that the text of the token leaves out belongs to the token
        begins = end if text[end:start].isspace() else start
        end, is_in_character = start + len(token), False
        texts.append(text[begins:end])
        offsets.append(begins)
    return texts, offsets
