"""The steering that a request brings itself: its checks, the SAE that each feature means, and its part of the dial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from steerserve.rules.bounds import STEERED_FEATURES
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering import dial
from steerserve.rules.steering import live as steering
from steerserve.rules.steering import request as sae_steering
from steerserve.rules.steering.activation import activate, adopt
from steerserve.rules.steering.dial import Intensity, Plan, Profile, Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL, Values
from steerserve.rules.steering.placing import ModelFacts, placed
from steerserve.rules.steering.request import (
    RequestSteering,
    SteeredFeature,
)
from tests.refusals import refusal_of
from tests.rules.steering.owners import effective, owned
from tests.rules.steering.saes import Sae

FIRST, SECOND, THIRD = Sae("sae_a", 1), Sae("sae_b", 2, 20), Sae("sae_b", 3, 20)
A, B = FIRST.key, SECOND.key

FRESH = Live()
LIVE = Live(epoch=7, enabled=True, values={A: {1: 5.0, 2: -3.0}})
OFF = Live(epoch=7, enabled=False, values={A: {1: 5.0, 2: -3.0}})
SHARED = Live(
    enabled=True, owned=owned({MANUAL: {A: {1: 4.0}}, "circuit:1": {A: {1: 2.0, 3: 1.0}}})
)
CALM = Profile("calm", {4: 2.0, 9: -1.0}, intensity=1.5)


def own(values: Values, mode: str = "replace", sae: str | None = None) -> RequestSteering:
    features = tuple(SteeredFeature(i, v, SaeChoice(sae)) for i, v in values.items())
    return RequestSteering(features, is_added=mode == "add")


def planned(
    request: RequestSteering,
    intensity: Intensity | None = None,
    live: Live = LIVE,
    attached: tuple[Sae, ...] = (FIRST,),
) -> Plan:
    return dial.plan(intensity, False, None, live, attached, Range(), request)


def own_plan(overlay: Mapping[str, Values], echo: float | None = None) -> Plan:
    """A plan that holds to the end of the request."""
    return Plan(overlay, echo, is_own=True)


# ---------------------------------------------------------------- the checks without an SAE


@pytest.mark.parametrize("value", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("count", [0, 1, STEERED_FEATURES])
def test_values_within_the_bounds_pass(value: float, count: int) -> None:
    request = own(dict.fromkeys(range(count), value))
    assert sae_steering.check_steering(request) is request


@pytest.mark.parametrize(
    ("features", "param"),
    [
        (tuple(SteeredFeature(i, 1.0) for i in range(STEERED_FEATURES + 1)), "features"),
        ((SteeredFeature(1, 200.0001),), "features[0].value"),
        ((SteeredFeature(1, -200.0001),), "features[0].value"),
        ((SteeredFeature(1, float("nan")),), "features[0].value"),
        ((SteeredFeature(1, float("inf")),), "features[0].value"),
        ((SteeredFeature(0, 1.0), SteeredFeature(-1, 1.0)), "features[1].index"),
        ((SteeredFeature(3, 1.0), SteeredFeature(3, 1.0)), "features[1]"),
        ((SteeredFeature(3, 1.0), SteeredFeature(3, 2.0)), "features[1]"),
    ],
)
def test_a_fault_of_the_field_is_refused_and_names_its_place(
    features: tuple[SteeredFeature, ...], param: str
) -> None:
    refusal = refusal_of(sae_steering.check_steering, RequestSteering(features))
    assert (refusal.code, refusal.row.v1) == ("INVALID_PARAMETER", 400)
    assert refusal.param == f"sae_steering.{param}"


# ---------------------------------------------------------------- the SAE of a feature


@pytest.mark.parametrize(
    ("choice", "attached", "key"),
    [
        (SaeChoice(), (FIRST,), A),
        (SaeChoice("sae_a"), (FIRST, SECOND), A),
        (SaeChoice("sae_b"), (FIRST, SECOND), B),
        (SaeChoice(None, 2), (FIRST, SECOND), B),
        (SaeChoice("sae_b", 3), (FIRST, SECOND, THIRD), THIRD.key),
    ],
)
def test_a_feature_acts_on_the_sae_that_it_names_or_on_the_only_one(
    choice: SaeChoice, attached: tuple[Sae, ...], key: str
) -> None:
    request = RequestSteering((SteeredFeature(4, 2.0, choice),))
    assert placed(request, attached, ModelFacts()).values == {key: {4: 2.0}}


@pytest.mark.parametrize(
    ("choices", "attached", "code", "param"),
    [
        ([SaeChoice()], (), "SAE_NOT_ATTACHED", "features[0]"),
        ([SaeChoice("sae_z")], (FIRST,), "SAE_NOT_ATTACHED", "features[0]"),
        ([SaeChoice("sae_a", 2)], (FIRST, SECOND), "SAE_NOT_ATTACHED", "features[0]"),
        ([SaeChoice()], (FIRST, SECOND), "INVALID_PARAMETER", "features[0].sae_id"),
        ([SaeChoice("sae_b")], (SECOND, THIRD), "INVALID_PARAMETER", "features[0].layer"),
        ([SaeChoice(), SaeChoice("sae_a")], (FIRST,), "INVALID_PARAMETER", "features[1]"),
    ],
    ids=["nothing", "another", "elsewhere", "several SAEs", "several layers", "the same twice"],
)
def test_a_feature_of_no_sae_or_of_several_is_refused(
    choices: list[SaeChoice], attached: tuple[Sae, ...], code: str, param: str
) -> None:
    request = RequestSteering(tuple(SteeredFeature(4, 2.0, choice) for choice in choices))
    refusal = refusal_of(placed, sae_steering.check_steering(request), attached, ModelFacts())
    assert (refusal.code, refusal.row.v1) == (code, 400)
    assert refusal.param == f"sae_steering.{param}"
    if param != "features[1]":
        listed = [{"sae_id": sae.sae_id, "layer": sae.layer} for sae in attached]
        assert refusal.details["attached"] == listed


@pytest.mark.parametrize(("sae", "index"), [("sae_a", 10), ("sae_b", 20), ("sae_a", 2**31 - 1)])
@pytest.mark.parametrize("value", [1.0, 0.0])
def test_an_index_outside_of_its_sae_is_refused(sae: str, index: int, value: float) -> None:
    refusal = refusal_of(
        placed, own({9: 1.0, index: value}, sae=sae), (FIRST, SECOND), ModelFacts()
    )
    assert (refusal.code, refusal.row.v1) == ("INVALID_FEATURE_INDEX", 400)
    assert refusal.param == "sae_steering.features[1].index"
    assert refusal.details["feature_idx"] == index


# ---------------------------------------------------------------- its part of the dial


@pytest.mark.parametrize("live", [FRESH, LIVE, OFF, activate(LIVE, "prof_1", CALM, (FIRST,))])
def test_replacing_values_are_the_only_values_of_the_request(live: Live) -> None:
    assert planned(own({4: 7.0}), live=live) == own_plan({A: {4: 7.0}})


def test_replacing_values_also_replace_those_of_other_saes() -> None:
    plan = planned(own({15: 7.0}, sae="sae_b"), attached=(FIRST, SECOND))
    assert plan.overlay == {B: {15: 7.0}}


ADDED: list[tuple[Live, Values, Values]] = [
    (FRESH, {4: 7.0}, {4: 7.0}),
    (OFF, {4: 7.0}, {4: 7.0}),
    (LIVE, {4: 7.0}, {1: 5.0, 2: -3.0, 4: 7.0}),
    (LIVE, {1: 7.0}, {1: 12.0, 2: -3.0}),
    (LIVE, {1: -5.0}, {1: 0.0, 2: -3.0}),
    (LIVE, {1: 198.0, 2: -199.0}, {1: 200.0, 2: -200.0}),
    (SHARED, {1: 1.0}, {1: 7.0, 3: 1.0}),
    (activate(LIVE, "prof_1", CALM, (FIRST,)), {4: 1.0}, {4: 4.0, 9: -1.5}),
    (adopt(LIVE, "prof_1", CALM), {1: 1.0}, {1: 6.0, 2: -3.0}),
]


@pytest.mark.parametrize(("live", "values", "sums"), ADDED)
def test_added_values_are_added_to_what_the_request_would_have_had(
    live: Live, values: Values, sums: Values
) -> None:
    assert planned(own(values, "add"), live=live) == own_plan({A: sums})


@pytest.mark.parametrize("intensity", [None, 0.5])
@pytest.mark.parametrize("attached", [(), (FIRST,)])
def test_no_values_are_no_steering_and_are_not_echoed(
    intensity: Intensity | None, attached: tuple[Sae, ...]
) -> None:
    plan = planned(own({}), intensity, attached=attached)
    assert effective(LIVE, plan.overlay, LIVE.epoch, A) == {}
    assert plan.echo is None


@pytest.mark.parametrize("live", [FRESH, OFF, LIVE, SHARED, activate(LIVE, "p", CALM, (FIRST,))])
@pytest.mark.parametrize("intensity", [None, 0.5])
def test_no_added_values_are_the_steering_without_them(
    live: Live, intensity: Intensity | None
) -> None:
    alone = dial.plan(intensity, False, None, live, (FIRST,), Range())
    added = planned(own({}, "add"), intensity, live)
    assert effective(live, added.overlay, live.epoch, A) == effective(
        live, alone.overlay, live.epoch, A
    )
    assert added.echo == alone.echo


@pytest.mark.parametrize(
    ("intensity", "strength"), [(0.5, 0.5), (1.0, 1.0), (2.0, 2.0), ("min", 0.5), ("max", 1.5)]
)
def test_an_intensity_scales_the_values_of_the_request_and_is_echoed(
    intensity: Intensity, strength: float
) -> None:
    plan = planned(own({4: 7.0, 5: -150.0}), intensity)
    assert plan == own_plan({A: {4: 7.0 * strength, 5: max(-200.0, -150.0 * strength)}}, strength)


@pytest.mark.parametrize("intensity", [0.5, 2.0, "min", "max"])
@pytest.mark.parametrize(("live", "values", "sums"), ADDED[:2] + ADDED[2:4])
def test_one_intensity_scales_the_added_values_and_those_below_them(
    intensity: Intensity, live: Live, values: Values, sums: Values
) -> None:
    strength = {"min": 0.5, "max": 1.5}.get(str(intensity), intensity)
    expected = {index: value * float(strength) for index, value in sums.items()}
    assert planned(own(values, "add"), intensity, live) == own_plan({A: expected}, float(strength))


def test_an_intensity_scales_the_active_profile_as_saved_below_added_values() -> None:
    live = activate(LIVE, "prof_1", CALM, (FIRST,))
    plan = planned(own({4: 1.0}, "add"), 0.5, live)
    assert plan == own_plan({A: {4: 1.5, 9: -0.5}}, 0.5)


@pytest.mark.parametrize("mode", ["replace", "add"])
@pytest.mark.parametrize(
    "request_values", [{4: 7.0}, {10: 7.0}], ids=["a good index", "an index past the SAE"]
)
def test_off_switches_steering_off_and_checks_no_sae(mode: str, request_values: Values) -> None:
    assert planned(own(request_values, mode), 0.0) == own_plan({}, 0.0)
    assert planned(own(request_values, mode, "sae_z"), 0.0, FRESH) == own_plan({}, 0.0)
    assert planned(own(request_values, mode), 0.0, attached=()) == Plan(None, None)


def test_off_is_not_echoed_where_nothing_would_have_steered() -> None:
    assert planned(own({4: 0.0}), 0.0, FRESH) == own_plan({})


def test_values_of_0_switch_the_live_steering_off_for_the_request() -> None:
    plan = planned(own({4: 0.0}))
    assert effective(LIVE, plan.overlay, LIVE.epoch, A) == {}


@pytest.mark.parametrize(
    ("mode", "values"), [("replace", {4: 7.0}), ("add", {1: 5.0, 2: -3.0, 4: 7.0})]
)
def test_an_operators_change_does_not_touch_the_values_of_the_request(
    mode: str, values: Values
) -> None:
    plan = planned(own({4: 7.0}, mode))
    changed = steering.set_values(LIVE, A, 10, {5: 1.0})
    assert plan.is_own
    assert effective(changed, plan.overlay, None, A) == values


@pytest.mark.parametrize("mode", ["replace", "add"])
@pytest.mark.parametrize("intensity", [None, 1.0, "max"])
def test_without_an_attached_sae_the_request_is_refused(mode: str, intensity: Any) -> None:
    refusal = refusal_of(planned, own({4: 7.0}, mode), intensity, attached=())
    assert refusal.code == "SAE_NOT_ATTACHED"
