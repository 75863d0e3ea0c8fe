"""The parts that cluster and circuit documents share: members, SAE references, model, provenance, intensity, sensing.

The shapes check a document when it is imported. The functions read values from a document that was checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from steerserve.rules.steering.documents import (
    Check,
    DocumentFault,
    Place,
    as_number,
    either,
    fields,
    flag,
    items,
    mapping,
    number,
    one_of,
    part_of,
    text,
    whole,
)
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM
from steerserve.rules.text import line_fault, name_fault, readable, storable

SCHEMA_VERSION = "1"
STRENGTH_MAXIMUM = 300.0
NARRATIVE_MAXIMUM = 10_000
LABEL_MAXIMUM = 200
"""The characters of a label that are read; an export has all of them."""

ID_MAXIMUM = 255
"""The most characters in the id of a model or an SAE."""

NAME_TRIES = 50
"""The numbers that are tried for a name that is taken: the last one is `name (50)`."""

CONTEXT_TOKENS_MAXIMUM = 64
TOKEN_LAG_MAXIMUM = 64
EPSILON_MINIMUM = 1e-9
_META_BYTES = 8192
_WORD_STARTS = "\u0120\u2581\u010a"
"""Marks of tokenizers: two for a space, one for a line end."""


# ------------------------------------------------------------- shapes


def _url_fault(value: str) -> str | None:
    return None if value.startswith(("http://", "https://")) else "not an http or https address"


def _path_fault(value: str) -> str | None:
    is_local = value.startswith(("/", "~", "..")) or ":\\" in value
    return "a path of one machine; a document names files of a hub" if is_local else None


def _date_fault(value: str) -> str | None:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return "not a date in ISO 8601"
    return None


def _name_fault(value: str) -> str | None:
    return name_fault(value) or (None if value.strip() else "a name is not blank")


def name_shape(most: int) -> Check:
    """The name of a document with at most `most` characters."""
    return text(1, most, _name_fault)


_META_FIELDS: Mapping[str, Check] = {
    "description": text(most=1000),
    "category": text(most=50),
    "label_source": text(most=50),
    "interpretability": number(0, 1),
    "mean_activation": number(),
    "top_tokens": items(text(), most=10),
    "signature": text(most=200),
    "example": fields({}, {"text": text(most=500), "span": text(most=100)}),
    "neuronpedia": text(most=500, why=_url_fault),
}


def _meta(value: object, place: Place) -> Iterator[DocumentFault]:
    yield from fields({}, _META_FIELDS)(value, place)
    if isinstance(value, dict):
        others = {key: part for key, part in value.items() if key not in _META_FIELDS}
        size = len(json.dumps(others, ensure_ascii=False).encode(errors="surrogatepass"))
        if size > _META_BYTES:
            yield DocumentFault(place, f"undeclared keys of more than {_META_BYTES} bytes")


MEMBER: Check = fields(
    {"feature_idx": whole(), "strength": number(-STRENGTH_MAXIMUM, STRENGTH_MAXIMUM)},
    {
        "sign": one_of(1, -1),
        "pinned": flag,
        "label": text(),
        "similarity": number(0, 1),
        "activation_frequency": number(),
        "max_activation": number(),
        "meta": _meta,
    },
)
_ID = text(most=ID_MAXIMUM, why=line_fault)
_DATE = either(text(why=_date_fault), number(), "not a date in ISO 8601")

MODEL: Check = fields({}, {"hf_id": _ID, "mistudio_model_id": _ID})
SAE: Check = fields(
    {},
    {
        "mistudio_sae_id": _ID,
        "sae_id": _ID,
        "layer": whole(),
        "hook_type": text(),
        "n_features": whole(),
        "d_model": whole(),
        "source_hint": text(why=_path_fault),
    },
)
PROVENANCE: Check = fields(
    {},
    {
        "created_at": _DATE,
        "exported_at": _DATE,
        "mistudio_version": text(),
        "source_note": text(most=500),
    },
)
BUDGET_FIELDS: Mapping[str, Check] = {
    "B": number(),
    "B_dir": number(),
    "G": number(),
    "f_eff": number(),
    "formula_id": text(why=line_fault),
    "constants": mapping(number()),
    "intensity": number(0, INTENSITY_MAXIMUM),
}
"""`intensity_range` is not checked: `declared_range` reads any other form of it as no range."""

NARRATIVE: Check = text(most=NARRATIVE_MAXIMUM)


# ------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class AuthoredMember:
    """One feature of a document. `max_activation` is None where the document has no positive one."""

    feature_idx: int
    strength: float
    sign: int = 1
    label: str | None = None
    max_activation: float | None = None

    @property
    def value(self) -> float:
        """The steering value at intensity 1. A negative strength has its direction already. The sign decides the
        direction of any other strength."""
        # a zero has no sign
        return self.strength if self.strength < 0 else self.sign * self.strength + 0.0


@dataclass(frozen=True, slots=True)
class SaeReference:
    """The SAE whose features a document names. A fact that the document does not declare is None."""

    sae_id: str | None = None
    layer: int | None = None
    n_features: int | None = None


@dataclass(frozen=True, slots=True)
class SensingOverrides:
    """What the author of a document wants for its sensing. None means that the default counts."""

    epsilon: float | None = None
    theta_floor: float | None = None
    min_k: int | None = None
    context_tokens: int | None = None
    max_token_lag: int | None = None


def member(raw: Mapping[str, Any]) -> AuthoredMember:
    """A member that fits `MEMBER`."""
    sign, label, peak = raw.get("sign"), raw.get("label"), as_number(raw.get("max_activation"))
    return AuthoredMember(
        int(raw["feature_idx"]),
        float(raw["strength"]),
        1 if sign is None else int(sign),
        None if label is None else storable(label[:LABEL_MAXIMUM]),
        peak if peak is not None and peak > 0 else None,
    )


def sae_reference(raw: object) -> SaeReference:
    """An SAE reference that fits `SAE`; null or a missing reference declares nothing."""
    if not isinstance(raw, dict):
        return SaeReference()
    named = raw.get("mistudio_sae_id")
    return SaeReference(
        raw.get("sae_id") if named is None else named,
        _whole(raw.get("layer")),
        _whole(raw.get("n_features")),
    )


def narrative(document: Mapping[str, Any]) -> str | None:
    """The narrative of a checked document as the service stores and shows it; an export has it as it came."""
    written = document.get("narrative")
    return None if written is None else readable(written)


def model_name(document: Mapping[str, object]) -> str | None:
    """The model that a document was made for: its id on the hub, or else its id in the studio."""
    model = part_of(document, "model")
    return model.get("hf_id") or model.get("mistudio_model_id") or None


def declared_range(budget: object) -> tuple[float, float] | None:
    """The `intensity_range` of the budget of a stored document, in ascending order. Anything but two finite numbers
    declares no range."""
    declared = budget.get("intensity_range") if isinstance(budget, dict) else None
    if not isinstance(declared, list) or len(declared) != 2:
        return None
    first, second = map(as_number, declared)
    return None if first is None or second is None else (min(first, second), max(first, second))


def declared_intensity(budget: object) -> float | None:
    """The `intensity` of the budget of a stored document."""
    return as_number(budget.get("intensity")) if isinstance(budget, dict) else None


def sensing_overrides(document: Mapping[str, object]) -> SensingOverrides:
    """The `sensing` object of a document. A value that is out of range counts as missing."""
    raw = part_of(document, "sensing")
    epsilon, floor = as_number(raw.get("epsilon")), as_number(raw.get("theta_floor"))
    return SensingOverrides(
        epsilon if epsilon is not None and epsilon >= EPSILON_MINIMUM else None,
        floor if floor is not None and floor >= 0 else None,
        _whole(raw.get("min_k"), 1),
        _whole(raw.get("context_tokens"), 0, CONTEXT_TOKENS_MAXIMUM),
        _whole(raw.get("max_token_lag"), 1, TOKEN_LAG_MAXIMUM),
    )


def display_word(token: str | None) -> str | None:
    """A `display_token` without the marks of tokenizers for spaces; None where nothing is left."""
    spaced = (token or "")[:LABEL_MAXIMUM].translate(dict.fromkeys(map(ord, _WORD_STARTS), " "))
    return storable(spaced).strip() or None


def _whole(value: object, least: int = 0, most: int | None = None) -> int | None:
    size = as_number(value)
    if size is None or size != int(size) or size < least or (most is not None and size > most):
        return None
    return int(size)


def names_to_try(name: str, longest: int, *, may_rename: bool) -> list[str]:
    """The names under which a document may be stored, in the order of the attempts: its own name, and where it may be
    renamed also `name (2)` to `name (50)`. A name has at most `longest` characters."""
    further = (f" ({number})" for number in range(2, NAME_TRIES + 1)) if may_rename else ()
    return [name[: longest - len(suffix)] + suffix for suffix in ("", *further)]
