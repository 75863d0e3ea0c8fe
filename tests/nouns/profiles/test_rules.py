"""Profiles: what may be saved, and what is imported."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.errors import Refusal
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.profiles import rules as profile
from tests.refusals import refusal_of

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


@pytest.mark.parametrize("kind", cluster.KINDS)
@pytest.mark.parametrize("is_enveloped", [False, True])
def test_a_cluster_document_is_pointed_to_its_own_import(kind: str, is_enveloped: bool) -> None:
    body: Any = {"kind": kind, "name": "x", "steering": {"1": 1}}
    refusal = refusal_of(
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
    assert refusal_of(profile.read, body).code == "IS_CLUSTER_DOCUMENT"


BAD_ENTRIES: list[tuple[str, Any]] = [
    ("x", 1.0),
    ("", 1.0),
    ("-1", 1.0),
    ("1.0", 1.0),
    ("1_0", 1.0),
    ("١", 1.0),
    ("9" * 19, 1.0),
    ("7", True),
    ("7", None),
    ("7", "x"),
    ("7", ""),
    ("7", "1_0"),
    ("7", "nan"),
    ("7", "1e400"),
    ("7", []),
    ("7", math.nan),
    ("7", math.inf),
    ("7", -(10**400)),
]


@pytest.mark.parametrize(
    ("key", "value", "entry"),
    [
        ("7", "2.5", (7, 2.5)),
        ("7", " -3 ", (7, -3.0)),
        ("7", "1e2", (7, 100.0)),
        ("7", 200.001, (7, 200.001)),
        ("7", -1e300, (7, -1e300)),
        ("07", 1, (7, 1.0)),
        (" 7", 1, (7, 1.0)),
        ("+7", 1, (7, 1.0)),
    ],
)
def test_an_entry_is_what_converts_to_an_index_and_a_number(
    key: str, value: Any, entry: tuple[int, float]
) -> None:
    for found in (
        profile.feature_values({"1": 1.0, key: value}),
        profile.read(EXPORT | {"steering": {"1": 1.0, key: value}}).steering,
    ):
        assert found == {1: 1.0, entry[0]: entry[1]}
        assert all(type(number) is float for number in found.values())


def test_one_feature_written_in_two_ways_is_refused() -> None:
    refusal = refusal_of(profile.read, EXPORT | {"steering": {"7": 1.0, "07": 2.0}})
    assert (refusal.code, refusal.details["invalid_keys"]) == ("VALIDATION_ERROR", ["07"])


@pytest.mark.parametrize(("key", "value"), BAD_ENTRIES, ids=lambda part: repr(part)[:12])
def test_an_entry_that_is_no_index_and_value_is_named(key: str, value: Any) -> None:
    refusal = refusal_of(profile.read, EXPORT | {"steering": {"1": 1.0, key: value, "2": -200}})
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
        ([{"index": 1, "strength": "x"}], ["1"]),
    ],
)
def test_a_bad_feature_of_the_older_form_is_named(features: Any, named: list[str]) -> None:
    refusal = refusal_of(profile.read, OLDER | {"features": features})
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
    refusal = refusal_of(profile.read, body)
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
        assert all(math.isfinite(value) for value in found.steering.values())
    assert code in (None, "VALIDATION_ERROR", "IS_CLUSTER_DOCUMENT")


# ------------------------------------------------------------------ saving


@pytest.mark.parametrize("bad", [-0.1, 2.001, math.nan, math.inf])
def test_an_intensity_lies_between_0_and_2(bad: float) -> None:
    assert refusal_of(profile.check_intensity, bad).code == "VALIDATION_ERROR"
    profile.check_intensity(0.0)
    profile.check_intensity(2.0)


def test_a_saved_map_names_the_offenders_up_to_twenty() -> None:
    refusal = refusal_of(profile.feature_values, {f"x{i}": 1.0 for i in range(50)})
    assert len(refusal.details["errors"]) == 20
