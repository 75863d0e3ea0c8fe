"""The characters that names and free texts may have, and how an untrusted text is written into a message.

Every name and text that a client, a file or a hub gives is checked here: names of models and profiles, holders and
reasons of leases, labels, paths. A text that passes is stored and answered exactly as it came.
"""

from __future__ import annotations

import re
import unicodedata

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Characters that a database cannot store in a text. No row can have an id or a name with such a character."""

SHOWN = 100
"""The most characters of an untrusted text in a message."""

_CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: control characters, halves of surrogate pairs, separators of lines and of paragraphs."""

_BREAKS = frozenset("\t\n\r")
_DIRECTIONS = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
"""Characters that change the direction of all text after them, also of the message around a name."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that show nothing, and have another category than `Cf` (format)."""
_JOINED_EMOJI = re.compile(
    r"(?<=[\u2600-\u27bf\U0001f300-\U0001faff\ufe0f])\u200d(?=[\u2600-\u27bf\U0001f300-\U0001faff])"
)
"""A joiner between two emoji, which makes one visible sign of them."""


def line_fault(text: str) -> str | None:
    """Why a text is not one line; None if it is."""
    return _fault(text, frozenset())


def lines_fault(text: str) -> str | None:
    """Why a text is not a free text, which may have tabs and line ends; None if it is."""
    return _fault(text, _BREAKS)


def name_fault(text: str) -> str | None:
    """Why a text cannot be a name; None if it can. A name stands in messages and lists beside other text, so it is one
    line and does not change the direction of the text around it. It has no invisible characters but the joiners of
    emoji, so that two names that differ look different."""
    if text.isascii() and text.isprintable():
        return None
    for character in _JOINED_EMOJI.sub("", text):
        if character in _DIRECTIONS:
            return (
                f"U+{ord(character):04X} is not allowed, because it changes the direction of text"
            )
        if character in _INVISIBLE or unicodedata.category(character) == "Cf":
            return f"U+{ord(character):04X} is not allowed in a name, because it is invisible"
    return _fault(text, frozenset())


def storable(text: str) -> str:
    """The text with U+FFFD in the place of each character that cannot be stored."""
    return UNSTORABLE.sub("\ufffd", text)


def readable(text: str) -> str:
    """The text with U+FFFD in the place of each character that a free text may not have."""
    return "".join("\ufffd" if lines_fault(character) else character for character in text)


def plain(text: str) -> str:
    """The text with U+FFFD in the place of each character that a name may not have."""
    return "".join("\ufffd" if name_fault(character) else character for character in text)


def shown(text: str, longest: int = SHOWN) -> str:
    """At most `longest` characters of a text, for a message. Half a surrogate pair is written as its escape
    sequence."""
    return text[:longest].encode(errors="backslashreplace").decode()[:longest]


def _fault(text: str, allowed: frozenset[str]) -> str | None:
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        if unicodedata.category(character) in _CONTROLS and character not in allowed:
            return f"control characters are not allowed (U+{ord(character):04X})"
    return None
