"""The steering that a request brings itself, in its field `sae_steering`: which features, by which values, at which
attached SAEs, in place of the live values or added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.saes.attachment import FIRST_SAE, Sae, SaeChoice
from steerserve.rules.steering.live import BATCH_MAXIMUM, MAXIMUM, MINIMUM, Values

FIELD = "sae_steering"
FEATURES_MAXIMUM = BATCH_MAXIMUM
MODES = ("replace", "add")


@dataclass(frozen=True, slots=True)
class SteeredFeature:
    """One feature with its value. `choice` names the attached SAE; it may be left open where only one can be meant."""

    index: int
    value: float
    choice: SaeChoice = FIRST_SAE


@dataclass(frozen=True, slots=True)
class RequestSteering:
    """The features of a request. They replace the values that the request would have had without them, or with
    `is_added` are added to those. Without any feature the request is not steered, or with `is_added` steered as if it
    had brought none."""

    features: tuple[SteeredFeature, ...]
    is_added: bool = False


def check(steering: RequestSteering) -> RequestSteering:
    """The checks that need no attached SAE. Values are never clamped here.

    Raises:
        Refusal: INVALID_PARAMETER for too many features, a value outside [-200, 200], a negative index, or a feature
            that is named twice.
    """
    if len(steering.features) > FEATURES_MAXIMUM:
        raise _invalid("features", f"at most {FEATURES_MAXIMUM} features")
    seen: set[tuple[SaeChoice, int]] = set()
    for place, feature in enumerate(steering.features):
        where = f"features[{place}]"
        if not MINIMUM <= feature.value <= MAXIMUM:
            raise _invalid(f"{where}.value", f"a number from {MINIMUM:g} to {MAXIMUM:g}")
        if feature.index < 0:
            raise _invalid(f"{where}.index", "a feature index, counted from 0")
        if (feature.choice, feature.index) in seen:
            raise _invalid(where, f"each feature once; feature {feature.index} is there twice")
        seen.add((feature.choice, feature.index))
    return steering


def values(steering: RequestSteering, attached: Sequence[Sae]) -> Mapping[str, Values]:
    """The features by attachment.

    Raises:
        Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; INVALID_PARAMETER where several attached SAEs could be meant,
            or where two entries name one feature of one SAE.
    """
    by_key: dict[str, dict[int, float]] = {}
    for place, feature in enumerate(steering.features):
        where = f"features[{place}]"
        sae = _named(feature.choice, where, attached)
        if feature.index >= sae.d_sae:
            raise Refusal(
                "INVALID_FEATURE_INDEX",
                f"{FIELD}.{where}.index: {feature.index} is outside [0, {sae.d_sae}) of SAE {sae.sae_id!r}",
                param=f"{FIELD}.{where}.index",
                feature_idx=feature.index,
                d_sae=sae.d_sae,
            )
        there = by_key.setdefault(sae.key, {})
        if feature.index in there:
            raise _invalid(where, f"each feature once; feature {feature.index} is there twice")
        there[feature.index] = feature.value
    return by_key


def _named(choice: SaeChoice, where: str, attached: Sequence[Sae]) -> Sae:
    fitting = choice.among(attached)
    if len(fitting) == 1:
        return fitting[0]
    listed = [{"sae_id": sae.sae_id, "layer": sae.layer} for sae in attached]
    if not fitting:
        missing = f"{choice} is not attached" if attached else "no SAE is attached"
        raise Refusal(
            "SAE_NOT_ATTACHED",
            f"{FIELD}.{where}: {missing}",
            param=f"{FIELD}.{where}",
            attached=listed,
        )
    # the layer tells one SAE at two layers apart, the ids tell several SAEs apart
    part = "layer" if len({sae.sae_id for sae in fitting}) == 1 else "sae_id"
    raise _invalid(
        f"{where}.{part}", "given, because several attached SAEs could be meant", attached=listed
    )


def _invalid(part: str, expected: str, **details: object) -> Refusal:
    where = f"{FIELD}.{part}"
    return Refusal("INVALID_PARAMETER", f"{where} must be {expected}", param=where, **details)
