"""Live steering: edits, bounds, auto-enable, the epoch, and what a row really gets."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.rules.steering import live as steering
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL, Placed
from steerserve.rules.steering.served import ServedProfile
from tests.refusals import refusal_of
from tests.rules.steering.owners import effective, owned, values_of

KEY = "sae_a@1"
OTHER = "sae_b@2"
WIDTH = 10
STEERED = Live(epoch=7, enabled=True, values={KEY: {1: 5.0, 2: -3.0}})
OFF = Live(epoch=7, enabled=False, values={KEY: {1: 5.0, 2: -3.0}})
ONE = Live(epoch=7, enabled=True, values={KEY: {1: 5.0}})
TWO_SAES = Live(epoch=7, enabled=True, values={KEY: {1: 5.0}, OTHER: {3: 1.0}})

Edit = Callable[[Live], Live]


def put(values: dict[int, float], key: str = KEY) -> Edit:
    return lambda live: steering.set_values(live, key, WIDTH, values)


def drop(index: int) -> Edit:
    return lambda live: steering.remove(live, KEY, WIDTH, index)


def wipe(live: Live) -> Live:
    return steering.leave(live, KEY)


def wipe_one(live: Live) -> Live:
    return steering.clear_one(live, KEY)


ZERO = Live(epoch=7, enabled=True, values={KEY: {1: 5.0, 4: 0.0}})


def added(live: Live) -> dict[tuple[str, int], float]:
    """What is added at KEY and at OTHER to a request that follows the live values."""
    both = [(key, effective(live, None, 0, key)) for key in (KEY, OTHER)]
    return {(key, index): value for key, there in both for index, value in there.items()}


CHANGES = [
    ("the first value enables", Live(), put({1: 5.0}), True, {KEY: {1: 5.0}}),
    ("a value merges", STEERED, put({4: 1.0}), True, {KEY: {1: 5.0, 2: -3.0, 4: 1.0}}),
    ("a value replaces its own", STEERED, put({1: 9.0}), True, {KEY: {1: 9.0, 2: -3.0}}),
    ("any value enables", OFF, put({4: 1.0}), True, {KEY: {1: 5.0, 2: -3.0, 4: 1.0}}),
    ("the same value enables", OFF, put({1: 5.0}), True, OFF.values),
    ("both bounds belong to it", Live(), put({0: -200.0, 9: 200.0}), True, None),
    ("another SAE is left alone", ONE, put({3: 1.0}, OTHER), True, TWO_SAES.values),
    ("enable applies what is set", OFF, steering.enable, True, OFF.values),
    ("enable without values", Live(), steering.enable, True, {}),
    ("disable keeps the values", STEERED, steering.disable, False, STEERED.values),
    ("removing one of two", STEERED, drop(1), True, {KEY: {2: -3.0}}),
    ("removing while disabled", OFF, drop(1), False, {KEY: {2: -3.0}}),
    ("removing the last disables", ONE, drop(1), False, {}),
    ("an SAE that leaves takes its values", STEERED, wipe, True, {}),
    ("an SAE that leaves while off", OFF, wipe, False, {}),
    ("an SAE that leaves leaves the other's values", TWO_SAES, wipe, True, {OTHER: {3: 1.0}}),
    ("clearing one SAE leaves the other on", TWO_SAES, wipe_one, True, {OTHER: {3: 1.0}}),
    ("clearing the only SAE with values disables", STEERED, wipe_one, False, {}),
    ("clear disables", STEERED, steering.clear, False, {}),
    ("clear takes every SAE", TWO_SAES, steering.clear, False, {}),
    ("clear without values disables", Live(enabled=True), steering.clear, False, {}),
    ("a value of 0", STEERED, put({4: 0.0}), True, {KEY: {1: 5.0, 2: -3.0, 4: 0.0}}),
    ("the first value of 0", Live(), put({4: 0.0}), True, {KEY: {4: 0.0}}),
    ("removing a value of 0", ZERO, drop(4), True, {KEY: {1: 5.0}}),
]
ADD_NOTHING_ELSE = {
    "enable without values",
    "removing while disabled",
    "an SAE that leaves while off",
    "clear without values disables",
    "a value of 0",
    "the first value of 0",
    "removing a value of 0",
}


@pytest.mark.parametrize(
    ("name", "before", "edit", "enabled", "values"), CHANGES, ids=[c[0] for c in CHANGES]
)
def test_a_change_has_its_effect_and_a_new_epoch_if_it_adds_something_else(
    name: str,
    before: Live,
    edit: Edit,
    enabled: bool,
    values: dict[str, dict[int, float]] | None,
) -> None:
    after = edit(before)
    assert after.enabled is enabled
    assert (added(after) != added(before)) is (name not in ADD_NOTHING_ELSE)
    assert after.epoch - before.epoch == (name not in ADD_NOTHING_ELSE)
    if values is not None:
        assert after.values == values


NO_CHANGES = [
    ("the same value again", STEERED, put({1: 5.0})),
    ("an empty batch", OFF, put({})),
    ("enable what is enabled", STEERED, steering.enable),
    ("disable what is disabled", OFF, steering.disable),
    ("remove what is not set", STEERED, drop(9)),
    ("clear what is empty and off", Live(epoch=3), steering.clear),
    ("an SAE without values leaves", Live(epoch=3, enabled=True), wipe),
    ("clear an SAE without values", TWO_SAES, lambda live: steering.clear_one(live, "sae_c@3")),
]


@pytest.mark.parametrize(
    ("before", "edit"), [c[1:] for c in NO_CHANGES], ids=[c[0] for c in NO_CHANGES]
)
def test_an_edit_that_changes_nothing_is_the_same_value_with_the_same_epoch(
    before: Live, edit: Edit
) -> None:
    assert edit(before) is before


@pytest.mark.parametrize("bad", [-1, WIDTH, WIDTH + 1, 2**63])
def test_bad_index_in_batch_changes_nothing(bad: int) -> None:
    for batch in ({3: 1.0, bad: 1.0}, {bad: 1.0, 3: 1.0}):
        refusal = refusal_of(steering.set_values, STEERED, KEY, WIDTH, batch)
        assert refusal.code == "INVALID_FEATURE_INDEX"
        assert refusal.details == {"feature_idx": bad, "d_sae": WIDTH}
    assert STEERED.values == {KEY: {1: 5.0, 2: -3.0}}


@pytest.mark.parametrize("bad", [-200.1, 200.00001, 1e308, math.inf, -math.inf, math.nan])
def test_a_value_outside_its_bounds_is_rejected_never_clamped(bad: float) -> None:
    before = {key: dict(values) for key, values in STEERED.values.items()}
    refusal = refusal_of(steering.set_values, STEERED, KEY, WIDTH, {3: 1.0, 4: bad})
    assert refusal.code == "VALIDATION_ERROR"
    assert STEERED.values == before


def test_a_refused_value_can_be_shown_as_json() -> None:
    refusal = refusal_of(steering.check_value, math.nan)
    assert refusal.details["errors"][0]["input"] == "nan"


@pytest.mark.parametrize("bad", [-1, WIDTH])
def test_removing_an_index_outside_the_sae_is_refused(bad: int) -> None:
    refusal = refusal_of(steering.remove, STEERED, KEY, WIDTH, bad)
    assert refusal.code == "INVALID_FEATURE_INDEX"


# ------------------------------------------------------------------ who set what

CIRCUIT = "circuit:circ_1"
BOTH_OWNERS = Live(
    epoch=7,
    enabled=True,
    owned=owned(
        {MANUAL: {KEY: {1: 5.0, 2: -3.0}}, CIRCUIT: {KEY: {1: 2.0, 4: 1.0}, OTHER: {3: 7.0}}}
    ),
)


def test_the_values_are_the_sum_over_the_owners() -> None:
    assert BOTH_OWNERS.values == {KEY: {1: 7.0, 2: -3.0, 4: 1.0}, OTHER: {3: 7.0}}
    assert BOTH_OWNERS.values_at(KEY) == {1: 7.0, 2: -3.0, 4: 1.0}
    assert BOTH_OWNERS.values_at("sae_c@0") == {}


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ((150.0, 100.0), 200.0),
        ((-150.0, -100.0), -200.0),
        ((150.0, 100.0, -100.0), 150.0),
        ((200.0, -200.0), 0.0),
    ],
)
def test_a_sum_is_held_within_the_bounds_and_the_parts_are_kept(
    parts: tuple[float, ...], total: float
) -> None:
    live = Live(owned={f"owner {i}": Placed({KEY: {1: part}}) for i, part in enumerate(parts)})
    assert live.values_at(KEY) == {1: total}
    assert [live.by(owner)[KEY][1] for owner in live.owned] == list(parts)


def test_values_given_without_an_owner_are_the_operators_own() -> None:
    assert STEERED.by(MANUAL) == STEERED.values
    assert STEERED.by(CIRCUIT) == {}


CIRCUITS = BOTH_OWNERS.by(CIRCUIT)
BY_OWNER = [
    (
        "setting writes into one owner's own",
        put({1: 9.0}),
        {MANUAL: {KEY: {1: 9.0, 2: -3.0}}, CIRCUIT: CIRCUITS},
    ),
    (
        "removing takes the feature from every owner",
        drop(1),
        {MANUAL: {KEY: {2: -3.0}}, CIRCUIT: {KEY: {4: 1.0}, OTHER: {3: 7.0}}},
    ),
    ("an SAE that leaves is taken from every owner", wipe, {CIRCUIT: {OTHER: {3: 7.0}}}),
    (
        "replacing leaves the other owners alone",
        lambda live: steering.give(live, MANUAL, Placed({OTHER: {0: 1.0}})),
        {MANUAL: {OTHER: {0: 1.0}}, CIRCUIT: CIRCUITS},
    ),
    (
        "an owner goes with all it set",
        lambda live: steering.give(live, CIRCUIT, Placed()),
        {MANUAL: {KEY: {1: 5.0, 2: -3.0}}},
    ),
]


@pytest.mark.parametrize(
    ("edit", "expected"), [c[1:] for c in BY_OWNER], ids=[c[0] for c in BY_OWNER]
)
def test_an_edit_knows_whose_values_it_touches(
    edit: Edit, expected: dict[str, dict[str, dict[int, float]]]
) -> None:
    after = edit(BOTH_OWNERS)
    assert values_of(after) == expected
    assert (after.enabled, after.epoch) == (True, 8)


def test_clearing_takes_all_from_every_owner_and_disables() -> None:
    after = steering.clear(BOTH_OWNERS)
    assert (after.owned, after.values, after.enabled, after.epoch) == ({}, {}, False, 8)


REPLACED = [
    ("values enable", OFF, {KEY: {3: 1.0}}, True, {KEY: {3: 1.0}}),
    ("the same values enable", OFF, dict(OFF.values), True, OFF.values),
    ("several SAEs at once", ONE, {KEY: {3: 1.0}, OTHER: {3: 1.0}}, True, None),
    ("none left disables", STEERED, {}, False, {}),
    ("an empty map is none", STEERED, {KEY: {}}, False, {}),
    ("none where none was disables", Live(epoch=7, enabled=True), {}, False, {}),
]


@pytest.mark.parametrize(
    ("before", "values", "enabled", "expected"),
    [c[1:] for c in REPLACED],
    ids=[c[0] for c in REPLACED],
)
def test_a_replacement_is_one_step_of_the_epoch(
    before: Live,
    values: dict[str, dict[int, float]],
    enabled: bool,
    expected: dict[str, dict[int, float]] | None,
) -> None:
    after = steering.give(before, MANUAL, Placed(values))
    assert after.epoch == before.epoch + (added(after) != added(before))
    assert after.enabled == enabled
    assert after.values == (values if expected is None else expected)


def test_taking_an_owners_values_never_turns_on_what_the_operator_turned_off() -> None:
    off = steering.disable(BOTH_OWNERS)
    assert not steering.give(off, MANUAL, Placed()).enabled
    assert not steering.give(off, CIRCUIT, Placed()).enabled


@pytest.mark.parametrize(
    "edit",
    [
        lambda live: steering.give(live, MANUAL, live.owned[MANUAL]),
        lambda live: steering.give(live, "circuit:circ_2", Placed()),
        lambda live: steering.end(live, "circ_2"),
        lambda live: steering.redial(live, "circ_2", 0.5),
    ],
)
def test_an_owners_edit_that_changes_nothing_is_the_same_value(edit: Edit) -> None:
    assert edit(BOTH_OWNERS) is BOTH_OWNERS


# ------------------------------------------------------------------ the active profile

PROFILE = ServedProfile("prof_1", owned({MANUAL: {KEY: {1: 10.0}}}), 0.5, authored={1: 10.0})
ACTIVE = Live(epoch=7, enabled=True, owned=owned({MANUAL: {KEY: {1: 5.0}}}), served=(PROFILE,))
ENDINGS = [
    ("a value set by hand", put({2: 1.0}), True),
    ("its value changed by hand", put({1: 1.0}), True),
    ("disabled", steering.disable, True),
    ("another SAE leaves", lambda live: steering.leave(live, OTHER), True),
    ("its last value removed", drop(1), False),
    ("its SAE leaves", wipe, False),
    ("all cleared", steering.clear, False),
    ("its owner's values gone", lambda live: steering.give(live, MANUAL, Placed()), False),
    ("moved elsewhere", lambda live: steering.give(live, MANUAL, Placed({OTHER: {1: 1.0}})), False),
]


@pytest.mark.parametrize(("edit", "stays"), [c[1:] for c in ENDINGS], ids=[c[0] for c in ENDINGS])
def test_a_profile_is_active_while_values_stand_at_its_sae(edit: Edit, stays: bool) -> None:
    assert edit(ACTIVE).active == (PROFILE if stays else None)


def test_a_profile_that_applied_nothing_outlives_every_edit() -> None:
    bare = steering.serve(ACTIVE, ServedProfile("prof_2"), ACTIVE.owned)
    for edit in (put({2: 1.0}), wipe, steering.clear, steering.disable):
        after = edit(bare).active
        assert after is not None
        assert after.id == "prof_2"


def test_serving_a_profile_is_one_step() -> None:
    after = steering.serve(ONE, PROFILE, {})
    assert (after.epoch, after.values, after.active) == (7, {KEY: {1: 5.0}}, PROFILE)
    after = steering.serve(TWO_SAES, PROFILE, {})
    assert (after.epoch, after.values, after.active) == (8, {KEY: {1: 5.0}}, PROFILE)
    assert steering.serve(ACTIVE, PROFILE, ACTIVE.owned) is ACTIVE


# ------------------------------------------------------------------ what a row gets

EFFECTIVE = [
    ("no overlay: the live values", STEERED, None, 7, {1: 5.0, 2: -3.0}),
    ("no overlay and off: nothing", OFF, None, 7, {}),
    ("the overlay replaces the live values", STEERED, {KEY: {4: 2.0}}, 7, {4: 2.0}),
    ("the overlay applies while off", OFF, {KEY: {4: 2.0}}, 7, {4: 2.0}),
    ("an overlay without this SAE gives nothing", STEERED, {OTHER: {4: 2.0}}, 7, {}),
    ("an empty overlay is no steering", STEERED, {}, 7, {}),
    ("the epoch moved on: the live values win", STEERED, {KEY: {4: 2.0}}, 6, {1: 5.0, 2: -3.0}),
    ("the epoch moved on to off: nothing", OFF, {KEY: {4: 2.0}}, 6, {}),
]


@pytest.mark.parametrize(
    ("live", "overlay", "planned_on", "expected"),
    [c[1:] for c in EFFECTIVE],
    ids=[c[0] for c in EFFECTIVE],
)
def test_effective_steering_of_a_row(
    live: Live,
    overlay: dict[str, dict[int, float]] | None,
    planned_on: int,
    expected: dict[int, float],
) -> None:
    assert effective(live, overlay, planned_on, KEY) == expected


def test_values_of_zero_are_left_out_of_what_a_row_gets() -> None:
    live = Live(epoch=1, enabled=True, values={KEY: {1: 0.0, 2: -0.0, 3: 1.0}})
    assert effective(live, None, 0, KEY) == {3: 1.0}
    assert effective(live, {KEY: {5: 0.0, 6: 2.0}}, 1, KEY) == {6: 2.0}


EDITS = st.one_of(
    st.dictionaries(st.integers(0, WIDTH - 1), st.floats(-200, 200), max_size=3).map(put),
    st.integers(0, WIDTH - 1).map(drop),
    st.sampled_from([steering.enable, steering.disable, steering.clear, wipe]),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(EDITS, max_size=12))
def test_the_epoch_grows_by_one_exactly_when_what_is_added_changes(edits: list[Edit]) -> None:
    live = Live()
    for edit in edits:
        after = edit(live)
        assert after.epoch == live.epoch + (added(after) != added(live))
        live = after


@settings(deadline=None, derandomize=True)
@given(st.lists(EDITS, max_size=12))
def test_no_edit_writes_into_an_earlier_value(edits: list[Edit]) -> None:
    seen: list[tuple[Live, str]] = []
    live = Live()
    for edit in edits:
        seen.append((live, repr(live)))
        live = edit(live)
    assert all(repr(value) == shown for value, shown in seen)


def test_a_key_names_the_sae_and_the_layer() -> None:
    assert steering.key_of("sae_a", 1) == KEY
