"""Profiles: which values may be saved, which attached SAE a profile fits, and how a document is imported."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from steerserve.errors import DocumentRefusal, Refusal
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.clusters.rules import Cluster
from steerserve.rules.bounds import (
    DOCUMENT_BYTES,
    DOCUMENT_LEVELS,
    PROFILE_EDITS_BYTES,
    STEERED_FEATURES,
)
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.saes import provenance
from steerserve.rules.saes.attachment import ClusterChoice, Sae, SaeChoice
from steerserve.rules.saes.provenance import Origin
from steerserve.rules.steering import documents, interventions
from steerserve.rules.steering.edits import ADD
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM, Range
from steerserve.rules.steering.placed import Placed, Values, clamp_warnings, is_clamped
from steerserve.rules.steering.placing import Largest, ModelFacts, placed
from steerserve.rules.steering.request import ACTIVATION, RequestSteering, SteeredFeature
from steerserve.rules.text import shown

VERSION = "1.0"
"""The version of exported documents."""

CLUSTERS = "/api/clusters"
CLUSTER_IMPORT = f"{CLUSTERS}/import"

_INDEX = re.compile(r"[ \t\r\n]*\+?[0-9]{1,18}[ \t\r\n]*")
_INDICES = "a key must be the index of a feature, a whole number from 0 on"
_VALUES = "a value must be a finite number, not NaN or infinite, at"
_NAMED = 20
"""The most bad keys that a refusal names."""


# ------------------------------------------------------------- saving


def feature_values(values: Mapping[str, object], *, is_import: bool = False) -> dict[int, float]:
    """The map with its indices converted to integers and its values to floats: at most 1,000 features, each once. A
    value outside of [-200, 200] is kept, and is clamped when the profile is applied.

    Raises:
        Refusal: VALIDATION_ERROR naming the keys whose entries cannot be converted.
    """
    if len(values) > STEERED_FEATURES:
        raise invalid("steering", f"more than {STEERED_FEATURES} features")
    entries = {key: (_index(key), _number(value)) for key, value in values.items()}
    bad = [key for key, (index, number) in entries.items() if index is None or number is None]
    if bad:
        indices = [key for key in bad if entries[key][0] is None]
        others = [key for key in bad if entries[key][0] is not None]
        halves = [(why, keys) for why, keys in ((_INDICES, indices), (_VALUES, others)) if keys]
        named = (
            f"{why}: {', '.join(repr(shown(k)) for k in keys[:_NAMED])}" for why, keys in halves
        )
        raise invalid("steering", "; ".join(named), bad, is_import=is_import, are_named=True)
    converted: dict[int, float] = {}
    for key, (index, number) in entries.items():
        assert index is not None
        assert number is not None
        if index in converted:
            raise invalid("steering", f"feature {index} twice", [key], is_import=is_import)
        converted[index] = number
    return converted


def _index(key: str) -> int | None:
    return int(key) if _INDEX.fullmatch(key) else None


def _number(value: object) -> float | None:
    """The finite number that a value is, or that its text says; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and "_" in value:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def check_intensity(intensity: float) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR.
    """
    if not 0.0 <= intensity <= INTENSITY_MAXIMUM:
        raise invalid("intensity", f"outside [0, {INTENSITY_MAXIMUM:g}]")


def value_warnings(
    values: Values, edits: Sequence[Any] | None, intensity: float
) -> tuple[str, ...]:
    """The warning about values, and about sums of `add` edits, that are clamped where a saved profile is applied."""
    clamped = {index for index, value in values.items() if is_clamped(value, intensity)}
    sums: dict[tuple[SaeChoice, int], float] = {}
    try:
        asked = interventions.parse({"edits": edits}, "").edits if edits else ()
    except Refusal as refusal:
        # edits that were saved before there was this bound
        return (f"the profile cannot be used: {refusal.message}",)
    for edit in asked:
        if isinstance(edit, SteeredFeature) and (edit.op, edit.unit) == (ADD, ACTIVATION):
            named = edit.choice, edit.index
            sums[named] = sums.get(named, 0.0) + edit.value
            clamped |= {edit.index} if is_clamped(edit.value, intensity) else set()
    clamped |= {index for (_, index), value in sums.items() if is_clamped(value, intensity)}
    return clamp_warnings(sorted(clamped), intensity)


def check_cluster_changes(
    facts: Cluster, profile_id: str, changes: Mapping[str, Any], configured: Range
) -> None:
    """Check the new values of fields of a profile that is a cluster. Its values, its layer and its model come from its
    document, so that they always agree with the export. Its intensity stays within its range.

    Raises:
        Refusal: VALIDATION_ERROR.
    """
    for name in ("steering", "layer", "model_id", "edits"):
        if name in changes:
            raise invalid(name, "the profile is a cluster, whose document says this")
    if "intensity" in changes:
        cluster.check_intensity(facts, profile_id, changes["intensity"], configured)


# ------------------------------------------------------------- applying


def checked_edits(edits: Sequence[Any] | None) -> list[dict[str, object]] | None:
    """The edits of a profile as they are saved: in the form that requests have. None where there are none.

    Raises:
        Refusal: INVALID_INTERVENTION, TOO_MANY_EDITS; VALIDATION_ERROR for edits that are too large.
    """
    if not edits:
        return None
    interventions.parse({"edits": edits}, "")
    if len(msgspec.json.encode(edits)) > PROFILE_EDITS_BYTES:
        raise invalid("edits", f"more than {PROFILE_EDITS_BYTES} bytes of JSON")
    return [dict(edit) for edit in edits]


@dataclass(frozen=True, slots=True)
class ProfileEdits:
    """The edits of a profile with their vectors, their JSON as it is saved, and the largest activations that their
    values are parts of."""

    own: RequestSteering
    sent: Sequence[Mapping[str, object]]
    largest: Largest = field(default_factory=dict)

    def placed(self, attached: Sequence[Sae], model: ModelFacts) -> Placed:
        """Raises:
        Refusal: as `placing.placed`.
        """
        known = {**model.largest, **self.largest}
        return placed(self.own, attached, replace(model, largest=known))


@dataclass(frozen=True, slots=True)
class Profile:
    """A saved profile that can be applied. A profile without `sae_id` fits any SAE, one without `layer` any layer. For
    a cluster, `cluster` has the facts of its document."""

    name: str
    values: Values
    intensity: float = 1.0
    sae_id: str | None = None
    layer: int | None = None
    cluster: Cluster | None = None
    id: str = ""
    edits: ProfileEdits | None = None

    @property
    def choice(self) -> SaeChoice | ClusterChoice:
        """The SAE that the values were made for."""
        if self.cluster is not None:
            return self.cluster.choice(self.sae_id)
        return SaeChoice(self.sae_id, self.layer)


def site(profile: Profile, attached: Sequence[Sae], param: str | None = None) -> Sae:
    """The attached SAE that a profile was made for. Where several fit, it is the one that was attached first.

    Raises:
        Refusal: PROFILE_INCOMPATIBLE when no attached SAE fits.
    """
    fitting = profile.choice.among(attached)
    if fitting:
        return fitting[0]
    raise Refusal(
        "PROFILE_INCOMPATIBLE",
        f"profile {profile.name!r} is made for {profile.choice}, which is not attached; attach it, or change the "
        "sae_id of the profile",
        param=param,
        sae_id=profile.sae_id,
        layer=profile.layer,
        attached=[{"sae_id": a.sae_id, "layer": a.layer} for a in attached],
    )


# ------------------------------------------------------------- importing


@dataclass(frozen=True, slots=True)
class ImportedProfile:
    """An imported profile: its checked values, its other fields as the document has them, and the origin of the SAE and
    the model that the document was made for."""

    steering: dict[int, float]
    fields: dict[str, object]
    warnings: tuple[str, ...]
    origin: Origin | None = None
    edits: list[dict[str, object]] | None = None


def parse(body: bytes) -> ImportedProfile:
    """The profile in the body of an import.

    Raises:
        Refusal: PAYLOAD_TOO_LARGE; VALIDATION_ERROR for a body that is not JSON or is nested too deep;
            IS_CLUSTER_DOCUMENT.
        DocumentRefusal: VALIDATION_ERROR as `read`.
    """
    content = _json(body)
    try:
        return read(content)
    except Refusal as refusal:
        if refusal.code != "VALIDATION_ERROR":
            raise
        raise DocumentRefusal(refusal.code, refusal.message, **refusal.details) from None


def _json(body: bytes) -> object:
    """Raises:
    Refusal: PAYLOAD_TOO_LARGE, VALIDATION_ERROR.
    """
    if len(body) > DOCUMENT_BYTES:
        raise Refusal(
            "PAYLOAD_TOO_LARGE",
            f"a profile document has at most {DOCUMENT_BYTES} bytes",
            limit_bytes=DOCUMENT_BYTES,
        )
    if documents.is_deeper(body, DOCUMENT_LEVELS):
        why = f"the document is nested deeper than {DOCUMENT_LEVELS} objects and lists"
        raise documents.malformed(why)
    return documents.read_json(body)


def read(body: object) -> ImportedProfile:
    """The profile in a document that this service exported, alone or inside the `data` of an answer, or in the older
    form with `features`.

    Raises:
        Refusal: IS_CLUSTER_DOCUMENT; VALIDATION_ERROR, whose `invalid_keys` are the keys of entries that are not an
            index with a value.
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
    edits = body.get("edits")
    if edits is not None and not isinstance(edits, list):
        raise invalid("edits", "not a list of edits")
    return ImportedProfile(
        _entries(body), fields, warnings, provenance.read(body), checked_edits(edits)
    )


