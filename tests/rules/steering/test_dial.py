"""The dial of one request: what it may be, what it is applied to, in which order, and what is echoed."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.rules.steering import dial
from steerserve.rules.steering import live as steering
from steerserve.rules.steering.activation import activate, adopt
from steerserve.rules.steering.dial import Intensity, Plan, Profile, Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import MANUAL, Values
from tests.refusals import refusal_of
from tests.rules.steering.owners import effective, owned
from tests.rules.steering.saes import Sae

FIRST = Sae("sae_a", 1)
SECOND = Sae("sae_b", 2, 20)
THIRD = Sae("sae_b", 3, 20)
A, B, C = FIRST.key, SECOND.key, THIRD.key

LIVE = Live(epoch=7, enabled=True, values={A: {1: 5.0, 2: -3.0}})
OFF = Live(epoch=7, enabled=False, values={A: {1: 5.0, 2: -3.0}})
NOTHING_SET = Live(epoch=7, enabled=True)
FRESH = Live()
BOTH = Live(epoch=7, enabled=True, values={A: {1: 5.0}, B: {15: -150.0}})

CALM = Profile("calm", {4: 2.0, 9: -1.0})
STRONG = Profile("strong", {4: 2.0}, intensity=1.5)
EMPTY = Profile("empty", {})
WIDE = Profile("wide", {10: 1.0})
ELSEWHERE = Profile("elsewhere", {4: 2.0}, sae_id="sae_z")
UNKNOWN = None

LIMITS = Range()
INTENSITIES: list[Intensity] = [0.0, 0.5, 1.0, 2.0, "min", "max"]


def planned(
    intensity: Intensity | None,
    profile: Profile | None = None,
    live: Live = LIVE,
    attached: tuple[Sae, ...] = (FIRST,),
    limits: Range = LIMITS,
) -> Plan:
    return dial.plan(intensity, profile is not None, profile, live, attached, limits)


def applied(plan: Plan, live: Live, key: str) -> Values:
    """What the rows of the request get at one SAE."""
    return effective(live, plan.overlay, live.epoch, key)


# ------------------------------------------------------------------ what the dial may be


@pytest.mark.parametrize(
    ("raw", "intensity"),
    [
        (None, None),
        ("off", 0.0),
        ("min", "min"),
        ("max", "max"),
        (0, 0.0),
        (0.0, 0.0),
        (-0.0, 0.0),
        (1, 1.0),
        (2, 2.0),
        (2.0, 2.0),
        (0.25, 0.25),
        (5e-324, 5e-324),
    ],
)
def test_the_dial_is_a_number_from_0_to_2_or_one_of_three_words(
    raw: Any, intensity: Intensity | None
) -> None:
    assert dial.parse(raw) == intensity
    assert type(dial.parse(raw)) is type(intensity)


@pytest.mark.parametrize(
    "raw",
    [
        -0.001,
        -1,
        2.0000001,
        3,
        1e308,
        10**400,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        "OFF",
        "Max",
        "on",
        "mid",
        "1",
        "1.0",
        "nan",
        "",
        " off",
        b"off",
        [],
        [1],
        {},
        {"value": 1},
    ],
    ids=lambda raw: repr(raw)[:20],
)
def test_any_other_dial_is_an_invalid_parameter_naming_it(raw: Any) -> None:
    refusal = refusal_of(dial.parse, raw)
    assert (refusal.row.v1, refusal.row.v1_code) == (400, "invalid_parameter")
    assert refusal.param == "steering_intensity"
    for word in ("off", "min", "max", "0 to 2"):
        assert word in refusal.message


@settings(deadline=None, derandomize=True)
@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=5)))
def test_parsing_gives_an_intensity_within_bounds_or_a_refusal(raw: Any) -> None:
    try:
        found = dial.parse(raw)
    except Refusal:
        assert isinstance(raw, bool | str) or not 0 <= raw <= 2
    else:
        assert found in ("min", "max") or 0.0 <= float(str(found)) <= 2.0


# ------------------------------------------------------------------ (1) nothing attached, nothing asked


@pytest.mark.parametrize("intensity", [None, *INTENSITIES])
@pytest.mark.parametrize("profile", [None, CALM, EMPTY, WIDE, ELSEWHERE])
@pytest.mark.parametrize("live", [FRESH, LIVE, OFF])
def test_without_an_attached_sae_nothing_is_checked_changed_or_echoed(
    intensity: Intensity | None, profile: Profile | None, live: Live
) -> None:
    assert planned(intensity, profile, live, attached=()) == Plan(None, None)


@pytest.mark.parametrize("live", [FRESH, LIVE, OFF, NOTHING_SET])
def test_a_request_that_names_neither_follows_the_live_values(live: Live) -> None:
    assert planned(None, None, live) == Plan(None, None)


# ------------------------------------------------------------------ (2) off


@pytest.mark.parametrize("live", [FRESH, LIVE, OFF, NOTHING_SET, BOTH])
@pytest.mark.parametrize("profile", [None, CALM, STRONG, EMPTY, WIDE, ELSEWHERE])
def test_off_steers_nothing_and_checks_no_base(profile: Profile | None, live: Live) -> None:
    plan = planned(0.0, profile, live, attached=(FIRST, SECOND))
    assert applied(plan, live, A) == applied(plan, live, B) == {}


def test_off_lets_an_unknown_profile_pass_and_is_not_echoed() -> None:
    assert dial.plan(0.0, True, UNKNOWN, LIVE, (FIRST,), LIMITS) == Plan({}, None)


@pytest.mark.parametrize(
    ("profile", "live", "echo"),
    [
        (None, LIVE, 0.0),
        (CALM, LIVE, 0.0),
        (CALM, OFF, 0.0),
        (CALM, FRESH, 0.0),
        (WIDE, LIVE, 0.0),
        (ELSEWHERE, LIVE, 0.0),
        (None, OFF, None),
        (None, FRESH, None),
        (None, NOTHING_SET, None),
        (None, Live(enabled=True, values={A: {}}), None),
        (EMPTY, LIVE, None),
        (EMPTY, OFF, None),
    ],
)
def test_off_is_echoed_where_there_was_something_to_turn_off(
    profile: Profile | None, live: Live, echo: float | None
) -> None:
    assert planned(0.0, profile, live).echo == echo


def test_off_holds_for_the_request_when_an_operator_had_everything_on() -> None:
    assert planned(dial.parse("off"), live=BOTH, attached=(FIRST, SECOND)) == Plan({}, 0.0)
    assert planned(dial.parse(0), live=BOTH, attached=(FIRST, SECOND)) == Plan({}, 0.0)


# ------------------------------------------------------------------ (3) a named profile is the base


def test_a_profile_replaces_the_live_values_with_its_own_intensity_and_no_echo() -> None:
    assert planned(None, CALM) == Plan({A: {4: 2.0, 9: -1.0}}, None)
    assert planned(None, STRONG) == Plan({A: {4: 3.0}}, None)


def test_the_requests_intensity_takes_the_place_of_the_profiles() -> None:
    assert planned(1.0, STRONG) == Plan({A: {4: 2.0}}, 1.0)
    assert planned(0.5, STRONG) == Plan({A: {4: 1.0}}, 0.5)


def test_a_profile_replaces_the_values_of_every_attached_sae() -> None:
    plan = planned(None, Profile("b", {15: 1.0}, sae_id="sae_b"), BOTH, (FIRST, SECOND))
    assert applied(plan, BOTH, A) == {}
    assert applied(plan, BOTH, B) == {15: 1.0}


@pytest.mark.parametrize("live", [OFF, FRESH])
def test_a_profile_steers_its_request_while_live_steering_is_off(live: Live) -> None:
    assert applied(planned(2.0, CALM, live), live, A) == {4: 4.0, 9: -2.0}
    assert planned(2.0, CALM, live).echo == 2.0


@pytest.mark.parametrize("intensity", [None, *INTENSITIES])
def test_an_empty_profile_is_valid_steers_nothing_and_is_not_echoed(
    intensity: Intensity | None,
) -> None:
    plan = planned(intensity, EMPTY)
    assert plan.echo is None
    assert applied(plan, LIVE, A) == {}


@pytest.mark.parametrize(
    ("sae_id", "layer", "key"),
    [
        (None, None, A),
        ("sae_a", None, A),
        ("sae_a", 1, A),
        (None, 1, A),
        ("sae_b", None, B),
        ("sae_b", 2, B),
        ("sae_b", 3, C),
        (None, 3, C),
    ],
)
def test_a_profile_acts_on_the_sae_and_layer_it_is_bound_to_else_on_the_first(
    sae_id: str | None, layer: int | None, key: str
) -> None:
    bound = Profile("bound", {4: 2.0}, sae_id=sae_id, layer=layer)
    assert planned(1.0, bound, attached=(FIRST, SECOND, THIRD)) == Plan({key: {4: 2.0}}, 1.0)


def test_the_width_that_counts_is_that_of_the_sae_the_profile_is_bound_to() -> None:
    bound = Profile("bound", {19: 2.0}, sae_id="sae_b")
    assert planned(1.0, bound, attached=(FIRST, SECOND)) == Plan({B: {19: 2.0}}, 1.0)


@pytest.mark.parametrize(
    ("sae_id", "layer"), [("sae_z", None), ("sae_z", 1), ("sae_a", 2), (None, 9), (None, 0)]
)
@pytest.mark.parametrize("values", [{4: 2.0}, {}])
@pytest.mark.parametrize("intensity", [None, 0.5, "min", "max"])
def test_a_profile_bound_to_what_is_not_attached_is_refused(
    intensity: Intensity | None, values: Values, sae_id: str | None, layer: int | None
) -> None:
    bound = Profile("bound", values, sae_id=sae_id, layer=layer)
    refusal = refusal_of(planned, intensity, bound, attached=(FIRST, SECOND))
    assert (refusal.code, refusal.row.v1) == ("PROFILE_INCOMPATIBLE", 400)
    assert refusal.param == "profile"
    assert "'bound'" in refusal.message
    assert refusal.details["attached"] == [
        {"sae_id": "sae_a", "layer": 1},
        {"sae_id": "sae_b", "layer": 2},
    ]


@pytest.mark.parametrize("index", [-1, 10, 11, 2**63])
@pytest.mark.parametrize("intensity", [None, 1.0, "max"])
@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_profile_with_a_feature_outside_the_sae_is_refused_whole(
    intensity: Intensity | None, index: int, value: float
) -> None:
    refusal = refusal_of(planned, intensity, Profile("wide", {0: 1.0, index: value, 9: 1.0}))
    assert (refusal.code, refusal.row.v1) == ("PROFILE_INCOMPATIBLE", 400)
    assert refusal.param == "profile"
    assert refusal.details == {"feature_idx": index, "d_sae": 10}


def test_the_first_and_the_last_feature_belong_to_the_sae() -> None:
    assert planned(1.0, Profile("edges", {0: 1.0, 9: 2.0})).overlay == {A: {0: 1.0, 9: 2.0}}


# ------------------------------------------------------------------ (3) else the active profile is

CALMED = activate(FRESH, "prof_1", Profile("calm", {4: 150.0, 9: -1.0}, 1.5), (FIRST,))


@pytest.mark.parametrize(
    ("intensity", "expected"),
    [
        (1.0, {4: 150.0, 9: -1.0}),
        (0.5, {4: 75.0, 9: -0.5}),
        (2.0, {4: 200.0, 9: -2.0}),
        ("min", {4: 75.0, 9: -0.5}),
        ("max", {4: 200.0, 9: -1.5}),
    ],
)
def test_the_dial_of_an_active_profile_is_absolute(intensity: Intensity, expected: Values) -> None:
    assert CALMED.values_at(A) == {4: 200.0, 9: -1.5}  # its own intensity, clamped
    plan = planned(intensity, live=CALMED)
    assert plan.overlay == {A: expected}
    assert plan.echo == {"min": 0.5, "max": 1.5}.get(str(intensity), intensity)


def test_a_profile_at_intensity_0_can_be_dialed_up() -> None:
    live = activate(FRESH, "prof_1", Profile("still", {4: 10.0}, 0.0), (FIRST,))
    assert live.values_at(A) == {4: 0.0}
    assert planned(1.0, live=live) == Plan({A: {4: 10.0}}, 1.0)


def test_without_a_dial_the_active_profile_steers_as_it_was_applied() -> None:
    assert planned(None, live=CALMED) == Plan(None, None)


@pytest.mark.parametrize("intensity", INTENSITIES)
def test_an_active_profile_that_the_operator_turned_off_is_not_dialed_on(
    intensity: Intensity,
) -> None:
    plan = planned(intensity, live=steering.disable(CALMED))
    assert (applied(plan, steering.disable(CALMED), A), plan.echo) == ({}, None)


@pytest.mark.shows("steering-dial.1")
def test_values_set_by_hand_since_the_activation_are_no_part_of_the_base() -> None:
    halved = Profile("mixed", {3: 10.0, 7: -20.0}, 0.5)
    live = activate(FRESH, "prof_1", halved, (FIRST,))
    live = steering.set_values(live, A, 10, {9: 30.0})
    assert live.values_at(A) == {3: 5.0, 7: -10.0, 9: 30.0}
    assert planned(1.0, live=live) == Plan({A: {3: 10.0, 7: -20.0}}, 1.0)
    assert planned(0.5, live=steering.remove(live, A, 10, 7)) == Plan({A: {3: 5.0, 7: -10.0}}, 0.5)


@pytest.mark.shows("steering-dial.1")
def test_without_the_profile_the_values_set_by_hand_are_the_base_again() -> None:
    live = steering.set_values(CALMED, A, 10, {5: 3.0})
    ended = steering.end(live, "prof_1", clears=False)
    assert planned(0.5, live=ended) == Plan({A: {4: 100.0, 9: -0.75, 5: 1.5}}, 0.5)


def test_a_named_profile_comes_before_the_active_one() -> None:
    assert planned(0.5, CALM, CALMED) == Plan({A: {4: 1.0, 9: -0.5}}, 0.5)


def test_off_turns_an_active_profile_off_for_the_request() -> None:
    assert planned(0.0, live=CALMED) == Plan({}, 0.0)


@pytest.mark.parametrize("live", [FRESH, LIVE])
def test_a_profile_that_is_active_without_being_applied_is_the_base(live: Live) -> None:
    adopted = adopt(live, "prof_1", CALM)
    assert planned(0.5, live=adopted) == Plan({A: {4: 1.0, 9: -0.5}}, 0.5)
    assert planned(None, live=adopted) == Plan(None, None)
    assert planned(0.0, live=adopted) == Plan({}, 0.0)
    off = steering.disable(adopted)
    assert planned(0.5, live=off) == Plan(None, None)
    assert planned(0.0, live=off) == Plan({}, None)


@pytest.mark.shows("steering-dial.10")
def test_the_dial_of_an_active_profile_without_values_changes_nothing() -> None:
    live = steering.set_values(
        activate(LIVE, "prof_1", EMPTY, (FIRST,)), A, 10, dict(LIVE.values_at(A))
    )
    assert live.active is not None
    assert planned(0.5, live=live) == Plan(None, None)


def test_a_value_beyond_the_bounds_is_clamped_after_it_was_scaled() -> None:
    wide = Profile("wide", {4: 300.0}, 0.5)
    assert planned(None, wide) == Plan({A: {4: 150.0}}, None)
    assert planned(1.0, wide) == Plan({A: {4: 200.0}}, 1.0)
    assert planned(0.5, live=activate(FRESH, "prof_1", wide, (FIRST,))).overlay == {A: {4: 150.0}}


def test_values_of_other_owners_are_in_the_base_that_the_operator_made() -> None:
    live = Live(enabled=True, owned=owned({MANUAL: {A: {1: 4.0}}, "circuit:1": {A: {1: 2.0}}}))
    assert planned(0.5, live=live).overlay == {A: {1: 3.0}}


# ------------------------------------------------------------------ (3) else the live values are


def test_without_a_profile_the_live_values_of_every_sae_are_scaled() -> None:
    plan = planned(0.5, live=BOTH, attached=(FIRST, SECOND))
    assert plan == Plan({A: {1: 2.5}, B: {15: -75.0}}, 0.5)


@pytest.mark.parametrize("intensity", INTENSITIES)
@pytest.mark.parametrize("live", [OFF, FRESH, NOTHING_SET, Live(enabled=True, values={A: {}})])
def test_the_dial_alone_never_turns_on_what_is_off_and_is_not_echoed(
    intensity: Intensity, live: Live
) -> None:
    plan = planned(intensity, live=live)
    assert plan.echo is None
    assert applied(plan, live, A) == {}


@pytest.mark.parametrize("intensity", INTENSITIES[1:])
def test_a_dial_that_changes_nothing_lets_the_request_follow_the_live_values(
    intensity: Intensity,
) -> None:
    assert planned(intensity, live=OFF).overlay is None


# ------------------------------------------------------------------ (4) how strong


def product(value: float, intensity: float) -> float:
    """The product with 15 significant digits. A factor of 1 changes nothing."""
    return value if intensity == 1.0 else float(f"{value * intensity:.15g}")


@pytest.mark.parametrize("profile", [None, CALM])
@pytest.mark.parametrize(
    ("limits", "intensity", "resolved"),
    [
        (LIMITS, "min", 0.5),
        (LIMITS, "max", 1.5),
        (Range(0.25, 2.0), "min", 0.25),
        (Range(0.25, 2.0), "max", 2.0),
        (LIMITS, 0.1, 0.1),
        (LIMITS, 1.0, 1.0),
    ],
)
def test_words_resolve_to_the_range_and_a_lower_number_is_honoured(
    profile: Profile | None, limits: Range, intensity: Intensity, resolved: float
) -> None:
    plan = planned(intensity, profile, limits=limits)
    base = profile.values if profile else LIVE.values_at(A)
    values = {i: product(value, resolved) for i, value in base.items()}
    assert plan == Plan({A: values}, resolved)


def test_min_of_a_range_that_begins_at_0_is_off() -> None:
    assert applied(planned("min", limits=Range(0.0, 1.0)), LIVE, A) == {}


# ------------------------------------------------------------------ (5) how far


@pytest.mark.parametrize(
    ("value", "intensity", "expected"),
    [
        (200.0, 2.0, 200.0),
        (-200.0, 2.0, -200.0),
        (100.0, 2.0, 200.0),
        (100.5, 2.0, 200.0),
        (-150.0, "max", -200.0),
        (133.0, "max", 199.5),
        (200.0, "min", 100.0),
    ],
)
def test_every_value_is_clamped_for_itself_and_the_echo_is_the_dial(
    value: float, intensity: Intensity, expected: float
) -> None:
    resolved = {"min": 0.5, "max": 1.5}.get(str(intensity), intensity)
    for profile, live in (
        (Profile("p", {1: value, 2: 1.0}), FRESH),
        (None, Live(enabled=True, values={A: {1: value, 2: 1.0}})),
    ):
        assert planned(intensity, profile, live) == Plan({A: {1: expected, 2: resolved}}, resolved)


def test_a_profile_without_a_dial_is_clamped_as_well() -> None:
    assert planned(None, Profile("p", {1: 150.0}, intensity=2.0)) == Plan({A: {1: 200.0}}, None)


# ------------------------------------------------------------------ what holds for every request

VALUE = st.floats(-200, 200)
VALUES = st.dictionaries(st.integers(0, 9), VALUE, max_size=3)
LIVES = st.builds(
    lambda enabled, a, b: Live(3, enabled, {k: v for k, v in ((A, a), (B, b)) if v}),
    st.booleans(),
    VALUES,
    VALUES,
)
PROFILES = st.one_of(
    st.none(),
    st.builds(
        Profile,
        st.just("p"),
        VALUES,
        st.floats(0, 2),
        st.sampled_from([None, "sae_a", "sae_b"]),
    ),
)
DIALS = st.one_of(st.none(), st.floats(0, 2), st.sampled_from(["min", "max"]))


def base_of(profile: Profile | None, live: Live) -> Mapping[str, Values]:
    if profile is None:
        return live.values if live.enabled else {}
    return {B if profile.sae_id == "sae_b" else A: profile.values}


@settings(deadline=None, derandomize=True, max_examples=300)
@given(DIALS, PROFILES, LIVES)
def test_the_echo_is_the_intensity_that_is_applied(
    intensity: Intensity | None, profile: Profile | None, live: Live
) -> None:
    plan = planned(intensity, profile, live, (FIRST, SECOND))
    base = base_of(profile, live)
    if intensity is None or not any(base.values()):
        assert plan.echo is None
        strength = profile.intensity if profile else 1.0
    else:
        assert plan.echo is not None
        strength = plan.echo
    for key in (A, B):
        values = base.get(key, {})
        scaled = {i: max(-200.0, min(200.0, product(v, strength))) for i, v in values.items()}
        assert applied(plan, live, key) == {i: v for i, v in scaled.items() if v != 0.0}


@settings(deadline=None, derandomize=True)
@given(DIALS, PROFILES, LIVES)
def test_planning_changes_neither_the_live_values_nor_the_profile(
    intensity: Intensity | None, profile: Profile | None, live: Live
) -> None:
    before = copy.deepcopy((profile, live))
    planned(intensity, profile, live, (FIRST, SECOND))
    assert (profile, live) == before


@settings(deadline=None, derandomize=True)
@given(DIALS, PROFILES, LIVES, LIVES)
def test_a_change_by_the_operator_wins_over_the_plan(
    intensity: Intensity | None, profile: Profile | None, live: Live, later: Live
) -> None:
    plan = planned(intensity, profile, live, (FIRST, SECOND))
    changed = Live(live.epoch + 1, later.enabled, later.values)
    found = effective(changed, plan.overlay, live.epoch, A)
    assert found == effective(changed, None, live.epoch, A)


# ------------------------------------------------------------------ the echo's form


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (2.0, "2"),
        (0.5, "0.5"),
        (1.25, "1.25"),
        (0.125, "0.125"),
        (1 / 3, "0.333"),
        (0.1 + 0.2, "0.3"),
        (1.9999, "2"),
        (0.0001, "0.0001"),
        (1e-300, "1e-300"),
    ],
)
def test_the_echo_has_few_digits_no_idle_zero_and_is_0_for_off_only(
    value: float, written: str
) -> None:
    assert dial.echo(value) == written


@settings(deadline=None, derandomize=True)
@given(st.floats(0, 2))
def test_the_echo_can_be_sent_again_as_a_dial(value: float) -> None:
    again = dial.parse(float(dial.echo(value)))
    assert again == pytest.approx(value, abs=0.0005001)
