"""The steering that a request brings itself: which edits of features at which attached SAEs, in place of the live
values or added to them. The field `interventions` takes all kinds of edits. `sae_steering` is its short form for `add`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.saes.attachment import FIRST_SAE, Sae, SaeChoice
from steerserve.rules.steering.edits import (
    ADD,
    EDITS_MAXIMUM,
    KINDS,
    SITE_MAXIMUM,
    Edit,
    Feature,
    ordered,
)
from steerserve.rules.steering.live import BATCH_MAXIMUM, MAXIMUM, MINIMUM, Values

FIELD = "sae_steering"
INTERVENTIONS = "interventions"
FEATURES_MAXIMUM = BATCH_MAXIMUM
MODES = ("replace", "add")


@dataclass(frozen=True, slots=True)
class SteeredFeature:
    """One edit of one feature. `choice` names the attached SAE; it may be left open where only one can be meant. `op`
    is one of `edits.KINDS`. The value of an op without a value is 0."""

    index: int
    value: float
    choice: SaeChoice = FIRST_SAE
    op: str = ADD


@dataclass(frozen=True, slots=True)
class RequestSteering:
    """The edits of a request. They replace the steering that the request would have had without them, or with
    `is_added` are made beside it. Without any edit the request is not steered, or with `is_added` steered as if it
    had brought none. `field` is the field that the request has them in."""

    features: tuple[SteeredFeature, ...]
    is_added: bool = False
    field: str = FIELD

    @property
    def is_steering(self) -> bool:
        """Whether an edit changes anything."""
        return any(not target_of(feature).is_idle for feature in self.features)


@dataclass(frozen=True, slots=True)
class Placed:
    """The edits of a request at the attached SAEs: the sums of its `add` edits by attachment, and all other edits in
    their sorted order."""

    values: Mapping[str, Values]
    edits: tuple[Edit, ...] = ()


def target_of(feature: SteeredFeature, key: str = "") -> Edit:
    """The edit of the feature at the SAE that is attached as `key`."""
    return Edit(Feature(key, feature.index), KINDS[feature.op].target(feature.value))


def check(steering: RequestSteering) -> RequestSteering:
    """The checks that need no attached SAE. Values are never clamped here.

    Raises:
        Refusal: INVALID_PARAMETER for an unknown op, a value outside the bounds of its op, a negative index, too many
            features, or a feature that is named twice in `sae_steering`; TOO_MANY_EDITS.
    """
    count = len(steering.features)
    if steering.field == INTERVENTIONS:
        if count > EDITS_MAXIMUM:
            raise _too_many(f"{count} edits; at most {EDITS_MAXIMUM} in a request", EDITS_MAXIMUM)
    elif count > FEATURES_MAXIMUM:
        raise _invalid(steering, "features", f"at most {FEATURES_MAXIMUM} features")
    seen: set[tuple[SaeChoice, int]] = set()
    for place, feature in enumerate(steering.features):
        where = _where(steering, place)
        kind = KINDS.get(feature.op)
        if kind is None:
            raise _invalid(steering, f"{where}.op", f"one of {', '.join(KINDS)}")
        low, high = kind.lowest, kind.highest
        if low is not None and high is not None and not low <= feature.value <= high:
            expected = f"a number from {low:g} to {high:g}"
            raise _invalid(steering, f"{where}.value", expected)
        if feature.index < 0:
            raise _invalid(steering, _index(steering, place), "a feature index, counted from 0")
        if steering.field == FIELD and (feature.choice, feature.index) in seen:
            raise _twice(steering, place)
        seen.add((feature.choice, feature.index))
    return steering


def placed(steering: RequestSteering, attached: Sequence[Sae]) -> Placed:
    """The edits at the attached SAEs that they name, without the edits that change nothing.

    Raises:
        Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; INVALID_PARAMETER where several attached SAEs could be meant,
            where two entries of `sae_steering` name one feature of one SAE, or where the `add` edits of a feature have
            a sum outside [-200, 200]; TOO_MANY_EDITS.
    """
    by_key: dict[str, dict[int, float]] = {}
    others: list[Edit] = []
    for place, feature in enumerate(steering.features):
        sae = _named(steering, place, attached)
        if feature.index >= sae.d_sae:
            where = f"{steering.field}.{_index(steering, place)}"
            raise Refusal(
                "INVALID_FEATURE_INDEX",
                f"{where}: {feature.index} is outside [0, {sae.d_sae}) of SAE {sae.sae_id!r}",
                param=where,
                feature_idx=feature.index,
                d_sae=sae.d_sae,
            )
        edit = target_of(feature, sae.key)
        if not edit.is_added:
            others.append(edit)
        elif feature.op == ADD:
            there = by_key.setdefault(sae.key, {})
            there[feature.index] = _sum(steering, place, there.get(feature.index))
    for key, count in Counter(edit.key for edit in others).items():
        if count > SITE_MAXIMUM:
            raise _too_many(
                f"{count} edits that are not {ADD} at {key}; at most {SITE_MAXIMUM} there",
                SITE_MAXIMUM,
            )
    return Placed(by_key, ordered(others))


def _sum(steering: RequestSteering, place: int, before: float | None) -> float:
    """The value of an `add` edit, with the values before it of the same feature."""
    value = steering.features[place].value
    if before is None:
        return value
    if steering.field == FIELD:
        raise _twice(steering, place)
    if not MINIMUM <= before + value <= MAXIMUM:
        where = f"{_where(steering, place)}.value"
        expected = (
            f"a value with which the sum of the feature's values is from {MINIMUM:g} to {MAXIMUM:g}"
        )
        raise _invalid(steering, where, expected)
    return before + value


def _where(steering: RequestSteering, place: int) -> str:
    return f"{'features' if steering.field == FIELD else 'edits'}[{place}]"


def _index(steering: RequestSteering, place: int) -> str:
    return f"{_where(steering, place)}{'' if steering.field == FIELD else '.feature'}.index"


def _named(steering: RequestSteering, place: int, attached: Sequence[Sae]) -> Sae:
    choice = steering.features[place].choice
    where = f"{_where(steering, place)}{'' if steering.field == FIELD else '.feature'}"
    fitting = choice.among(attached)
    if len(fitting) == 1:
        return fitting[0]
    listed = [{"sae_id": sae.sae_id, "layer": sae.layer} for sae in attached]
    if not fitting:
        missing = f"{choice} is not attached" if attached else "no SAE is attached"
        raise Refusal(
            "SAE_NOT_ATTACHED",
            f"{steering.field}.{where}: {missing}",
            param=f"{steering.field}.{where}",
            attached=listed,
        )
    # the layer tells one SAE at two layers apart, the ids tell several SAEs apart
    part = "layer" if len({sae.sae_id for sae in fitting}) == 1 else "sae_id"
    expected = "given, because several attached SAEs could be meant"
    raise _invalid(steering, f"{where}.{part}", expected, attached=listed)


def _twice(steering: RequestSteering, place: int) -> Refusal:
    index = steering.features[place].index
    expected = f"each feature once; feature {index} is there twice"
    return _invalid(steering, _where(steering, place), expected)


def _invalid(steering: RequestSteering, part: str, expected: str, **details: object) -> Refusal:
    where = f"{steering.field}.{part}"
    return Refusal("INVALID_PARAMETER", f"{where} must be {expected}", param=where, **details)


def _too_many(found: str, maximum: int) -> Refusal:
    where = f"{INTERVENTIONS}.edits"
    return Refusal("TOO_MANY_EDITS", f"{where}: {found}", param=where, maximum=maximum)
