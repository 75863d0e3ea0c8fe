"""Profiles: what may be saved, the document they travel in, and what activating one does to the live values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules import steering
from steerserve.rules.attachment import AttachedSae
from steerserve.rules.steering import (
    BATCH_MAXIMUM,
    MANUAL,
    MAXIMUM,
    MINIMUM,
    Active,
    Live,
    Values,
)

INTENSITY_MAXIMUM = 2.0
FEATURES_MAXIMUM = BATCH_MAXIMUM
VERSION = "1.0"
"""The version that an export says it has."""

CLUSTER_KINDS = ("mistudio.cluster-definition", "mistudio.cluster-bundle")
CLUSTER_IMPORT = "/api/clusters/import"

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
_NAMED = 20
"""How many offenders a refusal names."""


# ------------------------------------------------------------- saving


def feature_values(values: Mapping[str, float]) -> dict[int, float]:
    """The map with integer keys: at most 1,000 features, each index written one way only, values in [-200, 200].

    Raises:
        Refusal: VALIDATION_ERROR naming the offending keys.
    """
    if len(values) > FEATURES_MAXIMUM:
        raise invalid("steering", f"more than {FEATURES_MAXIMUM} features")
    bad = [key for key in values if not _INDEX.fullmatch(key)]
    if bad:
        raise invalid("steering", "a feature index is a plain whole number from 0 on", bad)
    bad = [key for key, value in values.items() if not MINIMUM <= value <= MAXIMUM]
    if bad:
        raise invalid("steering", f"a value lies in [{MINIMUM:g}, {MAXIMUM:g}]", bad)
    return {int(key): float(value) for key, value in values.items()}


def check_intensity(intensity: float) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR.
    """
    if not 0.0 <= intensity <= INTENSITY_MAXIMUM:
        raise invalid("intensity", f"outside [0, {INTENSITY_MAXIMUM:g}]")


# ------------------------------------------------------------- activating


@dataclass(frozen=True, slots=True)
class Profile:
    """A saved profile as it is applied; `sae_id` and `layer` None fit any."""

    name: str
    values: Values
    intensity: float = 1.0
    sae_id: str | None = None
    layer: int | None = None


def site(
    profile: Profile, attached: Sequence[AttachedSae], param: str | None = None
) -> AttachedSae:
    """The attached SAE that a profile was made for, the first where several fit.

    Raises:
        Refusal: PROFILE_INCOMPATIBLE when none is.
    """
    for candidate in attached:
        if profile.sae_id in (None, candidate.sae_id) and profile.layer in (None, candidate.layer):
            return candidate
    raise Refusal(
        "PROFILE_INCOMPATIBLE",
        f"profile {profile.name!r} is made for SAE {profile.sae_id or 'any'} at layer "
        f"{'any' if profile.layer is None else profile.layer}, which is not attached",
        param=param,
        sae_id=profile.sae_id,
        layer=profile.layer,
        attached=[{"sae_id": a.sae_id, "layer": a.layer} for a in attached],
    )


def activate(
    live: Live, profile_id: str, profile: Profile, attached: Sequence[AttachedSae]
) -> Live:
    """(1) Values need an attached SAE, (2) the one they were made for, (3) whose features they name. (4) Each is
    scaled by the profile's intensity and clamped, and (5) all of them replace what MANUAL held, and steering is
    enabled; an empty profile clears. One step of the epoch.

    Raises:
        Refusal: SAE_NOT_ATTACHED, PROFILE_INCOMPATIBLE, INVALID_FEATURE_INDEX.
    """
    if not profile.values:
        return steering.mark(live, steering.replace_all(live, MANUAL, {}), Active(profile_id))
    if not attached:
        raise Refusal(  # (1)
            "SAE_NOT_ATTACHED", f"profile {profile.name!r} steers, and no SAE is attached"
        )
    at = site(profile, attached)  # (2)
    for index in profile.values:
        steering.check_index(index, at.d_sae)  # (3)
    scaled = {i: steering.clamped(v * profile.intensity) for i, v in profile.values.items()}  # (4)
    after = steering.replace_all(live, MANUAL, {at.key: scaled})  # (5)
    active = Active(profile_id, at.key, dict(profile.values), after.by(MANUAL))
    return steering.mark(live, after, active)


def steered(live: Live, attached: Sequence[AttachedSae]) -> AttachedSae:
    """The attached SAE whose values are all there are; the first where none has any.

    Raises:
        Refusal: SAE_NOT_ATTACHED; PROFILE_INCOMPATIBLE when several have values, which no profile can keep.
    """
    if not attached:
        raise Refusal("SAE_NOT_ATTACHED", "no SAE is attached")
    having = [candidate for candidate in attached if live.of(candidate.key)]
    if len(having) > 1:
        named = ", ".join(candidate.key for candidate in having)
        raise Refusal(
            "PROFILE_INCOMPATIBLE",
            f"{len(having)} attached SAEs have values ({named}), and a profile keeps those of one",
            attached=[{"sae_id": a.sae_id, "layer": a.layer} for a in having],
        )
    return having[0] if having else attached[0]


def adopt(live: Live, profile_id: str) -> Live:
    """The profile is the active one, and nothing else changes."""
    return steering.mark(live, live, Active(profile_id))


