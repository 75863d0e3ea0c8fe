"""What activating, dialing and ending a circuit does to the live values, and on which edits a circuit ends by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steerserve.nouns.circuits.rules import serving as circuit_serving
from steerserve.nouns.profiles.rules import Profile
from steerserve.rules.steering import activation as serving
from steerserve.rules.steering import live as steering
from steerserve.rules.steering import served
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL
from steerserve.rules.steering.served import ServedCircuit
from tests.rules.steering.owners import moved, values_of, whole
from tests.rules.steering.saes import Sae

LOW, HIGH, OTHER = Sae("sae_a", 2), Sae("sae_b", 3), Sae("sae_c", 4)
ALL = (LOW, HIGH, OTHER)
A, B, C = LOW.key, HIGH.key, OTHER.key
RAIN = whole("circ_1", "rain", 2, (2, 3), {A: {1: 8.0}, B: {5: -150.0}})
SNOW = whole("circ_2", "snow", 2, (4,), {C: {6: 1.0}})
SLICE = ServedCircuit("circ_3", name="fog", rung=2, layers=(2,), cluster_id="prof_1")
CLUSTER = Profile("fog [L2 slice]", {7: 3.0}, layer=2)

FRESH = Live(epoch=3)
BY_HAND = Live(epoch=3, enabled=True, values={A: {1: 5.0}, C: {9: 1.0}})
OFF = Live(epoch=3, values={A: {1: 5.0}})


def activate(live: Live, *circuits: ServedCircuit) -> Live:
    for circuit in circuits:
        live = circuit_serving.activate(live, circuit, ALL)
    return live


def with_slice(live: Live = FRESH) -> Live:
    live = serving.activate(live, "prof_1", CLUSTER, ALL)
    return circuit_serving.activate(live, SLICE, ALL)


# ------------------------------------------------------------------ activating


@pytest.mark.parametrize("before", [FRESH, BY_HAND, OFF])
def test_an_activation_adds_the_values_of_the_circuit_in_one_step(before: Live) -> None:
    after = activate(before, RAIN)
    assert (after.epoch, after.enabled, after.circuits) == (4, True, (RAIN,))
    assert after.by(RAIN.owner) == RAIN.authored
    assert after.by(MANUAL) == before.by(MANUAL)
    assert after.values_at(A)[1] == before.values_at(A).get(1, 0.0) + 8.0


def test_an_activation_at_an_intensity_scales_and_clamps_each_value() -> None:
    after = activate(FRESH, replace(RAIN, intensity=1.5))
    assert after.by(RAIN.owner) == {A: {1: 12.0}, B: {5: -200.0}}


def test_circuits_on_disjoint_layers_serve_together() -> None:
    after = activate(FRESH, RAIN, SNOW)
    assert (after.epoch, after.circuits) == (5, (RAIN, SNOW))
    assert after.values == {**RAIN.authored, **SNOW.authored}
    assert served.composed(after.circuits) == frozenset()


def test_circuits_on_one_layer_are_added_and_the_layer_is_composed() -> None:
    beside = whole("circ_2", "snow", 2, (3,), {B: {6: 1.0}})
    after = activate(FRESH, RAIN, beside)
    assert after.values_at(B) == {5: -150.0, 6: 1.0}
    assert served.composed(after.circuits) == {3}
    left = steering.end(after, "circ_1")
    assert served.composed(left.circuits) == frozenset()


def test_a_second_activation_of_the_same_circuit_is_no_step() -> None:
    once = activate(FRESH, RAIN, SNOW)
    assert activate(once, RAIN) is once


def test_an_activation_on_other_saes_replaces_the_values_of_the_first_one() -> None:
    elsewhere = replace(RAIN, layers=(4,), parts=moved(RAIN, {C: {1: 2.0}}))
    after = activate(FRESH, RAIN, elsewhere)
    assert (after.values, after.circuits) == ({C: {1: 2.0}}, (elsewhere,))


def test_an_activation_switches_on_steering_that_was_switched_off() -> None:
    off = steering.disable(activate(FRESH, RAIN))
    assert activate(off, RAIN).enabled


# ------------------------------------------------------------------ beside a profile


@pytest.mark.parametrize(("layer", "stays"), [(2, False), (3, False), (4, True)])
def test_a_profile_on_a_layer_of_the_circuit_is_released(layer: int, stays: bool) -> None:
    before = serving.activate(FRESH, "prof_1", Profile("calm", {7: 3.0}, layer=layer), ALL)
    after = activate(before, RAIN)
    assert (after.active is not None) is stays
    assert bool(after.by(MANUAL)) is stays
    assert after.by(RAIN.owner) == RAIN.authored
    assert after.epoch == before.epoch + 1


def test_values_set_by_hand_at_other_saes_outlive_the_profile() -> None:
    before = serving.activate(FRESH, "prof_1", CLUSTER, ALL)
    before = steering.set_values(before, C, 10, {9: 1.0})
    assert activate(before, RAIN).by(MANUAL) == {C: {9: 1.0}}


def test_a_profile_that_was_not_applied_is_released_too() -> None:
    before = serving.adopt(BY_HAND, "prof_1", CLUSTER)
    after = activate(before, RAIN)
    assert after.active is None
    assert after.by(MANUAL) == BY_HAND.by(MANUAL)


def test_the_cluster_of_another_slice_stays_where_the_overlap_is_allowed() -> None:
    after = activate(with_slice(), RAIN)
    assert after.circuits == (SLICE, RAIN)
    assert after.active is not None


def test_a_circuit_that_serves_whole_replaces_its_own_slice() -> None:
    fog = whole("circ_3", "fog", 2, (2, 3), RAIN.authored)
    after = activate(with_slice(), fog)
    assert (after.circuits, after.active, after.by(MANUAL)) == ((fog,), None, {})


def test_activating_a_profile_ends_every_circuit_in_the_same_step() -> None:
    before = activate(FRESH, RAIN, SNOW)
    after = serving.activate(before, "prof_1", CLUSTER, ALL)
    assert (after.circuits, after.epoch) == ((), before.epoch + 1)
    assert after.values == {A: {7: 3.0}}


def test_activating_a_profile_without_applying_it_leaves_circuits_as_they_are() -> None:
    before = activate(FRESH, RAIN)
    assert serving.adopt(before, "prof_1", CLUSTER).circuits == (RAIN,)


# ------------------------------------------------------------------ dialing


def test_a_new_intensity_is_absolute() -> None:
    # at 2 a value is clamped, and at 0 all values are 0: neither may be the base of the next intensity
    live = activate(FRESH, RAIN)
    for intensity in (2.0, 0.0, 0.5):
        live = steering.redial(live, "circ_1", intensity)
    assert live.by(RAIN.owner) == {A: {1: 4.0}, B: {5: -75.0}}
    assert live.circuits[0].intensity == 0.5
    assert live.epoch == 7


def test_a_new_intensity_leaves_the_switch_as_it_is() -> None:
    off = steering.disable(activate(FRESH, RAIN))
    after = steering.redial(off, "circ_1", 0.5)
    assert (after.enabled, after.values_at(A)) == (False, {1: 4.0})


@pytest.mark.parametrize("circuit_id", ["circ_3", "circ_9"])
def test_a_slice_and_an_unknown_circuit_take_no_intensity(circuit_id: str) -> None:
    live = with_slice()
    assert steering.redial(live, circuit_id, 0.5) is live


# ------------------------------------------------------------------ ending


def test_ending_a_circuit_removes_only_its_own_values() -> None:
    before = activate(BY_HAND, RAIN, SNOW)
    after = steering.end(before, "circ_1")
    assert (after.circuits, after.epoch) == ((SNOW,), before.epoch + 1)
    assert values_of(after) == {MANUAL: BY_HAND.values, SNOW.owner: SNOW.authored}
    assert steering.end(after, "circ_1") is after


def test_ending_the_last_values_switches_steering_off() -> None:
    assert not steering.end(activate(FRESH, RAIN), "circ_1").enabled


def test_ending_a_slice_ends_its_cluster() -> None:
    before = activate(with_slice(), SNOW)
    after = steering.end(before, "circ_3")
    assert (after.circuits, after.active, after.by(MANUAL)) == ((SNOW,), None, {})
    assert after.epoch == before.epoch + 1


@pytest.mark.parametrize(
    "edit",
    [
        steering.clear,
        lambda live: steering.clear_one(live, A),
        lambda live: steering.leave(live, B),
        lambda live: steering.remove(live, A, 10, 1),
    ],
    ids=["clear", "clear_one", "detach", "remove the last feature of a layer"],
)
def test_a_circuit_that_loses_a_layer_ends_whole(edit: Any) -> None:
    after = edit(activate(FRESH, RAIN, SNOW))
    assert RAIN not in after.circuits
    assert not after.by(RAIN.owner)
    assert after.circuits == ((SNOW,) if after.values else ())


@pytest.mark.parametrize(
    "edit",
    [
        steering.clear,
        lambda live: steering.clear_one(live, A),
        lambda live: steering.leave(live, A),
        lambda live: steering.end(live, "prof_1", clears=False),
        lambda live: serving.activate(live, "prof_2", CLUSTER, ALL),
    ],
    ids=["clear", "clear_one", "detach", "deactivate the cluster", "activate another profile"],
)
def test_a_slice_ends_with_its_cluster(edit: Any) -> None:
    assert SLICE not in edit(with_slice()).circuits


def test_a_member_removed_by_hand_leaves_a_circuit_that_is_not_whole() -> None:
    pair = replace(SNOW, parts=moved(SNOW, {C: {6: 1.0, 7: 2.0}}))
    after = steering.remove(activate(FRESH, pair), C, 10, 7)
    assert after.circuits == (pair,)
    assert not pair.is_whole(after.by(pair.owner))
    # a new intensity serves every member again
    again = steering.redial(after, "circ_2", 0.5)
    assert pair.is_whole(again.by(pair.owner))


@pytest.mark.parametrize(
    ("live", "is_steering"),
    [
        (activate(FRESH, RAIN), True),
        (steering.disable(activate(FRESH, RAIN)), False),
        (steering.redial(activate(FRESH, RAIN), "circ_1", 0.0), False),
        (activate(FRESH, replace(RAIN, parts=moved(RAIN, {A: {1: 0.0}, B: {5: 0.0}}))), False),
    ],
)
def test_a_circuit_steers_while_steering_is_on_and_a_value_is_not_0(
    live: Live, is_steering: bool
) -> None:
    assert circuit_serving.is_steering(live, live.circuits[0]) is is_steering
