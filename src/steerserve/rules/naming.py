"""Model names as requests write them, and what they resolve to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from steerserve.errors import Refusal

SERVEABLE = frozenset({"ready", "loaded", "loading"})

_NAME = re.compile(r"[\w][\w.\-/: +()@]*", re.UNICODE)
NAME_MAXIMUM = 100


@dataclass(frozen=True, slots=True)
class Named:
    """What resolution needs to know of a registered model."""

    id: int
    name: str
    quantization: str
    status: str


def resolve(name: str, models: Iterable[Named]) -> Named:
    """The one model that a request's `model` names: its exact name, or `name:QUANTIZATION`.

    Raises:
        Refusal: MODEL_NOT_FOUND, or AMBIGUOUS_MODEL_NAME listing what the name could mean.
    """
    serveable = [m for m in models if m.status in SERVEABLE]
    found = [m for m in serveable if m.name == name]
    if not found:
        found = [m for m in serveable if f"{m.name}:{m.quantization}" == name]
    if not found and name:
        found = [m for m in serveable if m.name.rpartition(":")[0] == name]
    if not found:
        raise Refusal(
            "MODEL_NOT_FOUND",
            f"no model is named {name[:NAME_MAXIMUM]!r}",
            param="model",
            requested=name[:NAME_MAXIMUM],
        )
    if len(found) > 1:
        tags = sorted({m.name if m.name != name else f"{m.name}:{m.quantization}" for m in found})
        raise Refusal(
            "AMBIGUOUS_MODEL_NAME",
            f"{name!r} could be {', '.join(tags)}: name one of them",
            param="model",
            candidates=tags,
        )
    return found[0]


def check_name(name: str) -> str:
    """A model's display name: printable, at most 100 characters, no control characters or path tricks.

    Raises:
        Refusal: VALIDATION_ERROR naming `custom_name`.
    """
    bad = not _NAME.fullmatch(name) or len(name) > NAME_MAXIMUM or ".." in name or "//" in name
    if bad:
        raise Refusal(
            "VALIDATION_ERROR",
            f"custom_name must be 1 to {NAME_MAXIMUM} letters, digits, or any of . - _ / : + ( ) @ and blanks",
            param="custom_name",
            errors=[{"loc": ["body", "custom_name"], "msg": "not a model name"}],
        )
    return name


def parameters_label(count: int | None) -> str | None:
    """A parameter count as people write it: 494M, 8.0B."""
    if count is None:
        return None
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        scaled = count / size
        if round(scaled, 1) >= 1.0:
            return f"{scaled:.1f}{unit}" if round(scaled, 1) < 100 else f"{scaled:.0f}{unit}"
    return str(count)
