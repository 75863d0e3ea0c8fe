"""The texts of a corpus: how a file gives them, and how their tokens become contexts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from steerserve.errors import Refusal
from steerserve.rules import json_size
from steerserve.rules.bounds import CORPUS_TEXT_BYTES, INFERENCE_BODY_VALUES
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.inference.prompts import Conversation
from steerserve.rules.text import shown

JSON_LINES = (".jsonl", ".ndjson")
TEXT_FILES = (".txt", ".text", ".md")
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
    start = 0
    while len(text) - start > BLOCK:
        most = start + BLOCK
        cut = max(text.rfind(" ", start + 1, most), text.rfind("\n", start + 1, most))
        end = cut if cut > 0 else most
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def size_of(text: str | Conversation) -> int:
    """The characters of a text or a conversation."""
    return len(text) if isinstance(text, str) else sum(len(str(one["content"])) for one in text)


def json_parts(text: str | Conversation) -> Iterator[str]:
    """A text or a conversation as JSON, in parts, of which none is much longer than BLOCK where it is a text."""
    if not isinstance(text, str):
        yield from json.JSONEncoder().iterencode(text)
        return
    yield '"'
    for start in range(0, len(text), BLOCK):
        yield json.dumps(text[start : start + BLOCK])[1:-1]
    yield '"'


def _of_json(lines: Iterable[bytes], field: str) -> Iterator[CorpusText]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        _check_size(line, number)
        if json_size.has_more_values(line, INFERENCE_BODY_VALUES):
            raise _bad(number, f"has more than {INFERENCE_BODY_VALUES} values")
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
    held, first = bytearray(), 1
    for number, line in enumerate(lines, 1):
        _check_size(line, number)
        try:
            is_blank = not line.decode().strip()
        except UnicodeDecodeError:
            raise _bad(number, "is not UTF-8") from None
        if not is_blank:
            first = first if held else number
            held += line
        if held and (is_blank or len(held) > CORPUS_TEXT_BYTES):
            yield f"line {first}", held.decode().rstrip("\r\n")
            held = bytearray()
    if held:
        yield f"line {first}", held.decode().rstrip("\r\n")


def _check_size(line: bytes, number: int) -> None:
    if len(line) > CORPUS_TEXT_BYTES:
        raise _bad(number, f"has more than {CORPUS_TEXT_BYTES} bytes")


def _bad(number: int, why: str) -> Refusal:
    place = f"line {number}"
    return refuse_value(["corpus", place], why, f"{place} {why}", param=place, line=number)
