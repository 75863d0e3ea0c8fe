"""What is compared with what."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from steerserve.rules.inference import compare
from steerserve.rules.inference.compare import Sweep
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.placing import ModelFacts
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from tests.refusals import refusal_of


@dataclass(frozen=True)
class At:
    sae_id: str
    layer: int
    d_sae: int = 8

    @property
    def key(self) -> str:
        return f"{self.sae_id}@{self.layer}"

    def is_named(self, sae_id: str) -> bool:
        return sae_id == self.sae_id


FIRST, SECOND = At("sae_a", 1), At("sae_b", 2, 4)
LIVE = {"sae_a@1": {3: 10.0}}


def own(*features: tuple[int, float, str | None]) -> RequestSteering:
    return RequestSteering(
        tuple(SteeredFeature(index, value, SaeChoice(sae)) for index, value, sae in features)
    )


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        (Sweep((0, 1)), LIVE),
        (Sweep((0, 1), {5: 2.0}), {"sae_a@1": {5: 2.0}}),
        (Sweep((0, 1), {3: 2.0}, sae_id="sae_b"), {"sae_b@2": {3: 2.0}}),
        (Sweep((0, 1), {3: 2.0}, layer=2), {"sae_b@2": {3: 2.0}}),
        (Sweep((0,), {}), {"sae_a@1": {}}),
        (
            Sweep((0, 1), own=own((3, 2.0, "sae_b"), (5, 1.0, "sae_a"), (3, 4.0, "sae_a"))),
            {"sae_a@1": {5: 1.0, 3: 4.0}, "sae_b@2": {3: 2.0}},
        ),
        (Sweep((0,), own=own()), {}),
    ],
)
def test_the_base(sweep: Sweep, expected: compare.Overlay) -> None:
    made = compare.base(sweep, Placed(LIVE), [FIRST, SECOND], ModelFacts())
    assert made.values == expected


@pytest.mark.parametrize(
    ("sweep", "code"),
    [
        (Sweep((0, 1), {8: 2.0}), "INVALID_FEATURE_INDEX"),
        (Sweep((0, 1), {7: 2.0}, sae_id="sae_b"), "INVALID_FEATURE_INDEX"),
        (Sweep((0, 1), {-1: 2.0}), "INVALID_FEATURE_INDEX"),
        (Sweep((0, 1), {1: 200.5}), "VALIDATION_ERROR"),
        (Sweep((0, 1), {1: float("nan")}), "VALIDATION_ERROR"),
        (Sweep((0, 1), {}), "VALIDATION_ERROR"),
        (Sweep((0, 1), {1: 0.0}), "VALIDATION_ERROR"),
        (Sweep((0, 1), {1: 1.0}, sae_id="sae_c"), "SAE_NOT_ATTACHED"),
        (Sweep((0, 1), {1: 1.0}, sae_id="sae_a", layer=2), "SAE_NOT_ATTACHED"),
        (Sweep((0, 1), own=own((1, 1.0, "sae_a"), (1, 1.0, "sae_c"))), "SAE_NOT_ATTACHED"),
        (Sweep((0, 1), own=own((4, 1.0, "sae_b"))), "INVALID_FEATURE_INDEX"),
        (Sweep((0, 1), own=own((1, 1.0, None))), "INVALID_PARAMETER"),
        (Sweep((0, 1), own=own((1, 0.0, "sae_a"))), "VALIDATION_ERROR"),
        (Sweep((0, 1), own=own()), "VALIDATION_ERROR"),
    ],
)
def test_a_base_that_cannot_be(sweep: Sweep, code: str) -> None:
    assert refusal_of(compare.base, sweep, Placed({}), [FIRST, SECOND], ModelFacts()).code == code


def test_an_intensity_multiplies_every_value_within_the_bounds() -> None:
    base = {"sae_a@1": {1: 150.0, 2: -10.0}, "sae_b@2": {0: 1.0}}
    assert compare.overlays(base, (0.0, 0.5, 2.0)) == (
        {},
        {"sae_a@1": {1: 75.0, 2: -5.0}, "sae_b@2": {0: 0.5}},
        {"sae_a@1": {1: 200.0, 2: -20.0}, "sae_b@2": {0: 2.0}},
    )


@pytest.mark.parametrize(
    "intensities", [[], [0.1 * i for i in range(17)], [2.1], [-0.1], [1, 1.0], [float("nan")]]
)
def test_intensities_that_cannot_be(intensities: list[float]) -> None:
    assert refusal_of(compare.check_intensities, intensities).code == "VALIDATION_ERROR"


def test_intensities_that_can_be() -> None:
    assert compare.check_intensities([0, 2, 0.5]) == (0.0, 2.0, 0.5)
