"""A comparison: one prompt, completed once for each of several intensities of the same steering.

The base values are the values in the request, else those of the named profile, else those that the dial of a request
would scale. An intensity multiplies the base values; intensity 0 is the model without any steering. Each product is
clamped to [-200, 200]. Values that the dial leaves as they are, such as those beside a circuit, are added to each
product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_field, refuse_value
from steerserve.rules.saes.attachment import AttachedSae, SaeChoice
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM
from steerserve.rules.steering.live import check_index, check_value
from steerserve.rules.steering.placed import Placed, Values, scaled, total
from steerserve.rules.steering.placing import ModelFacts, placed
from steerserve.rules.steering.request import RequestSteering

INTENSITIES_MAXIMUM = 16

Overlay = Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The intensities to compare, and the base values that they multiply. `steering` has the base values for the first
    attached SAE with this `sae_id` and `layer`; None means any. `own` has base values that name their SAEs themselves,
    and `sent` its edits as they were sent. Without both the base values are those of the named profile, else those of
    what steers now."""

    intensities: tuple[float, ...]
    steering: Values | None = None
    sae_id: str | None = None
    layer: int | None = None
    own: RequestSteering | None = None
    sent: tuple[Mapping[str, object], ...] = ()

    @property
    def has_values(self) -> bool:
        return self.steering is not None or self.own is not None


def check_intensities(intensities: Sequence[float]) -> tuple[float, ...]:
    """Raises:
    Refusal: VALIDATION_ERROR for no intensity, too many intensities, a repeated one, or one outside [0, 2].
    """
    numbers = tuple(float(one) for one in intensities)
    if not 1 <= len(numbers) <= INTENSITIES_MAXIMUM:
        raise _invalid(f"1 to {INTENSITIES_MAXIMUM} intensities")
    for one in numbers:
        if not 0.0 <= one <= INTENSITY_MAXIMUM:
            raise _invalid(f"numbers in [0, {INTENSITY_MAXIMUM:g}]; {one} is not")
    if len(set(numbers)) < len(numbers):
        raise _invalid("each intensity once")
    return numbers


def base(
    sweep: Sweep, otherwise: Placed, attached: Sequence[AttachedSae], model: ModelFacts
) -> Placed:
    """The steering at intensity 1. It is `otherwise` where the sweep has none of its own.

    Raises: Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; the refusals of `rules/steering/placing.placed`;
        VALIDATION_ERROR for a value out of range, or when every value is 0 and an intensity is not.
    """
    steering = otherwise
    if sweep.own is not None:
        steering = placed(sweep.own, attached, model)
    elif sweep.steering is not None:
        fits = SaeChoice(sweep.sae_id, sweep.layer).among(attached)
        if not fits:
            raise Refusal(
                "SAE_NOT_ATTACHED",
                SaeChoice(sweep.sae_id, sweep.layer).absent,
                attached=[{"sae_id": one.sae_id, "layer": one.layer} for one in attached],
            )
        for index, value in sweep.steering.items():
            check_index(index, fits[0].d_sae)
            check_value(value)
        steering = Placed({fits[0].key: sweep.steering})
    added = (value for values in steering.values.values() for value in values.values())
    is_steered = any(added) or bool(steering.edits)
    if not is_steered and any(sweep.intensities):
        message = "there is nothing to compare: give steering or a profile, or steer first"
        raise refuse_value(["body", "steering"], "no value is steered", message)
    return steering


def overlays(
    steering: Overlay, intensities: Sequence[float], beside: Overlay | None = None
) -> tuple[Overlay, ...]:
    """The steering of each completion: the base values at its intensity, and the values `beside` them. It is empty for
    intensity 0."""
    return tuple(total([scaled(steering, one), beside or {}]) if one else {} for one in intensities)


def _invalid(expected: str) -> Refusal:
    return refuse_field("intensities", expected)
