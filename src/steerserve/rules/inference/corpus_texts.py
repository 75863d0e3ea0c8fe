"""The texts of a corpus: how a file gives them, and how their tokens become contexts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from steerserve.errors import Refusal
from steerserve.rules.inference.intent import Conversation
from steerserve.rules.text import shown

JSON_LINES = (".jsonl", ".ndjson")
TEXT_FILES = (".txt", ".text", ".md")
LINE_MAXIMUM = 16 << 20
"""The most bytes of one line, and of one text of a text file."""
BLOCK = 20_000
"""The characters of a text that are tokenized at once."""

CorpusText = tuple[str, str | Conversation]
"""The place of a text in its source, and the text or conversation."""


def check_name(path: str) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a file of no known kind.
    """
    if not path.lower().endswith(JSON_LINES + TEXT_FILES):
        kinds = ", ".join(JSON_LINES + TEXT_FILES)
        raise Refusal(
            "INVALID_PARAMETER", f"{shown(path)}: the name of a corpus file ends in one of {kinds}"
        )


def texts(path: str, lines: Iterable[bytes], field: str) -> Iterator[CorpusText]:
    """The texts of a file with this name and these lines: of JSON Lines the `field` of each object, of a text file what
    is between blank lines.

    Raises:
        Refusal: VALIDATION_ERROR with the number of the line.
    """
    return _of_json(lines, field) if path.lower().endswith(JSON_LINES) else _of_text(lines)


def blocks(text: str) -> Iterator[str]:
    """The text in parts of at most BLOCK characters, cut before white space where there is any."""
    while len(text) > BLOCK:
        cut = max(text.rfind(" ", 1, BLOCK), text.rfind("\n", 1, BLOCK))
        end = cut if cut > 0 else BLOCK
        yield text[:end]
        text = text[end:]
    if text:
        yield text


def _of_json(lines: Iterable[bytes], field: str) -> Iterator[CorpusText]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        _check_size(line, number)
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise _bad(number, "is not JSON") from None
        if not isinstance(entry, dict) or field not in entry:
            raise _bad(number, f"has no field {shown(field)}")
        yield f"line {number}", _text(entry[field], number, field)


def _text(value: object, number: int, field: str) -> str | Conversation:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return tuple({"role": one["role"], "content": one["content"]} for one in value)
    raise _bad(number, f"{shown(field)} is neither a text nor a list of messages")


def _is_message(one: object) -> bool:
    return isinstance(one, Mapping) and all(
        isinstance(one.get(name), str) for name in ("role", "content")
    )


def _of_text(lines: Iterable[bytes]) -> Iterator[CorpusText]:
    held: list[str] = []
    first, size = 1, 0
    for number, line in enumerate(lines, 1):
        _check_size(line, number)
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise _bad(number, "is not UTF-8") from None
        if text.strip():
            first = first if held else number
            held.append(text)
            size += len(line)
        if held and (not text.strip() or size > LINE_MAXIMUM):
            yield f"line {first}", "".join(held).rstrip("\r\n")
            held, size = [], 0
    if held:
        yield f"line {first}", "".join(held).rstrip("\r\n")


def _check_size(line: bytes, number: int) -> None:
    if len(line) > LINE_MAXIMUM:
        raise _bad(number, f"has more than {LINE_MAXIMUM} bytes")


def _bad(number: int, why: str) -> Refusal:
    place = f"line {number}"
    message = f"{place} {why}"
    errors = [{"loc": ["corpus", place], "msg": why}]
    return Refusal("VALIDATION_ERROR", message, param=place, line=number, errors=errors)
