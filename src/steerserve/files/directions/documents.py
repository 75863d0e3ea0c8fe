"""JSON files of directions: `.svec` of IBM and AISteer360, vectors of Neuronpedia, and the export of this service."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from steerserve.files.directions.stored import SIZES, Found, Numbers, numbers_of
from steerserve.rules import json_reading, json_size
from steerserve.rules.bounds import DIRECTIONS, VECTOR_NUMBERS, VECTOR_PARTS
from steerserve.rules.saes.sites import RESID_POST, RESID_PRE, locate
from steerserve.rules.steering import documents
from steerserve.rules.steering.vector import (
    KIND,
    OPERATIONS,
    Convention,
    check_width,
    invalid,
    packed,
)
from steerserve.rules.text import shown

DEPTH_MAXIMUM = 8
_LAYER = re.compile(r"0|[1-9][0-9]{0,3}")
_IBM = (
    "the activation-steering library measures these directions after the layer and adds them before it; "
    "layer_convention resid_pre does as the library does"
)


def read(file: str, data: bytes) -> Found:
    """The directions in a JSON file, which may be a whole answer of this service.

    Raises:
        Refusal: INVALID_VECTOR.
    """
    document = documents.unwrapped(parse(file, data))
    if document.get("kind") == KIND:
        return of_export(file, document)
    if isinstance(document.get("directions"), dict):
        return _svec(file, document)
    inner = document.get("vector")
    if isinstance(inner, list):
        return _neuronpedia(file, document, "vector")
    if isinstance(inner, dict) and "values" in inner:
        return _neuronpedia(file, inner, "values")
    why = "is JSON of no known kind: it has neither `directions` nor `vector`"
    raise invalid(file, why)


def parse(file: str, data: bytes) -> dict[str, object]:
    """The object in a file.

    Raises:
        Refusal: INVALID_VECTOR for a text that is no JSON object, or is too large or nested too deep.
    """
    if json_size.has_more_parts(data, VECTOR_PARTS):
        raise invalid(file, f"has more than {VECTOR_PARTS} objects, lists and texts")
    if json_size.has_more_values(data, VECTOR_NUMBERS):
        raise invalid(file, f"has more than {VECTOR_NUMBERS} values")
    if documents.is_deeper(data, DEPTH_MAXIMUM):
        raise invalid(file, f"is nested deeper than {DEPTH_MAXIMUM} objects and lists")
    try:
        document = json_reading.loads(data.decode("utf-8-sig"), _once)
    except (ValueError, RecursionError) as error:
        raise invalid(file, f"is no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict):
        raise invalid(file, "is no JSON object")
    return document


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return unique


def _svec(file: str, document: dict[str, Any]) -> Found:
    """`directions` has the numbers of each layer by its number, alone or in a list of one."""
    if document.get("num_heads") is not None:
        raise invalid(file, "says that the directions are those of heads", "num_heads")
    found, is_listed = [], False
    for layer, value in document["directions"].items():
        key = f"directions.{shown(layer)}"
        if not _LAYER.fullmatch(layer):
            raise invalid(file, "is not the number of a layer", key)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value, is_listed = value[0], True
        found.append((key, int(layer), RESID_POST, _floats(file, key, value)))
    warnings = [] if is_listed else [_IBM]
    return Found("svec", found, model_hint=text(document, "model_type"), warnings=warnings)


def _neuronpedia(file: str, said: dict[str, Any], key: str) -> Found:
    hook = said.get("hookName")
    site, layer = locate(hook) if isinstance(hook, str) else (None, None)
    if site is None or layer is None:
        raise invalid(file, f"names no known site: {shown(str(hook))!r}", "hookName")
    convention: Convention = "resid_post"
    if site == RESID_PRE:
        convention, site = "resid_pre", RESID_POST
    strength = said.get("vectorDefaultSteerStrength", said.get("defaultSteerStrength"))
    return Found(
        "neuronpedia",
        [(key, layer, site, _floats(file, key, said[key]))],
        convention,
        model_hint=text(said, "modelId"),
        suggested_value=suggestion(strength),
    )


def of_export(file: str, document: Mapping[str, Any]) -> Found:
    """The directions of an exported document.

    Raises:
        Refusal: INVALID_VECTOR.
    """
    operation = document.get("operation", "add")
    if operation not in OPERATIONS:
        raise invalid(file, "is no known operation", "operation")
    entries = document.get("directions")
    if not isinstance(entries, list) or len(entries) > DIRECTIONS:
        raise invalid(file, f"is no list of at most {DIRECTIONS}", "directions")
    found = []
    for index, entry in enumerate(entries):
        key = f"directions[{index}]"
        if not isinstance(entry, dict):
            raise invalid(file, "is no object", key)
        layer, site = entry.get("layer"), entry.get("site", RESID_POST)
        if type(layer) is not int or layer < 0 or not isinstance(site, str):
            raise invalid(file, "lacks a layer or a site", key)
        numbers = of_base64(file, key, entry.get("data"), entry.get("dtype"), entry.get("shape"))
        found.append((key, layer, site, numbers))
    training = document.get("training")
    return Found(
        "steerserve",
        found,
        operation=operation,
        model_hint=text(document, "model_hint"),
        suggested_value=suggestion(document.get("suggested_value")),
        training=training if isinstance(training, dict) else None,
    )


def text(said: Mapping[str, object], key: str) -> str | None:
    """A text that is not empty; None for anything else."""
    value = said.get(key)
    return value if isinstance(value, str) and value else None


def suggestion(value: object) -> float | None:
    """A strength that a file recommends; None for what is no number."""
    is_number = type(value) in (int, float) and abs(value) < 1e30  # type: ignore[arg-type]
    return float(value) if is_number else None  # type: ignore[arg-type]


def of_base64(file: str, key: str, data: object, dtype: object, shape: object) -> Numbers:
    """The numbers in a base64 text; `dtype` is float32 where it is None.

    Raises:
        Refusal: INVALID_VECTOR.
    """
    named = "float32" if dtype is None else dtype
    if not isinstance(data, str) or not isinstance(named, str):
        raise invalid(file, "lacks its data", key)
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(file, "is no base64", f"{key}.data") from None
    size = SIZES.get(named, 1)
    counts: object = [len(raw) // size] if shape is None else shape
    if not isinstance(counts, list) or not 0 < len(counts) <= 8:
        raise invalid(file, "is no shape", f"{key}.shape")
    if not all(type(n) is int and 0 <= n < 1 << 32 for n in counts):
        raise invalid(file, "is no shape", f"{key}.shape")
    return numbers_of(file, key, named, tuple(counts), raw)


def _floats(file: str, key: str, value: object) -> Numbers:
    if not isinstance(value, list):
        raise invalid(file, "is no list of numbers", key)
    check_width(file, key, len(value))
    if not all(type(n) in (int, float) for n in value):
        raise invalid(file, "is no list of numbers", key)
    try:
        return Numbers("float32", (len(value),), packed(value))
    except (OverflowError, ValueError):
        raise invalid(file, "has a number that float32 does not have", key) from None
