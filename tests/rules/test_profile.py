"""Profiles: what activating one does to the live values, which steps of the epoch that takes, and what is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.rules import profile, steering
from steerserve.rules.profile import Profile
from steerserve.rules.steering import MANUAL, Live


@dataclass(frozen=True)
class Sae:
    sae_id: str
    layer: int
    d_sae: int = 10

    @property
    def key(self) -> str:
        return steering.key_of(self.sae_id, self.layer)


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


def refused(call: Any, *arguments: Any, **options: Any) -> Refusal:
    with pytest.raises(Refusal) as raised:
        call(*arguments, **options)
    return raised.value


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
    after = profile.activate(before, ID, made, BOTH)
    assert (after.values, after.enabled, after.epoch) == (values, True, 4)
    assert after.by(MANUAL) == values
    assert after.active is not None
    assert after.active.profile_id == ID


@pytest.mark.parametrize("before", [FRESH, STEERED, OFF, Live(epoch=3, enabled=True)])
@pytest.mark.parametrize("attached", [(), BOTH])
def test_activating_an_empty_profile_clears_and_needs_no_sae(
    before: Live, attached: tuple[Sae, ...]
) -> None:
    after = profile.activate(before, ID, EMPTY, attached)
    assert (after.values, after.enabled, after.epoch) == ({}, False, 4)
    assert after.active is not None
    assert after.active.profile_id == ID


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
    refusal = refused(profile.activate, STEERED, ID, made, attached)
    assert (refusal.code, refusal.row.api) == (code, 400)
    if details is not None:
        assert refusal.details == details


def test_activating_again_what_nobody_changed_is_no_step() -> None:
    once = profile.activate(STEERED, ID, CALM, BOTH)
    assert profile.activate(once, ID, CALM, BOTH) is once
    changed = steering.set_values(once, A, 10, {0: 1.0})
    assert profile.activate(changed, ID, CALM, BOTH).epoch == changed.epoch + 1
    off = steering.disable(once)
    assert profile.activate(off, ID, CALM, BOTH).enabled is True


def test_another_profile_takes_the_place_of_the_active_one() -> None:
    once = profile.activate(STEERED, ID, CALM, BOTH)
    after = profile.activate(once, "prof_2", CALM, BOTH)
    assert after.epoch == once.epoch + 1
    assert after.active is not None
    assert after.active.profile_id == "prof_2"


def test_values_of_other_owners_stay_through_activation_and_deactivation() -> None:
    circuits = {A: {4: 1.0}, B: {3: 7.0}}
    live = Live(enabled=True, owned={MANUAL: {A: {1: 5.0}}, "circuit:1": circuits})
    active = profile.activate(live, ID, CALM, BOTH)
    assert active.values == {A: {4: 3.0, 9: -1.0}, B: {3: 7.0}}
    after = profile.deactivate(active, ID, clears=True)
    assert (after.values, after.enabled) == (circuits, True)


def test_adopting_a_profile_changes_no_steering() -> None:
    after = profile.adopt(STEERED, ID)
    assert (after.values, after.enabled, after.epoch) == (STEERED.values, True, 4)
    assert after.active is not None


# ------------------------------------------------------------------ deactivating


def test_deactivating_clears_or_keeps_the_values_in_one_step() -> None:
    active = profile.activate(STEERED, ID, CALM, BOTH)
    cleared = profile.deactivate(active, ID, clears=True)
    assert (cleared.values, cleared.enabled, cleared.active) == ({}, False, None)
    assert cleared.epoch == active.epoch + 1
    kept = profile.deactivate(active, ID, clears=False)
    assert (kept.values, kept.enabled, kept.active) == (active.values, True, None)
    assert kept.epoch == active.epoch + 1


@pytest.mark.parametrize("clears", [True, False])
def test_deactivating_what_is_not_active_changes_nothing(clears: bool) -> None:
    active = profile.activate(STEERED, ID, CALM, BOTH)
    for live in (active, STEERED):
        assert profile.deactivate(live, "prof_2", clears=clears) is live


def test_a_profile_whose_values_an_operator_deleted_takes_none_of_his_later_ones_along() -> None:
    live = profile.activate(FRESH, ID, CALM, BOTH)
    live = steering.set_values(steering.clear(live), A, 10, {1: 1.0})
    assert profile.deactivate(live, ID, clears=True) is live


# ------------------------------------------------------------------ saving what steers


@pytest.mark.parametrize(
    ("values", "at"), [({}, FIRST), ({A: {1: 5.0}}, FIRST), ({B: {1: 0.0}}, SECOND)]
)
def test_the_live_values_are_those_of_the_sae_that_has_some(
    values: dict[str, dict[int, float]], at: Sae
) -> None:
    assert profile.steered(Live(values=values), BOTH) is at


def test_the_live_values_of_several_saes_fit_no_profile() -> None:
    assert refused(profile.steered, STEERED, ()).code == "SAE_NOT_ATTACHED"
    refusal = refused(profile.steered, STEERED, BOTH)
    assert (refusal.code, refusal.row.api) == ("PROFILE_INCOMPATIBLE", 400)
    assert "sae_a@1, sae_b@2" in refusal.message


# ------------------------------------------------------------------ importing

EXPORT: dict[str, Any] = {
    "version": "1.0",
    "name": "calm-test",
    "description": None,
    "model_id": "7",
    "sae_id": "sae_demo",
    "layer": 9,
    "steering": {"14": 2.5, "903": -1},
    "intensity": 0.5,
    "created_at": "2026-01-05T10:00:00Z",
    "updated_at": "2026-01-05T10:00:00Z",
}
OLDER: dict[str, Any] = {
    "name": "older",
    "model": {"repo_id": "acme/tiny-1b", "quantization": "FP16"},
    "sae": {"repo_id": "acme/saes", "layer": 9},
    "features": [{"index": 14, "strength": 2.5}, {"index": 903, "strength": -1}],
    "exported_at": "2025-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    "body", [EXPORT, {"success": True, "data": EXPORT, "error": None}], ids=["bare", "enveloped"]
)
def test_an_export_is_read_bare_and_in_its_envelope(body: Any) -> None:
    found = profile.read(body)
    assert found.steering == {14: 2.5, 903: -1.0}
    assert all(type(value) is float for value in found.steering.values())
    assert found.fields == {
        "name": "calm-test",
        "description": None,
        "model_id": "7",
        "sae_id": "sae_demo",
        "layer": 9,
        "intensity": 0.5,
    }
    assert found.warnings == ()


def test_the_older_form_is_read_and_says_what_it_is_not_bound_to() -> None:
    found = profile.read(OLDER)
    assert found.steering == {14: 2.5, 903: -1.0}
    assert found.fields == {"name": "older", "model_id": "acme/tiny-1b", "layer": 9}
    assert "acme/saes" in found.warnings[0]


@pytest.mark.parametrize("kind", profile.CLUSTER_KINDS)
@pytest.mark.parametrize("is_enveloped", [False, True])
def test_a_cluster_document_is_pointed_to_its_own_import(kind: str, is_enveloped: bool) -> None:
    body: Any = {"kind": kind, "name": "x", "steering": {"1": 1}}
    refusal = refused(
        profile.read, {"success": True, "data": body, "error": None} if is_enveloped else body
    )
    assert (refusal.code, refusal.row.api) == ("IS_CLUSTER_DOCUMENT", 200)
    assert refusal.details == {"kind": kind, "import_path": "/api/clusters/import"}


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "members": [{"feature_idx": 1, "strength": 3}]},
        {"definitions": [{"name": "x", "members": []}]},
    ],
)
def test_a_cluster_document_that_leaves_out_its_kind_is_not_an_empty_profile(body: Any) -> None:
    assert refused(profile.read, body).code == "IS_CLUSTER_DOCUMENT"


BAD_ENTRIES: list[tuple[str, Any]] = [
    ("x", 1.0),
    ("", 1.0),
    ("-1", 1.0),
    ("01", 1.0),
    ("1.0", 1.0),
    (" 1", 1.0),
    ("1_0", 1.0),
    ("١", 1.0),
    ("9" * 19, 1.0),
    ("7", True),
    ("7", None),
    ("7", "2.5"),
    ("7", []),
    ("7", math.nan),
    ("7", math.inf),
    ("7", 200.001),
    ("7", -(10**400)),
]


@pytest.mark.parametrize(("key", "value"), BAD_ENTRIES, ids=lambda part: repr(part)[:12])
def test_an_entry_that_is_no_index_and_value_is_named(key: str, value: Any) -> None:
    refusal = refused(profile.read, EXPORT | {"steering": {"1": 1.0, key: value, "2": -200}})
    assert refusal.code == "VALIDATION_ERROR"
    assert refusal.details["invalid_keys"] == [key]


@pytest.mark.parametrize(
    ("features", "named"),
    [
        ([{"index": 1, "strength": 1}, {"index": 1, "strength": 2}], ["1"]),
        ([{"index": 1, "strength": 1}, {"index": "2", "strength": 1}], ["features[1]"]),
        ([{"index": True, "strength": 1}], ["features[0]"]),
        ([{"index": 1}], ["1"]),
        ([{"strength": 1}], ["features[0]"]),
        ([7], ["features[0]"]),
        ([{"index": -1, "strength": 1}], ["-1"]),
    ],
)
def test_a_bad_feature_of_the_older_form_is_named(features: Any, named: list[str]) -> None:
    refusal = refused(profile.read, OLDER | {"features": features})
    assert refusal.details["invalid_keys"] == named


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "document"),
        (None, "document"),
        ("x", "document"),
        (7, "document"),
        (EXPORT | {"steering": []}, "steering"),
        (EXPORT | {"steering": None}, "steering"),
        (EXPORT | {"steering": {str(i): 1.0 for i in range(1001)}}, "steering"),
        (EXPORT | {"features": []}, "features"),
        (OLDER | {"features": {}}, "features"),
        (OLDER | {"model": "acme"}, "model"),
        (OLDER | {"sae": None}, "sae"),
        (EXPORT | {"version": "2.0"}, "version"),
        (EXPORT | {"version": 1}, "version"),
        (EXPORT | {"kind": "mistudio.circuit-definition"}, "kind"),
        (EXPORT | {"kind": ["\ud800"]}, "kind"),
    ],
)
def test_a_document_that_is_no_profile_is_refused_by_the_field(body: Any, field: str) -> None:
    refusal = refused(profile.read, body)
    assert refusal.code == "VALIDATION_ERROR"
    assert refusal.details["errors"][0]["loc"] == ["body", field]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*EXPORT, *OLDER, "kind", "data", "success", "1", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(JSON_VALUES)
def test_any_document_is_read_or_refused(body: Any) -> None:
    code = None
    try:
        found = profile.read(body)
    except Refusal as refusal:
        code = refusal.code
    else:
        assert all(-200 <= value <= 200 for value in found.steering.values())
    assert code in (None, "VALIDATION_ERROR", "IS_CLUSTER_DOCUMENT")


# ------------------------------------------------------------------ saving


@pytest.mark.parametrize("bad", [-0.1, 2.001, math.nan, math.inf])
def test_an_intensity_lies_between_0_and_2(bad: float) -> None:
    assert refused(profile.check_intensity, bad).code == "VALIDATION_ERROR"
    profile.check_intensity(0.0)
    profile.check_intensity(2.0)


def test_a_saved_map_names_the_offenders_up_to_twenty() -> None:
    refusal = refused(profile.feature_values, {f"x{i}": 1.0 for i in range(50)})
    assert len(refusal.details["errors"]) == 20
