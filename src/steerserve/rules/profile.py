"""Profiles: what may be saved, which SAE a profile fits, and the document in which one travels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.attachment import AttachedSae
from steerserve.rules.steering import BATCH_MAXIMUM, MAXIMUM, MINIMUM, Values

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


# ------------------------------------------------------------- applying


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


# ------------------------------------------------------------- travelling


@dataclass(frozen=True, slots=True)
class ImportedProfile:
    """An imported profile: its values, checked, and its other fields as they stand in the document."""

    steering: dict[int, float]
    fields: dict[str, Any]
    warnings: tuple[str, ...]


def read(body: Any) -> ImportedProfile:
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
    return ImportedProfile(_entries(body), fields, warnings)


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
