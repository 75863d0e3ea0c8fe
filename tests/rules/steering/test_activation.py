"""What serves: what activating and ending a profile does to the live values, and which steps of the epoch that takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steerserve.nouns.circuits.rules import serving as circuit_serving
from steerserve.nouns.profiles.rules import Profile, ProfileEdits
from steerserve.rules.steering import activation as serving
from steerserve.rules.steering import interventions
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import INTERVENTIONS, MANUAL, Placed
from tests.refusals import refusal_of
from tests.rules.steering.owners import owned, values_of, whole
from tests.rules.steering.saes import Sae

FIRST, SECOND = Sae("sae_a", 1), Sae("sae_b", 2, 20)
BOTH = (FIRST, SECOND)
A, B = FIRST.key, SECOND.key
ID = "prof_1"

CALM = Profile("calm", {4: 2.0, 9: -1.0})
STRONG = Profile("strong", {4: 150.0, 9: -1.0}, intensity=2.0)
EMPTY = Profile("empty", {})

FRESH = Live(epoch=3)
STEERED = Live(epoch=3, enabled=True, values={A: {1: 5.0}, B: {15: 1.0}})
OFF = Live(epoch=3, enabled=False, values={A: {1: 5.0}})


# ------------------------------------------------------------------ activating


@pytest.mark.parametrize("before", [FRESH, STEERED, OFF])
@pytest.mark.parametrize(
    ("made", "values"),
    [
        (CALM, {A: {4: 2.0, 9: -1.0}}),
        (STRONG, {A: {4: 200.0, 9: -2.0}}),
        (Profile("still", {4: 2.0}, 0.0), {A: {4: 0.0}}),
        (Profile("second", {15: 2.0}, sae_id="sae_b"), {B: {15: 2.0}}),
        (Profile("layer", {15: 2.0}, layer=2), {B: {15: 2.0}}),
    ],
)
def test_an_activation_replaces_all_values_and_enables_in_one_step(
    before: Live, made: Profile, values: dict[str, dict[int, float]]
) -> None:
    after = serving.activate(before, ID, made, BOTH)
    assert (after.values, after.enabled) == (values, True)
    adds = any(value for features in values.values() for value in features.values())
    assert after.epoch == before.epoch + (adds or before is STEERED)
    assert after.by(MANUAL) == values
    assert after.active is not None
    assert after.active.id == ID


@pytest.mark.parametrize("before", [FRESH, STEERED, OFF, Live(epoch=3, enabled=True)])
@pytest.mark.parametrize("attached", [(), BOTH])
def test_activating_an_empty_profile_clears_and_needs_no_sae(
    before: Live, attached: tuple[Sae, ...]
) -> None:
    after = serving.activate(before, ID, EMPTY, attached)
    assert (after.values, after.enabled) == ({}, False)
    assert after.epoch == before.epoch + (before is STEERED)
    assert after.active is not None
    assert after.active.id == ID


@pytest.mark.parametrize(
    ("made", "attached", "code", "details"),
    [
        (CALM, (), "SAE_NOT_ATTACHED", {}),
        (
            Profile("p", {4: 1.0}, sae_id="sae_z"),
            BOTH,
            "PROFILE_INCOMPATIBLE",
            {
                "sae_id": "sae_z",
                "layer": None,
                "attached": [{"sae_id": "sae_a", "layer": 1}, {"sae_id": "sae_b", "layer": 2}],
            },
        ),
        (Profile("p", {4: 1.0}, sae_id="sae_a", layer=2), BOTH, "PROFILE_INCOMPATIBLE", None),
        (
            Profile("p", {0: 1.0, 10: 1.0, 9: 1.0}),
            BOTH,
            "INVALID_FEATURE_INDEX",
            {"feature_idx": 10, "d_sae": 10},
        ),
        (Profile("p", {20: 1.0}, layer=2), BOTH, "INVALID_FEATURE_INDEX", None),
    ],
)
def test_what_cannot_be_applied_is_refused_whole(
    made: Profile, attached: tuple[Sae, ...], code: str, details: dict[str, Any] | None
) -> None:
    refusal = refusal_of(serving.activate, STEERED, ID, made, attached)
    assert (refusal.code, refusal.row.api) == (code, 400)
    if details is not None:
        assert refusal.details == details


def test_activating_again_what_nobody_changed_is_no_step() -> None:
    once = serving.activate(STEERED, ID, CALM, BOTH)
    assert serving.activate(once, ID, CALM, BOTH) is once
    changed = steering.set_values(once, A, 10, {0: 1.0})
    assert serving.activate(changed, ID, CALM, BOTH).epoch == changed.epoch + 1
    off = steering.disable(once)
    assert serving.activate(off, ID, CALM, BOTH).enabled is True


def test_another_profile_takes_the_place_of_the_active_one() -> None:
    once = serving.activate(STEERED, ID, CALM, BOTH)
    after = serving.activate(once, "prof_2", CALM, BOTH)
    assert after.epoch == once.epoch  # the same values are added
    assert after.active is not None
    assert after.active.id == "prof_2"


def test_an_activation_takes_the_values_of_every_owner_in_the_same_step() -> None:
    circuits = {A: {4: 1.0}, B: {3: 7.0}}
    live = Live(enabled=True, owned=owned({MANUAL: {A: {1: 5.0}}, "circuit:1": circuits}))
    active = serving.activate(live, ID, CALM, BOTH)
    assert values_of(active) == {MANUAL: {A: {4: 2.0, 9: -1.0}}}
    assert active.epoch == live.epoch + 1


def test_a_deactivation_and_another_intensity_leave_the_values_of_other_owners() -> None:
    circuits = {B: {3: 7.0}}
    active = serving.activate(FRESH, ID, CALM, BOTH)
    live = replace(active, owned={**active.owned, **owned({"circuit:1": circuits})})
    redialed = steering.redial(live, ID, 2.0)
    assert values_of(redialed) == {MANUAL: {A: {4: 4.0, 9: -2.0}}, "circuit:1": circuits}
    assert redialed.epoch == live.epoch + 1
    after = steering.end(redialed, ID)
    assert (after.values, after.enabled) == (circuits, True)


def test_another_intensity_does_not_switch_steering_on() -> None:
    off = steering.disable(serving.activate(FRESH, ID, CALM, BOTH))
    redialed = steering.redial(off, ID, 2.0)
    assert (redialed.enabled, redialed.by(MANUAL)) == (False, {A: {4: 4.0, 9: -2.0}})


def test_another_intensity_of_a_profile_that_does_not_serve_changes_nothing() -> None:
    adopted = serving.adopt(STEERED, ID, CALM)
    other = serving.activate(FRESH, "prof_2", CALM, BOTH)
    for live in (FRESH, adopted, other):
        assert steering.redial(live, ID, 1.0) is live


def test_adopting_a_profile_changes_no_steering() -> None:
    after = serving.adopt(STEERED, ID, CALM)
    assert (after.values, after.enabled, after.epoch) == (STEERED.values, True, 3)
    assert after.active is not None


def test_a_changed_profile_changes_what_is_dialed_and_is_no_step() -> None:
    active = serving.activate(FRESH, ID, CALM, BOTH)
    new = Profile("calm", {3: 7.0}, 0.5, "sae_b")
    after = serving.amend(active, ID, new)
    assert (after.values, after.enabled, after.epoch) == (active.values, True, active.epoch)
    assert serving.dialed(active, BOTH) == {A: {4: 2.0, 9: -1.0}}
    assert serving.dialed(after, BOTH) == {B: {3: 7.0}}
    assert steering.end(after, ID).values == {}
    assert serving.amend(after, ID, new) is after
    assert serving.amend(active, "prof_2", new) is active
    assert serving.amend(STEERED, ID, new) is STEERED


def test_values_set_by_hand_at_other_saes_are_told_as_cleared() -> None:
    after = serving.activate(STEERED, ID, CALM, BOTH)
    assert serving.cleared(STEERED, after) == {B: [15]}
    second = Profile("second", {15: 2.0}, sae_id="sae_b")
    moved = serving.activate(after, "prof_2", second, BOTH)
    assert serving.cleared(after, moved) == {}
    edited = steering.set_values(after, A, 10, {0: 1.0})
    moved = serving.activate(edited, "prof_2", second, BOTH)
    assert serving.cleared(edited, moved) == {A: [0, 4, 9]}


# ------------------------------------------------------------------ what the dial scales


ADOPTED = serving.adopt(FRESH, ID, CALM)
RAIN = whole("circ_1", "rain", 2, (2,), {B: {15: 1.0}})
RAINING = circuit_serving.activate(steering.disable(ADOPTED), RAIN, BOTH)
DIALED = [
    ("nothing was ever switched on", ADOPTED, True),
    ("other values steer", serving.adopt(STEERED, ID, CALM), True),
    ("an operator had switched off before", serving.adopt(OFF, ID, CALM), False),
    ("an operator switches off", steering.disable(ADOPTED), False),
    ("an operator clears", steering.clear(ADOPTED), False),
    ("an operator switches on again", steering.enable(steering.disable(ADOPTED)), True),
    ("a value is set", steering.set_values(steering.disable(ADOPTED), A, 10, {1: 1.0}), True),
    ("a circuit switches on", RAINING, True),
    ("an SAE leaves after a circuit switched on", steering.leave(RAINING, A), True),
    ("a circuit that switched on has ended", steering.end(RAINING, RAIN.id), True),
    ("the last SAE is detached", steering.switch_off(ADOPTED), True),
    ("all values of an SAE leave", steering.leave(serving.adopt(STEERED, ID, CALM), A), True),
]


@pytest.mark.parametrize(("live", "is_dialed"), [c[1:] for c in DIALED], ids=[c[0] for c in DIALED])
def test_a_profile_that_was_not_applied_is_dialed_unless_an_operator_switched_off(
    live: Live, is_dialed: bool
) -> None:
    assert serving.dialed(live, BOTH) == ({A: {4: 2.0, 9: -1.0}} if is_dialed else {})


@pytest.mark.parametrize(
    "unfit",
    [
        Profile("p", {4: 1.0}, sae_id="sae_z"),
        Profile("p", {10: 1.0}),
        Profile("p", {}),
    ],
)
def test_an_active_profile_that_fits_no_attached_sae_is_not_dialed(unfit: Profile) -> None:
    assert not any(serving.dialed(serving.adopt(STEERED, ID, unfit), BOTH).values())
    applied = serving.activate(STEERED, ID, CALM, BOTH)
    assert not any(serving.dialed(serving.amend(applied, ID, unfit), BOTH).values())


def test_the_dial_stays_at_the_sae_that_got_the_values() -> None:
    active = serving.activate(FRESH, ID, CALM, (SECOND,))
    assert serving.dialed(active, BOTH) == {B: {4: 2.0, 9: -1.0}}


# ------------------------------------------------------------------ deactivating


def test_deactivating_clears_the_values_in_one_step_or_keeps_them() -> None:
    active = serving.activate(STEERED, ID, CALM, BOTH)
    cleared = steering.end(active, ID)
    assert (cleared.values, cleared.enabled, cleared.active) == ({}, False, None)
    assert cleared.epoch == active.epoch + 1
    kept = steering.end(active, ID, clears=False)
    assert (kept.values, kept.enabled, kept.active) == (active.values, True, None)
    assert kept.epoch == active.epoch


@pytest.mark.parametrize("clears", [True, False])
def test_deactivating_what_is_not_active_changes_nothing(clears: bool) -> None:
    active = serving.activate(STEERED, ID, CALM, BOTH)
    for live in (active, STEERED):
        assert steering.end(live, "prof_2", clears=clears) is live


def test_a_profile_whose_values_an_operator_deleted_takes_none_of_his_later_ones_along() -> None:
    live = serving.activate(FRESH, ID, CALM, BOTH)
    live = steering.set_values(steering.clear(live), A, 10, {1: 1.0})
    assert steering.end(live, ID) is live


def test_a_profile_that_loses_its_last_value_keeps_its_edits_until_they_are_gone() -> None:
    sent = [{"op": "set", "feature": {"index": 3, "sae_id": "sae_a"}, "value": 1}]
    edits = ProfileEdits(interventions.parse({"edits": sent}, ""), sent)
    made = Profile("one", {4: 2.0}, edits=edits)
    live = serving.activate(FRESH, ID, made, (FIRST,))
    assert (len(live.edits), live.is_intervened_by_profile) == (1, True)
    after = steering.remove(live, A, 10, 4)
    assert (after.active is not None, len(after.edits), after.enabled) == (True, 1, True)
    gone = steering.give(after, INTERVENTIONS, Placed())
    assert (gone.active, gone.edits, gone.enabled) == (None, (), False)


# ------------------------------------------------------------------ saving what steers


@pytest.mark.parametrize(
    ("values", "at"), [({}, FIRST), ({A: {1: 5.0}}, FIRST), ({B: {1: 0.0}}, SECOND)]
)
def test_the_live_values_are_those_of_the_sae_that_has_some(
    values: dict[str, dict[int, float]], at: Sae
) -> None:
    assert serving.steered(Live(values=values), BOTH) is at


def test_the_live_values_of_several_saes_fit_no_profile() -> None:
    assert refusal_of(serving.steered, STEERED, ()).code == "SAE_NOT_ATTACHED"
    refusal = refusal_of(serving.steered, STEERED, BOTH)
    assert (refusal.code, refusal.row.api) == ("PROFILE_INCOMPATIBLE", 400)
    assert "sae_a@1, sae_b@2" in refusal.message
