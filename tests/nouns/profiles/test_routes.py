"""/api/profiles against a running service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest

from steerserve import demo
from steerserve.control.steering.interventions import EditParts
from steerserve.nouns.profiles import rules as profile_rules
from tests.conftest import Start
from tests.service import JSON, Running, add_sae

PROFILES = "/api/profiles"
STEERING = "/api/saes/steering"
DIAL = "x-service-steering-intensity"


@pytest.fixture
def empty(shared: Running) -> Iterator[Running]:
    """The shared service; the profiles a test leaves behind are deleted."""
    yield shared
    for profile in shared.data("GET", PROFILES)["profiles"]:
        shared.data("DELETE", f"{PROFILES}/{profile['id']}")


def create(live: Running, name: str, **fields: Any) -> dict[str, Any]:
    made = live.data("POST", PROFILES, {"name": name, **fields}, 201)
    assert isinstance(made, dict)
    return made


def offenders(live: Running, content: bytes) -> list[list[str]]:
    """The places that the refusal of a body names, after which nothing is saved."""
    answer = live.http.post(PROFILES, content=content, headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "VALIDATION_ERROR"), answer.text
    assert live.data("GET", PROFILES)["total"] == 0
    return [problem["loc"] for problem in error["details"]["errors"]]


@pytest.mark.shows(
    "envelope.8",
    "profile.1",
    "profile.2",
    "profile.3",
    "profile.4",
    "profile.5",
    "profile.6",
    "profile.7",
    "profile.8",
    "profile.9",
    "profiles.1",
    "profiles.2",
    "profiles.5",
    "profiles.7",
)
def test_a_profile_is_created_listed_read_and_deleted(empty: Running) -> None:
    context = {"description": "calm\nwater", "sae_id": "sae_demo", "model_id": "7", "layer": 9}
    made = create(empty, "calm", steering={"903": -1, "14": 2.5}, intensity=0.5, **context)
    assert re.fullmatch("prof_[0-9a-f]{12}", made["id"])
    assert made == context | {
        "id": made["id"],
        "name": "calm",
        "steering": {"14": 2.5, "903": -1.0},
        "intensity": 0.5,
        "source_kind": "manual",
        "is_active": False,
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
        "warnings": [],
    }
    assert datetime.fromisoformat(made["created_at"]).utcoffset() == timedelta(0)
    path = f"{PROFILES}/{made['id']}"
    assert empty.data("GET", path) == made
    assert empty.data("GET", PROFILES) == {
        "profiles": [made],
        "total": 1,
        "active_profile_id": None,
    }
    assert empty.data("DELETE", path) == {"profile_id": made["id"], "was_active": False}
    assert empty.error("GET", path)[:2] == (404, "PROFILE_NOT_FOUND")
    assert empty.error("DELETE", path)[:2] == (404, "PROFILE_NOT_FOUND")


@pytest.mark.shows("profile.4", "profile.5", "profile.6", "profile.7")
def test_only_the_name_is_needed(empty: Running) -> None:
    made = create(empty, "empty")
    assert (made["steering"], made["intensity"]) == ({}, 1.0)
    assert [made[key] for key in ("description", "model_id", "sae_id", "layer")] == [None] * 4
    assert create(empty, "nulls", description=None, model_id=None, sae_id=None, layer=None)


@pytest.mark.shows("profiles.5", "profile-errors.1")
@pytest.mark.parametrize("unknown", ["prof_000000000000", "calm", "%00", "%ED%A0%80", "x" * 5000])
def test_an_unknown_profile_is_not_found(empty: Running, unknown: str) -> None:
    create(empty, "calm")
    for method in ("GET", "DELETE"):
        refused = empty.error(method, f"{PROFILES}/{unknown}")
        assert refused[:2] == (404, "PROFILE_NOT_FOUND")


@pytest.mark.shows("profile.2", "profiles.2", "profile-errors.2")
def test_a_name_is_taken_once(empty: Running) -> None:
    create(empty, "calm", steering={"1": 1})
    refused = empty.error("POST", PROFILES, {"name": "calm", "steering": {}})
    assert refused == (409, "PROFILE_ALREADY_EXISTS", {"name": "calm"})
    assert empty.data("GET", PROFILES)["total"] == 1
    assert create(empty, "Calm")


@pytest.mark.parametrize("model_id", [7, 0, 2**31, "7", "org/model", "x" * 100])
def test_a_model_id_may_be_a_number_and_is_kept_as_text(empty: Running, model_id: Any) -> None:
    assert create(empty, "m", model_id=model_id)["model_id"] == str(model_id)


def test_an_sae_without_a_name_is_none(empty: Running) -> None:
    for path, body, status in (
        (PROFILES, {"name": "p", "sae_id": ""}, 422),
        (f"{PROFILES}/import", {"name": "p", "steering": {}, "sae_id": ""}, 200),
    ):
        assert empty.error("POST", path, body)[:2] == (status, "VALIDATION_ERROR")
    made = create(empty, "p", sae_id="sae_1")
    assert empty.error("PATCH", f"{PROFILES}/{made['id']}", {"sae_id": ""})[0] == 422
    assert empty.data("GET", PROFILES)["total"] == 1


def test_the_largest_layer_fits(empty: Running) -> None:
    assert create(empty, "deep", layer=2**31 - 1)["layer"] == 2**31 - 1


def test_a_thousand_features_are_the_most(empty: Running) -> None:
    values = {str(index): index / 7 for index in range(1000)}
    made = create(empty, "most", steering=values)
    assert list(made["steering"].items()) == list(values.items())
    refused = empty.error("POST", PROFILES, {"name": "more", "steering": values | {"1000": 1.0}})
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert refused[2]["errors"][0]["loc"] == ["body", "steering"]
    assert empty.data("GET", PROFILES)["total"] == 1


def test_every_entry_that_is_no_index_and_number_is_named(empty: Running) -> None:
    entries = rb'{"1": 200, "x": 1, "\ud800": 1, "7": NaN, "8": 1e400, "9": true}'
    places = offenders(empty, b'{"name": "bad", "steering": ' + entries + b"}")
    assert places == [["body", "steering", key] for key in ("x", "\\ud800", "7", "8", "9")]


def test_an_intensity_that_json_lacks_is_refused(empty: Running) -> None:
    assert offenders(empty, b'{"name": "bad", "intensity": NaN}') == [["body", "intensity"]]


def test_what_converts_to_an_index_and_a_number_is_saved_and_clamped_when_it_is_applied(
    both: Running,
) -> None:
    steering = {"05": "2.5", " 6": 300, "+7": "-1e3", "8": -200.5}
    saved = {"5": 2.5, "6": 300.0, "7": -1000.0, "8": -200.5}
    clamped = {"5": 2.5, "6": 200.0, "7": -200.0, "8": -200.0}
    made = create(both, "wide", steering=steering)
    assert made["steering"] == saved
    imported = both.data("POST", f"{PROFILES}/import", {"name": "in", "steering": steering}, 201)
    assert imported["steering"] == saved
    exported = both.data("GET", f"{PROFILES}/{made['id']}/export")
    assert exported["steering"] == saved
    for profile in (made, imported):
        assert activate(both, profile)["feature_count"] == 4
        assert state(both) == (clamped, True, profile["id"])
    assert change(both, made, steering={"1": "7", "2": 1e9})["steering"] == {"1": 7.0, "2": 1e9}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "  "),
        ("name", "x" * 101),
        ("name", "a\nb"),
        ("name", "a\x00"),
        ("name", "a\u2028b"),
        ("name", "\x7f"),
        ("name", "\x85"),
        ("name", 5),
        ("name", None),
        ("description", "x" * 501),
        ("description", "a\x00"),
        ("description", 5),
        ("model_id", "x" * 101),
        ("model_id", 10**100),
        ("model_id", "7\x00"),
        ("model_id", True),
        ("model_id", 7.0),
        ("sae_id", "x" * 101),
        ("sae_id", "\x1b"),
        ("sae_id", 5),
        ("layer", -1),
        ("layer", 2**31),
        ("layer", 1.0),
        ("layer", "1"),
        ("layer", True),
        ("steering", []),
        ("steering", None),
        ("intensity", -0.1),
        ("intensity", 2.001),
        ("intensity", "1"),
        ("intensity", True),
        ("intensity", None),
    ],
)
def test_a_field_out_of_bounds_is_refused_and_named(empty: Running, field: str, value: Any) -> None:
    refused = empty.error("POST", PROFILES, {"name": "bad", field: value})
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert [problem["loc"] for problem in refused[2]["errors"]] == [["body", field]]
    assert empty.data("GET", PROFILES)["total"] == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", rb'{"name": "\ud800"}'])
def test_a_body_that_is_no_profile_is_refused(empty: Running, content: bytes) -> None:
    answer = empty.http.post(PROFILES, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")


# ---------------------------------------------------------------- changing what is saved


def change(live: Running, made: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found = live.data("PATCH", f"{PROFILES}/{made['id']}", fields)
    assert isinstance(found, dict)
    return found


@pytest.mark.shows("profile.9", "profiles.6")
def test_a_change_replaces_what_is_sent(empty: Running) -> None:
    made = create(empty, "calm", steering={"1": 1, "2": 2}, sae_id="sae_x", layer=3)
    assert change(empty, made) == made
    changed = change(empty, made, steering={"7": -1}, intensity=0.5, sae_id=None, description="d")
    assert changed == made | {
        "steering": {"7": -1.0},
        "intensity": 0.5,
        "sae_id": None,
        "description": "d",
        "updated_at": changed["updated_at"],
    }
    assert changed["updated_at"] > made["updated_at"]
    assert empty.data("GET", f"{PROFILES}/{made['id']}") == changed
    assert change(empty, made, steering={})["steering"] == {}


def test_a_whole_record_can_be_sent_back(empty: Running) -> None:
    made = create(empty, "calm", steering={"1": 1})
    again = empty.data("PATCH", f"{PROFILES}/{made['id']}", made | {"id": "prof_0"})
    assert again == made | {"updated_at": again["updated_at"]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", None),
        ("steering", None),
        ("intensity", None),
        ("intensity", 2.5),
        ("intensity", "1"),
        ("steering", {"x": 1}),
        ("steering", {"1": 1, "01": 1}),
        ("steering", {"1": True}),
        ("layer", -1),
        ("description", "x" * 501),
    ],
)
def test_a_change_out_of_bounds_is_refused_and_changes_nothing(
    empty: Running, field: str, value: Any
) -> None:
    made = create(empty, "calm", steering={"1": 1})
    path = f"{PROFILES}/{made['id']}"
    refused = empty.error("PATCH", path, {"name": "new", field: value})
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert refused[2]["errors"][0]["loc"][:2] == ["body", field]
    assert empty.data("GET", path) == made


def test_two_values_of_one_feature_are_refused(empty: Running) -> None:
    for method, path in (("POST", PROFILES), ("POST", f"{PROFILES}/import")):
        body = b'{"name": "twice", "steering": {"1": 1, "2": 1, "1": 2}}'
        answer = empty.http.request(method, path, content=body, headers=JSON)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (422, "VALIDATION_ERROR")
        assert error["details"]["errors"][0]["loc"] == ["body", "1"]
    assert empty.data("GET", PROFILES)["total"] == 0


# ---------------------------------------------------------------- activating


@pytest.fixture
def both(steered: Running, empty: Running) -> Running:
    """The first demo SAE attached, and no profile left behind."""
    return steered


def activate(live: Running, made: dict[str, Any], body: Any = None) -> dict[str, Any]:
    found = live.data("POST", f"{PROFILES}/{made['id']}/activate", body)
    assert isinstance(found, dict)
    return found


def state(live: Running) -> tuple[dict[str, float], bool, str | None]:
    now = live.data("GET", STEERING)
    return now["values"], now["enabled"], live.data("GET", PROFILES)["active_profile_id"]


def steer(live: Running, values: dict[str, float]) -> None:
    live.data("POST", f"{STEERING}/batch", {"steering": values})


@pytest.mark.shows(
    "profile.8",
    "profile.10",
    "profiles.4",
    "profiles.8",
    "profiles.15",
    "profiles.16",
    "states.22",
    "limits.1",
    "steering-errors.9",
)
def test_an_activation_replaces_what_steers_by_the_scaled_values(both: Running) -> None:
    steer(both, {"7": 3})
    both.data("POST", f"{STEERING}/disable")
    made = create(both, "calm", steering={"5": 150, "6": -10}, intensity=1.5)
    done = activate(both, made)
    assert done == {
        "profile_id": made["id"],
        "applied_steering": True,
        "feature_count": 2,
        "warnings": ["the values were clamped to [-200, 200]: features 5"],
    }
    assert state(both) == ({"5": 200.0, "6": -15.0}, True, made["id"])
    active = made | {"is_active": True}
    assert both.data("GET", f"{PROFILES}/active") == active
    assert both.data("GET", f"{PROFILES}/{made['id']}") == active
    assert both.data("GET", PROFILES)["profiles"] == [active]


def test_values_that_will_be_clamped_are_warned_of_everywhere(both: Running) -> None:
    def clamped(intensity: float, features: str) -> list[str]:
        values = f"at intensity {intensity:g} the values of features {features}"
        return [f"{values} are outside [-200, 200] and will be clamped"]

    added = {"op": "add", "feature": {"index": 3}, "value": 120}
    made = create(both, "loud", steering={"5": 500, "6": -10})
    assert made["warnings"] == clamped(1, "5")
    assert change(both, made, steering={"6": 150}, edits=[added])["warnings"] == []
    changed = change(both, made, intensity=2)
    assert changed["warnings"] == clamped(2, "3, 6")
    (listed,) = both.data("GET", PROFILES)["profiles"]
    assert listed["warnings"] == changed["warnings"]
    done = activate(both, made)
    assert done["warnings"] == ["the values were clamped to [-200, 200]: features 3, 6"]
    exported = both.data("GET", f"{PROFILES}/{made['id']}/export")
    assert "warnings" not in exported
    imported = both.data("POST", IMPORT, exported | {"name": "again"}, 201)
    assert imported["warnings"] == changed["warnings"]
    same = {"op": "add", "feature": {"index": 6}, "value": 60}
    change(both, made, intensity=1, edits=[same])
    done = activate(both, made)
    assert done["warnings"] == ["the values were clamped to [-200, 200]: features 6"]


def test_an_active_profile_steers_the_text_as_its_values_do(both: Running) -> None:
    def text() -> str:
        answer = both.complete("One day", max_tokens=20, temperature=0)
        return str(answer["choices"][0]["text"])

    plain = text()
    steer(both, {"5": 60})
    pushed = text()
    both.data("DELETE", STEERING)
    made = create(both, "calm", steering={"5": 120}, intensity=0.5)
    activate(both, made)
    assert text() == pushed != plain
    assert both.data("GET", "/api/saes/attachment")["steering_apply_count"] > 0
    both.data("POST", f"{PROFILES}/{made['id']}/deactivate")
    assert text() == plain


def echo(live: Running, **fields: Any) -> tuple[str, str | None]:
    """A text, and the intensity that its answer reports."""
    body = {
        "model": demo.MODEL_NAME,
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 20,
        "temperature": 0,
    }
    answer = live.post("/v1/chat/completions", body | fields)
    return answer.json()["choices"][0]["message"]["content"], answer.headers.get(DIAL)


@pytest.mark.shows("steering-dial.1")
def test_the_dial_scales_the_active_profile_as_it_was_authored(both: Running) -> None:
    made = create(both, "calm", steering={"500": 40}, intensity=0.5)
    full = echo(both, profile="calm", steering_intensity=1)
    activate(both, made)
    own, _ = echo(both)
    assert echo(both, steering_intensity=1) == full
    assert full[0] != own
    assert echo(both, steering_intensity=0.5) == (own, "0.5")
    both.data("POST", f"{STEERING}/disable")
    plain = echo(both)
    assert echo(both, steering_intensity=1) == plain == (plain[0], None)


def test_an_activation_tells_which_values_of_another_sae_it_cleared(both: Running) -> None:
    last = demo.saes()[-1]
    second = add_sae(both, last)
    member = {"sae_id": second, "layer": last.layer}
    both.data("POST", "/api/saes/attach-set", {"saes": [member]})
    try:
        body = {"steering": {"14": 3, "9": 1}, **member}
        both.data("POST", f"{STEERING}/batch", body)
        steer(both, {"7": 3})
        made, other = create(both, "calm", steering={"5": 3}), create(both, "2", **body)
        (warning,) = activate(both, made)["warnings"]
        assert f"{second}@{last.layer}" in warning
        assert "features 9, 14" in warning
        assert activate(both, other)["warnings"] == []
    finally:
        both.data("POST", f"/api/saes/{second}/detach")


@pytest.mark.shows("profiles.14", "profiles.20", "limits.2", "profile-errors.3")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"steering": {"1": 1, "1024": 1}}, "INVALID_FEATURE_INDEX"),
        ({"steering": {"1": 1}, "sae_id": "sae_of_another_model"}, "PROFILE_INCOMPATIBLE"),
        ({"steering": {"1": 1}, "layer": 99}, "PROFILE_INCOMPATIBLE"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(
    both: Running, fields: dict[str, Any], code: str
) -> None:
    running, other = create(both, "on", steering={"5": 3}), create(both, "off", **fields)
    activate(both, running)
    before = state(both)
    path = f"{PROFILES}/{other['id']}/activate"
    status, found, details = both.error("POST", path)
    assert (status, found) == (400, code)
    if code == "INVALID_FEATURE_INDEX":
        assert details == {"feature_idx": 1024, "d_sae": 1024}
    assert state(both) == before


@pytest.mark.shows("profiles.4", "profiles.13", "steering-errors.2")
def test_values_need_an_attached_sae_and_an_empty_profile_does_not(empty: Running) -> None:
    made, none = create(empty, "calm", steering={"5": 3}), create(empty, "none")
    path = f"{PROFILES}/{made['id']}/activate"
    assert empty.error("POST", path)[:2] == (400, "SAE_NOT_ATTACHED")
    assert empty.data("GET", f"{PROFILES}/active") is None
    assert activate(empty, none)["feature_count"] == 0
    assert empty.data("GET", f"{PROFILES}/active")["id"] == none["id"]
    for name in ("activate", "deactivate", "export"):
        unknown = f"{PROFILES}/prof_0/{name}"
        method = "GET" if name == "export" else "POST"
        assert empty.error(method, unknown)[:2] == (404, "PROFILE_NOT_FOUND")


@pytest.mark.shows("profiles.17")
def test_activating_an_empty_profile_clears_what_steers(both: Running) -> None:
    steer(both, {"7": 3})
    made = create(both, "none")
    done = activate(both, made)
    assert (done["applied_steering"], done["feature_count"]) == (False, 0)
    assert state(both) == ({}, False, made["id"])


@pytest.mark.parametrize("body", [None, {}, {"apply_steering": True}])
def test_the_body_of_an_activation_may_be_left_out(both: Running, body: Any) -> None:
    assert activate(both, create(both, "calm", steering={"5": 3}), body)["applied_steering"]


def test_an_activation_may_leave_the_steering_alone(both: Running) -> None:
    steer(both, {"7": 3})
    made = create(both, "calm", steering={"5": 3, "5000": 1})
    done = activate(both, made, {"apply_steering": False})
    assert (done["applied_steering"], done["feature_count"]) == (False, 0)
    assert state(both) == ({"7": 3.0}, True, made["id"])


@pytest.mark.parametrize("body", [[], "x", {"apply_steering": "no"}, {"apply_steering": None}])
def test_a_bad_body_of_an_activation_is_refused(both: Running, body: Any) -> None:
    made = create(both, "calm", steering={"5": 3})
    path = f"{PROFILES}/{made['id']}/activate"
    assert both.error("POST", path, body)[:2] == (422, "VALIDATION_ERROR")
    assert state(both) == ({}, False, None)


@pytest.mark.shows("profiles.9", "states.23")
def test_a_deactivation_clears_unless_it_is_told_not_to(both: Running) -> None:
    made = create(both, "calm", steering={"5": 3})
    path = f"{PROFILES}/{made['id']}/deactivate"
    activate(both, made)
    kept = both.data("POST", f"{path}?clear_steering=false")
    assert kept == {"profile_id": made["id"], "cleared_steering": False}
    assert state(both) == ({"5": 3.0}, True, None)
    assert both.data("POST", path)["cleared_steering"] is False
    assert state(both) == ({"5": 3.0}, True, None)
    activate(both, made)
    assert both.data("POST", path) == {"profile_id": made["id"], "cleared_steering": True}
    assert state(both) == ({}, False, None)
    assert both.error("POST", f"{path}?clear_steering=perhaps")[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.shows("profiles.7", "states.24")
def test_deleting_the_active_profile_clears_its_values(both: Running) -> None:
    made, other = create(both, "calm", steering={"5": 3}), create(both, "other")
    activate(both, made)
    assert both.data("DELETE", f"{PROFILES}/{other['id']}")["was_active"] is False
    assert state(both) == ({"5": 3.0}, True, made["id"])
    gone = both.data("DELETE", f"{PROFILES}/{made['id']}")
    assert gone == {"profile_id": made["id"], "was_active": True}
    assert state(both) == ({}, False, None)


@pytest.mark.shows("profiles.3")
def test_the_live_values_are_saved_with_their_sae(both: Running) -> None:
    steer(both, {"5": 3, "6": -0.5})
    both.data("POST", f"{STEERING}/disable")
    made = both.data("POST", f"{PROFILES}/save-current", {"name": "now", "description": "d"}, 201)
    attached = both.data("GET", "/api/saes/attachment")
    model = both.data("GET", "/api/models")["models"][0]
    assert made["steering"] == {"5": 3.0, "6": -0.5}
    assert (made["sae_id"], made["layer"]) == (attached["sae_id"], attached["layer"])
    assert (made["model_id"], made["intensity"]) == (str(model["id"]), 1.0)
    assert (made["description"], made["is_active"]) == ("d", False)
    both.data("DELETE", STEERING)
    assert activate(both, made)["warnings"] == []
    assert state(both) == ({"5": 3.0, "6": -0.5}, True, made["id"])
    path = f"{PROFILES}/save-current"
    assert both.error("POST", path, {"name": "now"})[:2] == (409, "PROFILE_ALREADY_EXISTS")
    assert both.error("POST", path, {"name": ""})[:2] == (422, "VALIDATION_ERROR")
    both.data("POST", f"/api/saes/{attached['sae_id']}/detach")
    assert both.error("POST", path, {"name": "x"})[:2] == (400, "SAE_NOT_ATTACHED")


def test_a_profile_is_active_as_long_as_its_values_or_its_edits_steer(both: Running) -> None:
    def left() -> tuple[dict[str, float], int, str | None]:
        values, _, active = state(both)
        return values, both.data("GET", "/api/health/detailed")["interventions"], active

    edit = {"op": "ablate", "feature": {"index": 3}}
    mixed = create(both, "mixed", steering={"5": 3, "6": 1}, edits=[edit])
    activate(both, mixed)
    for index, values in ((5, {"6": 1.0}), (6, {})):
        both.data("DELETE", f"{STEERING}/{index}")
        assert left() == (values, 1, mixed["id"])
    both.data("DELETE", "/api/interventions")
    assert left() == ({}, 0, None)
    activate(both, mixed)
    both.data("DELETE", "/api/interventions")
    assert left() == ({"5": 3.0, "6": 1.0}, 0, mixed["id"])
    alone = create(both, "alone", edits=[edit])
    for method, path, body, edits in (
        ("DELETE", "/api/interventions", None, 0),
        ("PUT", "/api/interventions", {"edits": [edit | {"op": "set", "value": 1}]}, 1),
        ("DELETE", STEERING, None, 0),
    ):
        activate(both, alone)
        assert left() == ({}, 1, alone["id"])
        both.data(method, path, body)
        assert left() == ({}, edits, None)


# ---------------------------------------------------------------- travelling

IMPORT = f"{PROFILES}/import"


@pytest.mark.shows("profiles.10", "profiles.11")
def test_an_export_comes_back_as_it_was(empty: Running) -> None:
    context = {"description": "a\nb", "sae_id": "sae_demo", "model_id": "7", "layer": 9}
    made = create(empty, "calm", steering={"14": 0.1 + 0.2, "903": -1}, intensity=0.5, **context)
    path = f"{PROFILES}/{made['id']}"
    answer = empty.http.get(f"{path}/export").json()
    exported = answer["data"]
    assert exported == context | {
        "version": "1.0",
        "name": "calm",
        "steering": made["steering"],
        "intensity": 0.5,
        "created_at": made["created_at"],
        "updated_at": made["updated_at"],
    }
    refused = empty.error("POST", IMPORT, exported)
    assert refused == (409, "PROFILE_ALREADY_EXISTS", {"name": "calm"})
    for body in (exported, answer):
        empty.data("DELETE", path)
        found = empty.data("POST", IMPORT, body, 201)
        assert found["id"] != made["id"]
        assert found["warnings"] == []
        ours = ("id", "created_at", "updated_at", "warnings")
        assert {k: v for k, v in found.items() if k not in ours} == {
            k: v for k, v in made.items() if k not in ours
        }
        path = f"{PROFILES}/{found['id']}"


@pytest.mark.shows("profiles.10", "profiles.11", "profiles.20")
def test_a_profile_of_another_home_finds_its_sae_and_its_model_under_other_ids(
    both: Running,
) -> None:
    steer(both, {"5": 3})
    made = both.data("POST", f"{PROFILES}/save-current", {"name": "here"}, 201)
    exported = both.data("GET", f"{PROFILES}/{made['id']}/export")
    digest = exported["sae"]["content_digest"]
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert made["sae_id"] == f"sae_{digest[:12]}"
    assert exported["model"] == {"name": demo.MODEL_NAME, "repo_id": None}
    there = exported | {"name": "there", "sae_id": "sae_there", "model_id": "4711"}
    found = both.data("POST", IMPORT, there, 201)
    assert (found["sae_id"], found["model_id"]) == ("sae_there", "4711")
    path = f"{PROFILES}/{found['id']}"
    again = both.data("GET", f"{path}/export")
    assert (again["sae"], again["model"]) == (exported["sae"], exported["model"])
    both.data("DELETE", STEERING)
    assert activate(both, found)["warnings"] == []
    # the content of the SAE says more than the name of a model
    renamed = there | {"name": "renamed", "model": {"name": "a copy", "repo_id": None}}
    assert activate(both, both.data("POST", IMPORT, renamed, 201))["warnings"] == []
    activate(both, found)
    assert state(both) == ({"5": 3.0}, True, found["id"])
    assert echo(both, profile="there") == echo(both)
    change(both, found, layer=made["layer"])
    assert echo(both, steering_intensity=0.5)[1] == "0.5"
    other = there | {"name": "other", "sae": there["sae"] | {"content_digest": "0" * 64}}
    unknown = both.data("POST", IMPORT, other, 201)
    refused = both.error("POST", f"{PROFILES}/{unknown['id']}/activate")
    assert refused[:2] == (400, "PROFILE_INCOMPATIBLE")
    change(both, found, sae_id="sae_none", model_id="acme/else")
    assert both.error("POST", f"{path}/activate")[:2] == (400, "PROFILE_INCOMPATIBLE")
    change(both, found, sae_id=None)
    assert "acme/else" in activate(both, found)["warnings"][0]


@pytest.mark.shows(
    "envelope.6",
    "envelope.7",
    "profiles.18",
    "profiles.19",
    "profile-errors.4",
    "profile-errors.5",
    "circuit-errors.8",
)
@pytest.mark.parametrize(
    ("content", "code", "details"),
    [
        (b'{"name": "x", "steering": {"a": 1, "1": 1, "2": "b"}}', "VALIDATION_ERROR", ["a", "2"]),
        (b'{"name": "x", "steering": {"1": NaN}}', "VALIDATION_ERROR", ["1"]),
        (b'{"name": "x", "steering": {"1": 1e400}}', "VALIDATION_ERROR", ["1"]),
        (rb'{"name": "x", "steering": {"\ud800": 1}}', "VALIDATION_ERROR", ["\\ud800"]),
        (b'{"name": "", "steering": {}}', "VALIDATION_ERROR", None),
        (b'{"steering": {}}', "VALIDATION_ERROR", None),
        (b'{"name": "x", "intensity": 3}', "VALIDATION_ERROR", None),
        (b'{"name": "x", "intensity": NaN}', "VALIDATION_ERROR", None),
        (b'{"name": "x", "layer": -1}', "VALIDATION_ERROR", None),
        (rb'{"name": "\ud800"}', "VALIDATION_ERROR", None),
        (b"[]", "VALIDATION_ERROR", None),
        (b"null", "VALIDATION_ERROR", None),
        (b'{"kind": "mistudio.cluster-definition", "name": "x"}', "IS_CLUSTER_DOCUMENT", None),
        (b'{"kind": "mistudio.cluster-bundle"}', "IS_CLUSTER_DOCUMENT", None),
    ],
)
def test_a_document_that_is_no_profile_is_told_with_status_200(
    empty: Running, content: bytes, code: str, details: list[str] | None
) -> None:
    answer = empty.http.post(IMPORT, content=content, headers=JSON)
    body = answer.json()
    assert (answer.status_code, body["success"], body["error"]["code"]) == (200, False, code)
    assert body["error"]["details"].get("invalid_keys") == details
    if code == "IS_CLUSTER_DOCUMENT":
        assert body["error"]["details"]["import_path"] == "/api/clusters/import"
    else:
        assert body["error"]["details"]["errors"][0]["loc"][0] == "body"
    assert empty.data("GET", PROFILES)["total"] == 0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{'name': 1}", b"[" * 100_000])
def test_what_is_no_json_is_refused_with_422(empty: Running, content: bytes) -> None:
    answer = empty.http.post(IMPORT, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")


def test_a_document_has_at_most_a_mebibyte(empty: Running) -> None:
    body = {"name": "x", "steering": {"1": 1}, "note": ""}
    body["note"] = "x" * (2**20 - len(json.dumps(body)))
    content = json.dumps(body).encode()
    refused = empty.http.post(IMPORT, content=content + b" ", headers=JSON)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert empty.http.post(IMPORT, content=content, headers=JSON).status_code == 201


# ---------------------------------------------------------------- restarts


def test_a_restart_keeps_the_profiles(start: Start) -> None:
    with start() as live:
        made = [create(live, "calm", steering={"14": 2.5}), create(live, "海", intensity=0.1)]
        gone = create(live, "gone")
        live.data("DELETE", f"{PROFILES}/{gone['id']}")
    with start() as live:
        assert live.data("GET", PROFILES)["profiles"] == made
        assert live.error("POST", PROFILES, {"name": "calm"})[1] == "PROFILE_ALREADY_EXISTS"
        assert create(live, "gone")["id"] != gone["id"]


def test_a_saved_profile_with_too_many_conditions_is_kept_and_refused_when_it_is_used(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    when = {"all": 13 * [{"feature": {"index": 1}, "above": 0}]}
    edits = 5 * [{"op": "ablate", "feature": {"index": 3}, "when": when}]
    body = {"name": "old", "edits": edits}
    status, code, details = shared.error("POST", PROFILES, body)
    assert (status, code, details["param"]) == (422, "TOO_MANY_EDITS", "edits")
    with monkeypatch.context() as patch:
        patch.setattr(profile_rules, "checked_edits", lambda edits: edits)
        patch.setattr(EditParts, "with_layers", AsyncMock(return_value=edits))
        made = shared.data("POST", PROFILES, body, 201)
    (listed,) = shared.data("GET", PROFILES)["profiles"]
    assert listed["edits"] == edits
    assert "more than 64 conditions" in listed["warnings"][0]
    path = f"{PROFILES}/{made['id']}"
    assert shared.error("POST", f"{path}/activate")[:2] == (422, "TOO_MANY_EDITS")
    chat = {"model": demo.MODEL_NAME, "messages": [{"role": "user", "content": "a"}]}
    error = shared.http.post("/v1/chat/completions", json=chat | {"profile": "old"}).json()["error"]
    assert (error["code"], error["param"]) == ("too_many_edits", "profile.edits")
    assert shared.data("GET", f"{path}/export")["edits"] == edits
    shared.data("DELETE", path)


def test_edits_are_saved_changed_exported_and_imported(shared: Running) -> None:
    edits = [{"op": "ablate", "feature": {"index": 3}, "positions": "prompt"}]
    made = shared.data("POST", PROFILES, {"name": "edits", "edits": edits}, 201)
    assert made["edits"] == edits
    path = f"{PROFILES}/{made['id']}"
    exported = shared.data("GET", f"{path}/export")
    assert exported["edits"] == edits
    changed = shared.data("PATCH", path, {"edits": []})
    assert "edits" not in changed
    shared.data("DELETE", path)
    imported = shared.data("POST", f"{PROFILES}/import", exported, 201)
    assert imported["edits"] == edits
    shared.data("DELETE", f"{PROFILES}/{imported['id']}")
    status, code, details = shared.error("POST", PROFILES, {"name": "x", "edits": [{"op": "set"}]})
    assert (status, code) == (422, "INVALID_INTERVENTION")
    assert details["param"] == "edits[0].feature"