def _check_kind(body: dict[str, object]) -> None:
    """Raises:
    Refusal: IS_CLUSTER_DOCUMENT; VALIDATION_ERROR for any other document that has a `kind`.
    """
    kind = body.get("kind")
    is_unnamed = kind is None and not ({"steering", "features"} & body.keys())
    if kind in cluster.KINDS or (is_unnamed and {"members", "definitions"} & body.keys()):
        raise Refusal(
            "IS_CLUSTER_DOCUMENT",
            f"this is a cluster document; import it with POST {CLUSTER_IMPORT}",
            kind=kind,
            import_path=CLUSTER_IMPORT,
        )
    if kind is not None:
        raise invalid("kind", f"a profile has none, this document says {documents.kind_of(body)}")


def _older(body: dict[str, Any], fields: dict[str, Any]) -> tuple[str, ...]:
    """Fill `fields` with the model and the layer of the older form, which has them inside the objects `model` and
    `sae`. Returns warnings."""
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
        f"the values were made for the SAE {shown(str(repo_id))!r}; the profile is not bound to one",
    )


def _entries(body: dict[str, object]) -> dict[int, float]:
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
    return feature_values(values, is_import=True)


def _of_list(features: object) -> dict[str, object]:
    """The list of {index, strength} of the older form, as a map. An entry of a wrong form gets its place in the list as
    its key, so that the refusal can name the entry."""
    if not isinstance(features, list):
        raise invalid("features", "not a list of {index, strength}")
    if len(features) > STEERED_FEATURES:
        raise invalid("features", f"more than {STEERED_FEATURES} features")
    values: dict[str, object] = {}
    for place, entry in enumerate(features):
        index = entry.get("index") if isinstance(entry, dict) else None
        is_index = isinstance(index, int) and not isinstance(index, bool)
        key = str(index) if is_index else f"features[{place}]"
        values[key] = None if key in values or not is_index else entry.get("strength")
    return values


def is_cluster(profile_id: str) -> Refusal:
    """The refusal to export a cluster as a profile, which would lose most of its document."""
    path = f"{CLUSTERS}/{profile_id}/export"
    why = f"the profile is a cluster; export it with GET {path}"
    details = {"profile_id": profile_id, "source_kind": "cluster", "export_path": path}
    return refuse_value(["path", "profile_id"], why, **details)


def invalid(
    field: str,
    why: str,
    keys: Iterable[str] = (),
    *,
    is_import: bool = False,
    are_named: bool = False,
) -> Refusal:
    """The refusal of a field, or of some of its keys. `are_named` says that `why` names the keys itself."""
    named = [shown(key) for key in islice(keys, _NAMED)]
    places = [["body", field, key] for key in named] or [["body", field]]
    more: dict[str, Any] = {"invalid_keys": named} if is_import else {}
    return Refusal(
        "VALIDATION_ERROR",
        f"{field}: {why}" + (f": {', '.join(map(repr, named))}" if named and not are_named else ""),
        errors=[{"loc": place, "msg": why} for place in places],
        **more,
    )
