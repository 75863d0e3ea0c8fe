"""The files of pinned answers, and the first place where an answer differs from its pinned one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "pinned"
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far a float may be from the pinned one: another processor rounds the numbers of a model otherwise."""
_EXACT = ("temperature", "top_p")
"""Fields whose floats are those of the request."""
_DIGITS = 6
_AS = " as"
"""A part `headers as` names the case before that has the same headers."""
_MISSING = "nothing"
_WHOLE = "the whole"


@cache
def pinned(group: str) -> dict[str, dict[str, Any]]:
    """The answers of a group by the names of their cases."""
    found: dict[str, dict[str, Any]] = json.loads(_file(group).read_text(encoding="utf-8"))
    for name, answer in found.items():
        found[name] = dict(_resolved(part, value, found) for part, value in answer.items())
    return found


def _resolved(part: str, value: Any, found: Mapping[str, Mapping[str, Any]]) -> tuple[str, Any]:
    """A part of an answer, which may be that of a case before."""
    if not part.endswith(_AS):
        return part, value
    plain = part.removesuffix(_AS)
    return plain, found[value][plain]


def groups() -> set[str]:
    return {file.stem for file in FOLDER.glob("*.json")}


def write(group: str, answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the file of a group. A field of an answer, an event and a header have a line each. A part that a case before
    has too is there once."""
    firsts: dict[str, str] = {}
    cases = []
    for name, answer in answers.items():
        lines = []
        for part, value in answer.items():
            first = firsts.setdefault(f"{part}: {_line(value)}", name)
            is_new = first == name or part == "status"
            lines.append(f"{_line(part)}: {_part(value)}" if is_new else _reference(part, first))
        inner = ",\n  ".join(lines)
        cases.append(f" {_line(name)}: {{\n  {inner}\n }}")
    whole = ",\n".join(cases)
    _file(group).write_text(f"{{\n{whole}\n}}\n", encoding="utf-8")


def _reference(part: str, first: str) -> str:
    return f"{_line(part + _AS)}: {_line(first)}"


def remove(group: str) -> None:
    _file(group).unlink()


def _file(group: str) -> Path:
    return FOLDER / f"{group}.json"


def _part(value: Any) -> str:
    if isinstance(value, dict) and value:
        inner = [f"   {_line(name)}: {_line(one)}" for name, one in value.items()]
        return "{\n" + ",\n".join(inner) + "\n  }"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"   {_line(one)}" for one in value) + "\n  ]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False)


def _rounded(value: Any) -> Any:
    """A value whose floats have few digits. They stay floats."""
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case list():
            return [_rounded(one) for one in value]
    return value


def difference(expected: Any, found: Any) -> str | None:
    """The first place where two answers differ, with both values there; None where there is none."""
    return next(_differences(expected, found, ""), None)


def _differences(expected: Any, found: Any, path: str) -> Iterator[str]:
    if type(expected) is not type(found):
        yield _told(path, expected, found)
    elif isinstance(expected, dict):
        for name, other in zip_longest(expected, found, fillvalue=_MISSING):
            if name != other:
                yield _told(f"{path or _WHOLE}, its next field", name, other)
                return
            yield from _differences(expected[name], found[name], f"{path}.{name}".lstrip("."))
    elif isinstance(expected, list):
        for at, (one, other) in enumerate(zip_longest(expected, found, fillvalue=_MISSING)):
            yield from _differences(one, other, f"{path}[{at}]")
    elif isinstance(expected, float):
        is_exact = path.rpartition(".")[2] in _EXACT
        relative, absolute = (0.0, 0.0) if is_exact else (RELATIVE, ABSOLUTE)
        if not math.isclose(expected, found, rel_tol=relative, abs_tol=absolute):
            yield _told(path, expected, found)
    elif expected != found:
        yield _told(path, expected, found)


def _told(path: str, expected: Any, found: Any) -> str:
    return f"at {path or _WHOLE}:\n  pinned {_short(expected)}\n  found  {_short(found)}"


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:500]
