"""The questions that the tokenizer of an engine answers."""

from __future__ import annotations

from steerserve.messages.commands import Question
from steerserve.messages.tokenizing import Spelling
from steerserve.messages.values import Chat, Text


class Spell(Question[Spelling], frozen=True, kw_only=True):
    """The text of a prompt of a client, of at most `longest` characters, with its tokens.

    Refused with NO_CHAT_TEMPLATE, PAYLOAD_TOO_LARGE; INVALID_PARAMETER when the template or the tokenizer refuses the
    prompt.
    """

    prompt: Text | Chat
    longest: int
    client: str = ""


class ReadBack(Question[Spelling], frozen=True, kw_only=True):
    """The text that these tokens stand for. Refused with INVALID_PARAMETER naming the place of an id that is not in the
    vocabulary."""

    ids: list[int]
    client: str = ""