def deactivate(live: Live, profile_id: str, *, clears: bool) -> Live:
    """No profile is active, and what MANUAL held is forgotten where `clears`; for one that is not active, nothing."""
    if live.active is None or live.active.profile_id != profile_id:
        return live
    after = steering.replace_all(live, MANUAL, {}) if clears else live
    return steering.mark(live, after, None)


def dialed(live: Live) -> Mapping[str, Values]:
    """What an intensity alone scales: the active profile's values as they were authored, so that the dial is absolute;
    the live ones once an operator has changed what the activation left."""
    active = live.active
    if active is None or active.key is None or active.left != live.by(MANUAL):
        return live.values
    return {active.key: active.authored}


# ------------------------------------------------------------- travelling


@dataclass(frozen=True, slots=True)
class Document:
    """An imported profile: its values, checked, and its other fields as they stand in the document."""

    steering: dict[int, float]
    fields: dict[str, Any]
    warnings: tuple[str, ...]


def read(body: Any) -> Document:
    """The profile in an export of this service, bare or in its envelope, or in the older form with `features`.

    Raises:
        Refusal: IS_CLUSTER_DOCUMENT; VALIDATION_ERROR, with `invalid_keys` where entries are no index and value.
    """
    if isinstance(body, dict) and "success" in body and isinstance(body.get("data"), dict):
        body = body["data"]
    if not isinstance(body, dict):
        raise invalid("document", "a profile is a JSON object")
    _check_kind(body)
    version = body.get("version", VERSION)
    if not (isinstance(version, str) and version.partition(".")[0] == "1"):
        raise invalid("version", f"this service reads version {VERSION}")
    names = ("name", "description", "model_id", "sae_id", "layer", "intensity")
    fields = {name: body[name] for name in names if name in body}
    warnings = _older(body, fields)
    return Document(_entries(body), fields, warnings)


def _check_kind(body: dict[str, Any]) -> None:
    """Raises:
    Refusal: IS_CLUSTER_DOCUMENT; VALIDATION_ERROR for any other document that says that it is no profile.
    """
    kind = body.get("kind")
    is_unnamed = kind is None and not ({"steering", "features"} & body.keys())
    if kind in CLUSTER_KINDS or (is_unnamed and {"members", "definitions"} & body.keys()):
        raise Refusal(
            "IS_CLUSTER_DOCUMENT",
            f"this is a cluster document; import it with POST {CLUSTER_IMPORT}",
            kind=kind,
            import_path=CLUSTER_IMPORT,
        )
    if kind is not None:
        shown = _shown(kind) if isinstance(kind, str) else type(kind).__name__
        raise invalid("kind", f"a profile has none, this document says {shown!r}")


def _older(body: dict[str, Any], fields: dict[str, Any]) -> tuple[str, ...]:
    """Take the model and the layer from where the older form keeps them."""
    for name in ("model", "sae"):
        if not isinstance(body.get(name, {}), dict):
            raise invalid(name, "not an object")
    model, sae = body.get("model", {}), body.get("sae", {})
    if model.get("repo_id") is not None:
        fields.setdefault("model_id", model["repo_id"])
    if sae.get("layer") is not None:
        fields.setdefault("layer", sae["layer"])
    repo_id = sae.get("repo_id")
    if repo_id is None or fields.get("sae_id") is not None:
        return ()
    return (
        f"the values were made for the SAE {_shown(str(repo_id))!r}; the profile is not bound to one",
    )


def _entries(body: dict[str, Any]) -> dict[int, float]:
    """Raises:
    Refusal: VALIDATION_ERROR with `invalid_keys`.
    """
    if "steering" in body and "features" in body:
        raise invalid("features", "the document has both steering and features")
    values = body.get("steering", {})
    if "features" in body:
        values = _of_list(body["features"])
    if not isinstance(values, dict):
        raise invalid("steering", "not a map from feature index to value")
    bad = [key for key, value in values.items() if not _is_entry(key, value)]
    if bad:
        raise invalid(
            "steering",
            f"an entry is a plain feature index and a number in [{MINIMUM:g}, {MAXIMUM:g}]",
            bad,
            is_import=True,
        )
    return feature_values(values)


def _of_list(features: Any) -> dict[str, Any]:
    """The older form's list of {index, strength} as a map; an entry that is none is kept under its place."""
    if not isinstance(features, list):
        raise invalid("features", "not a list of {index, strength}")
    values: dict[str, Any] = {}
    for place, entry in enumerate(features):
        index = entry.get("index") if isinstance(entry, dict) else None
        is_index = isinstance(index, int) and not isinstance(index, bool)
        key = str(index) if is_index else f"features[{place}]"
        values[key] = None if key in values or not is_index else entry.get("strength")
    return values


def _is_entry(key: str, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return bool(_INDEX.fullmatch(key)) and is_number and MINIMUM <= value <= MAXIMUM


def invalid(field: str, why: str, keys: Iterable[str] = (), *, is_import: bool = False) -> Refusal:
    """A field, or some keys of it, that cannot be taken."""
    named = [_shown(key) for key in islice(keys, _NAMED)]
    places = [["body", field, key] for key in named] or [["body", field]]
    more: dict[str, Any] = {"invalid_keys": named} if is_import else {}
    return Refusal(
        "VALIDATION_ERROR",
        f"{field}: {why}" + (f": {', '.join(map(repr, named))}" if named else ""),
        errors=[{"loc": place, "msg": why} for place in places],
        **more,
    )


def _shown(text: str) -> str:
    """A text as an answer can carry it."""
    return text[:100].encode(errors="backslashreplace").decode()
