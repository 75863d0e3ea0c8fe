"""The dial of a request while circuits serve: what it scales, what stays beside it, and which rung is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steerserve.nouns.circuits.rules import serving as circuit_serving
from steerserve.nouns.clusters.rules import Cluster
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering import activation as serving
from steerserve.rules.steering import dial
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.dial import Intensity, Plan, Profile, Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.members import AuthoredMember
from steerserve.rules.steering.request import RequestSteering, SteeredFeature
from steerserve.rules.steering.served import ServedCircuit
from tests.rules.steering.owners import moved, whole
from tests.rules.steering.saes import Sae

LOW, HIGH, OTHER = Sae("sae_a", 2), Sae("sae_b", 3), Sae("sae_c", 4)
ALL = (LOW, HIGH, OTHER)
A, B, C = LOW.key, HIGH.key, OTHER.key
LIMITS = Range(0.5, 1.5)
RAIN = whole("circ_1", "rain", 2, (2, 3), {A: {1: 8.0}, B: {5: -150.0}}, limits=Range(0.2, 1.4))
SNOW = whole("circ_2", "snow", 3, (4,), {C: {6: 1.0}})
CALM = Profile("calm", {7: 3.0}, layer=4)
FRESH = Live(epoch=3)


def serve(*circuits: ServedCircuit, live: Live = FRESH) -> Live:
    for circuit in circuits:
        live = circuit_serving.activate(live, circuit, ALL)
    return live


def planned(intensity: Intensity | None, live: Live, **more: Any) -> Plan:
    fields = {"is_profile_named": "profile" in more, "profile": None, "configured": LIMITS, **more}
    return dial.plan(intensity, live=live, attached=ALL, **fields)


# ------------------------------------------------------------------ one circuit


@pytest.mark.shows("steering-dial.6", "steering-dial.8")
@pytest.mark.parametrize(
    ("intensity", "strength"),
    [
        (0.5, 0.5),
        (1.0, 1.0),
        (0.1, 0.2),
        (2.0, 1.4),
        ("min", 0.2),
        ("max", 1.4),
    ],
)
def test_a_number_is_held_within_the_range_at_both_ends(
    intensity: Intensity, strength: float
) -> None:
    plan = planned(intensity, serve(RAIN))
    high = max(-200.0, -150.0 * strength)
    assert plan == Plan({A: {1: 8.0 * strength}, B: {5: high}}, strength, 2)


@pytest.mark.shows("steering-dial.6")
@pytest.mark.parametrize("applied", [0.0, 0.5, 2.0])
def test_the_dial_is_absolute_whatever_intensity_the_operator_set(applied: float) -> None:
    live = steering.redial(serve(RAIN), "circ_1", applied)
    assert planned(1.0, live) == Plan(RAIN.authored, 1.0, 2)


def test_off_and_0_switch_everything_off_and_report_no_rung() -> None:
    assert planned(0.0, serve(RAIN)) == Plan({}, 0.0)


def test_without_a_floor_min_is_off() -> None:
    assert planned("min", serve(SNOW)) == Plan({}, 0.0)


def test_a_request_without_a_dial_follows_the_live_values_and_reports_the_rung() -> None:
    assert planned(None, serve(RAIN)) == Plan(None, None, 2)


def test_values_set_by_hand_stay_as_they_are() -> None:
    live = steering.set_values(serve(RAIN), A, 10, {1: 1.0, 9: 2.0})
    plan = planned(0.5, live)
    assert plan.overlay == {A: {1: 5.0, 9: 2.0}, B: {5: -75.0}}


@pytest.mark.parametrize("intensity", [None, 0.5, "max"])
def test_a_dial_does_not_switch_on_what_an_operator_switched_off(
    intensity: Intensity | None,
) -> None:
    assert planned(intensity, steering.disable(serve(RAIN))) == Plan()


def test_a_circuit_of_strengths_of_0_steers_nothing_and_reports_no_rung() -> None:
    still = replace(RAIN, parts=moved(RAIN, {A: {1: 0.0}, B: {5: 0.0}}))
    assert planned(None, serve(still)) == Plan()
    assert planned(1.0, serve(still)).rung is None


def test_of_a_circuit_without_all_its_members_the_live_values_are_dialed_and_no_rung_is_reported() -> (
    None
):
    pair = replace(SNOW, parts=moved(SNOW, {C: {6: 1.0, 7: 2.0}}))
    live = steering.remove(serve(pair), C, 10, 7)
    assert planned(None, live) == Plan()
    assert planned(0.5, live) == Plan({C: {6: 0.5}}, 0.5)


# ------------------------------------------------------------------ several circuits


SHARED = whole("circ_2", "snow", 3, (3,), {B: {6: 1.0}})


@pytest.mark.shows("steering-dial.1")
@pytest.mark.parametrize("intensity", [0.5, 1.0, 2.0, "min", "max"])
@pytest.mark.parametrize(
    ("second", "live"),
    [
        (SNOW, {A: {1: 8.0}, B: {5: -150.0}, C: {6: 1.0}}),
        (SHARED, {A: {1: 8.0}, B: {5: -150.0, 6: 1.0}}),
    ],
    ids=["two", "shared"],
)
def test_the_live_values_are_the_base_while_several_circuits_serve(
    second: ServedCircuit, live: dict[str, dict[int, float]], intensity: Intensity
) -> None:
    strength = {"min": 0.5, "max": 1.5}.get(str(intensity), intensity)
    scaled = {
        key: {index: max(-200.0, value * float(strength)) for index, value in values.items()}
        for key, values in live.items()
    }
    assert planned(intensity, serve(RAIN, second)) == Plan(scaled, strength, None)


@pytest.mark.parametrize("second", [SNOW, SHARED], ids=["two", "shared"])
def test_several_circuits_report_no_rung(second: ServedCircuit) -> None:
    assert planned(None, serve(RAIN, second)) == Plan()


def test_several_circuits_that_an_operator_switched_off_are_not_dialed_on() -> None:
    assert planned(0.5, steering.disable(serve(RAIN, SNOW))) == Plan()


def test_off_switches_several_circuits_off() -> None:
    assert planned(0.0, serve(RAIN, SNOW)) == Plan({}, 0.0)


# ------------------------------------------------------------------ beside a profile


def test_a_named_profile_replaces_the_circuit_for_the_request() -> None:
    plan = planned(None, serve(RAIN), profile=CALM)
    assert plan == Plan({C: {7: 3.0}}, None, None)


@pytest.mark.parametrize("intensity", [0.5, 2.0])
def test_the_dial_of_the_active_profile_leaves_circuits_as_they_are(intensity: float) -> None:
    live = serve(RAIN, live=serving.activate(FRESH, "prof_1", CALM, ALL))
    plan = planned(intensity, live)
    assert plan == Plan({**RAIN.authored, C: {7: 3.0 * intensity}}, intensity, 2)


def test_a_profile_is_scaled_without_values_set_by_hand_and_without_the_circuit() -> None:
    live = serve(RAIN, live=serving.activate(FRESH, "prof_1", CALM, ALL))
    live = steering.set_values(live, C, 10, {8: 4.0})
    assert planned(0.5, live).overlay == {**RAIN.authored, C: {7: 1.5}}


@pytest.mark.shows("steering-dial.7")
def test_a_slice_follows_the_rule_of_clusters_with_their_floor() -> None:
    facts = Cluster((AuthoredMember(7, 3.0),))
    cluster = Profile("fog", {7: 3.0}, cluster=facts)
    live = serving.activate(FRESH, "prof_1", cluster, ALL)
    cut = ServedCircuit("circ_3", name="fog", rung=2, layers=(2,), cluster_id="prof_1")
    live = circuit_serving.activate(live, cut, ALL)
    assert planned(None, live) == Plan()
    assert planned("min", live) == Plan({A: {7: 1.5}}, 0.5)
    assert planned(0.1, live) == Plan({A: {7: 0.3}}, 0.1)
    assert planned(2.0, live) == Plan({A: {7: 4.5}}, 1.5)


# ------------------------------------------------------------------ steering in the request


def test_steering_of_the_request_replaces_the_circuit() -> None:
    own = RequestSteering((SteeredFeature(1, 2.0, SaeChoice(layer=2)),))
    assert planned(None, serve(RAIN), own=own).rung is None


def test_added_steering_keeps_the_circuit_and_its_rung() -> None:
    own = RequestSteering((SteeredFeature(1, 2.0, SaeChoice(layer=2)),), is_added=True)
    plan = planned(None, serve(RAIN), own=own)
    assert (plan.overlay, plan.rung) == ({A: {1: 10.0}, B: {5: -150.0}}, 2)
    dialed = planned(0.5, serve(RAIN), own=own)
    assert (dialed.overlay, dialed.rung) == ({A: {1: 5.0}, B: {5: -75.0}}, 2)
