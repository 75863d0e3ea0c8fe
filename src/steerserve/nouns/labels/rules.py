"""Reads labels of features from the forms in which people publish them, into feature index -> text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules import json_size
from steerserve.rules.bounds import DOCUMENT_LEVELS, LABELS_VALUES
from steerserve.rules.steering import documents
from steerserve.rules.steering.live import check_index
from steerserve.rules.text import line_fault

LENGTH_MAXIMUM = 500
INDEX_FIELDS = ("index", "feature", "feature_index", "feature_idx")
LABEL_FIELDS = ("label", "description", "explanation")

_INDEX = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_LAYER = re.compile(r"[0-9]{1,4}")
_NAMED = 10
"""The most wrong entries that a refusal names."""

Entry = tuple[str, Any, Any]
"""The place in the document, the index, and the label."""


@dataclass(frozen=True, slots=True)
class ParsedLabels:
    """The labels of one document.

    `repeated` counts entries for a feature that has a label already; the first label counts. `layers` are the layers
    that the document names.
    """

    by_feature: Mapping[int, str]
    repeated: int = 0
    layers: frozenset[int] = frozenset()


def read(body: bytes, d_sae: int, *, is_lines: bool) -> ParsedLabels:
    """The labels in the body of an import, which is the text of JSON Lines, or JSON. A JSON object may have them in its
    only field, `labels`.

    Raises:
        Refusal: PAYLOAD_TOO_LARGE, and what `parse` raises.
    """
    if json_size.has_more_values(body, LABELS_VALUES):
        raise Refusal("PAYLOAD_TOO_LARGE", f"the body has more than {LABELS_VALUES} values")
    if documents.is_deeper(body, DOCUMENT_LEVELS):
        why = f"nested deeper than {DOCUMENT_LEVELS} objects and lists"
        raise _refused(["the document"], why)
    if is_lines:
        try:
            return parse(body.decode("utf-8-sig"), d_sae)
        except UnicodeDecodeError as error:
            raise documents.not_json(error) from None
    document = documents.read_json(body)
    if isinstance(document, dict) and set(document) == {"labels"}:
        document = document["labels"]
    return parse(document, d_sae)


def parse(document: object, d_sae: int) -> ParsedLabels:
    """The labels of a document. If one entry is wrong, the whole document is refused.

    Args:
        document: an object of index -> label (or -> an object with a label); a list of objects with an index (one of
            INDEX_FIELDS) and a label (one of LABEL_FIELDS), as Neuronpedia exports them; or such objects as JSON Lines.
        d_sae: width of the SAE.

    Raises:
        Refusal: VALIDATION_ERROR with the wrong entries; INVALID_FEATURE_INDEX for an index outside the SAE.
    """
    objects = _lines(document) if isinstance(document, str) else document
    if isinstance(objects, Mapping):
        entries = list(_of_object(objects))
    elif isinstance(objects, list):
        entries = list(_of_list(objects))
    else:
        raise _refused(["the document"], "an object, a list of objects, or JSON Lines")
    if not entries:
        raise _refused(["the document"], "without any label")
    by_feature, repeated = _checked(entries, d_sae)
    return ParsedLabels(by_feature, repeated, frozenset(_layers(objects)))


def has_words(label: str, words: Sequence[str]) -> bool:
    """Whether a label has all the words of a query. The words are case-folded, see `words_of`."""
    folded = label.casefold()
    return all(word in folded for word in words)


def words_of(query: str) -> list[str]:
    """The case-folded words of a query, for `has_words`."""
    return query.casefold().split()


# ------------------------------------------------------------------ inside


def _checked(entries: Iterable[Entry], d_sae: int) -> tuple[dict[int, str], int]:
    by_feature: dict[int, str] = {}
    bad: dict[str, list[str]] = {}
    repeated = 0
    for where, index, label in entries:
        number = _number(index)
        why = "not a feature index" if number is None else _fault(label)
        if why is not None:
            bad.setdefault(why, []).append(where)
            continue
        assert number is not None
        check_index(number, d_sae)
        repeated += number in by_feature
        by_feature.setdefault(number, label.strip())
    for why, places in bad.items():
        raise _refused(places, why)
    return by_feature, repeated


def _of_object(document: Mapping[object, object]) -> Iterator[Entry]:
    for key, value in document.items():
        label = _first(value, LABEL_FIELDS) if isinstance(value, Mapping) else value
        yield repr(str(key)[:50]), key, label


def _of_list(document: Sequence[object]) -> Iterator[Entry]:
    for place, entry in enumerate(document):
        if not isinstance(entry, Mapping):
            yield f"[{place}]", None, None
        else:
            yield f"[{place}]", _first(entry, INDEX_FIELDS), _first(entry, LABEL_FIELDS)


def _lines(text: str) -> list[object]:
    objects = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            objects.append(json.loads(line, object_pairs_hook=_once))
        except _Twice as twice:
            why = f"the key {str(twice)[:50]!r} stands twice in one object"
            raise _refused([f"line {number}"], why) from None
        except (ValueError, RecursionError):
            raise _refused([f"line {number}"], "not JSON") from None
    return objects


class _Twice(Exception):
    """A JSON object has a key twice. The argument is the key."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        raise _Twice(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return by_key


def _layers(objects: object) -> Iterator[int]:
    """The layers that a Neuronpedia export names. Its `layer` has the form `5-res-jb`."""
    for entry in objects if isinstance(objects, list) else []:
        layer = entry.get("layer")
        match = _LAYER.match(str(layer)) if isinstance(layer, str | int) else None
        if match:
            yield int(match[0])


def _first(entry: Mapping[str, object], names: Iterable[str]) -> object:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _number(index: object) -> int | None:
    if type(index) is int:
        return index
    return int(index) if isinstance(index, str) and _INDEX.fullmatch(index) else None


def _fault(label: object) -> str | None:
    if not isinstance(label, str):
        return "without a label"
    text = label.strip()
    if not text:
        return "a blank label"
    if len(text) > LENGTH_MAXIMUM:
        return f"a label longer than {LENGTH_MAXIMUM} characters"
    if line_fault(text) is not None:
        return "a label with control characters"
    return None


def _refused(places: Sequence[str], why: str) -> Refusal:
    shown = ", ".join(places[:_NAMED])
    return Refusal(
        "VALIDATION_ERROR",
        f"labels: {why}: {shown}",
        errors=[{"loc": ["body", place], "msg": why} for place in places[:_NAMED]],
        invalid=len(places),
    )
