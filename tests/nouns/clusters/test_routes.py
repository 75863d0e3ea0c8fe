"""/api/clusters against a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from steerserve import demo
from tests.service import JSON, Running, add_sae

CLUSTERS = "/api/clusters"
PROFILES = "/api/profiles"
STEERING = "/api/saes/steering"
WIDTH = 1024
"""The number of features of the demo SAEs."""

WEATHER: dict[str, Any] = {
    "kind": "mistudio.cluster-definition",
    "schema_version": "1",
    "name": "weather words",
    "narrative": "words for rain\nand wind",
    "display_token": "\u0120rain",
    "model": {"hf_id": "acme/tiny-1b", "mistudio_model_id": None},
    "sae": {
        "mistudio_sae_id": "sae_ab12",
        "layer": demo.saes()[0].layer,
        "hook_type": "residual",
        "n_features": WIDTH,
        "d_model": 2048,
        "source_hint": "hf:acme/tiny-saes/l9",
    },
    "members": [
        {"feature_idx": 70, "strength": 12.5, "sign": 1, "label": "rain", "max_activation": 8.0},
        {"feature_idx": 912, "strength": -6.0, "sign": -1, "max_activation": 3.5, "meta": None},
        {"feature_idx": 3, "strength": 2, "sign": -1, "meta": {"top_tokens": ["a"], "mine": 1e300}},
    ],
    "budget": {
        "B": 7.5,
        "formula_id": "freq-budget@1",
        "intensity": 1.0,
        "intensity_range": [0.4, 1.6],
    },
    "provenance": {"created_at": "2026-01-05T10:00:00.123456", "source_note": "hand made"},
    "of another studio": {"kept": [None, True, {"deep": 2**70}, 0.1, "\ud800\u0000\u00e9"]},
}
MINIMAL: dict[str, Any] = {
    "kind": "mistudio.cluster-definition",
    "schema_version": "1",
    "name": "small",
    "members": [{"feature_idx": 1, "strength": 3}],
}
AT_ONE = {"3": -2.0, "70": 12.5, "912": -6.0}
"""The values of WEATHER at intensity 1."""


@pytest.fixture(scope="module")
def attached(shared: Running) -> Iterator[Running]:
    """The shared service with one SAE attached for all tests of this file."""
    attach(shared)
    yield shared
    shared.data("POST", f"/api/saes/{add_sae(shared, demo.saes()[0])}/detach")


def attach(live: Running) -> None:
    sae = demo.saes()[0]
    if live.data("GET", "/api/saes/attachment")["sae_id"] is None:
        live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", {"layer": sae.layer})


@pytest.fixture
def empty(attached: Running) -> Iterator[Running]:
    """The service with an SAE attached, nothing saved and nothing steered, before and after the test."""
    yield attached
    for profile in attached.data("GET", PROFILES)["profiles"]:
        attached.data("DELETE", f"{PROFILES}/{profile['id']}")
    attach(attached)
    attached.data("DELETE", STEERING)


def imported(live: Running, document: Any, query: str = "") -> dict[str, Any]:
    """The one item of an import."""
    answer = live.http.post(
        f"{CLUSTERS}/import{query}", content=json.dumps(document).encode(), headers=JSON
    )
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    (item,) = data["results"]
    assert data["imported"] + data["blocked"] + data["errors"] == 1
    assert isinstance(item, dict)
    return item


def refused(live: Running, content: bytes) -> tuple[int, str, dict[str, Any]]:
    answer = live.http.post(f"{CLUSTERS}/import", content=content, headers=JSON)
    body = answer.json()
    assert (body["success"], body["data"]) == (False, None), answer.text
    assert live.data("GET", CLUSTERS)["clusters"] == []
    return answer.status_code, body["error"]["code"], body["error"]["details"]


def values(live: Running) -> dict[str, float]:
    found = live.data("GET", STEERING)["values"]
    assert isinstance(found, dict)
    return found


def one(live: Running) -> dict[str, Any]:
    (cluster,) = live.data("GET", CLUSTERS)["clusters"]
    assert isinstance(cluster, dict)
    return cluster


# ------------------------------------------------------------------ importing


@pytest.mark.shows("clusters.2", "clusters.3", "clusters.12", "other-resources.1")
def test_a_cluster_is_imported_listed_and_exported_without_loss(empty: Running) -> None:
    item = imported(empty, WEATHER)
    assert item == {
        "name": "weather words",
        "status": "imported",
        "profile_id": item["profile_id"],
        "warnings": [],
        "error": None,
    }
    attached = empty.data("GET", "/api/saes/attachment")
    summary = one(empty)
    assert summary == {
        "id": item["profile_id"],
        "name": "weather words",
        "description": "words for rain\nand wind",
        "model_id": "acme/tiny-1b",
        "sae_id": attached["sae_id"],
        "layer": attached["layer"],
        "is_active": False,
        "intensity": 1.0,
        "sensing_enabled": False,
        "member_count": 3,
        "members": [[70, "rain", 12.5], [912, None, -6.0], [3, None, -2.0]],
        "display_token": "rain",
        "bound": True,
        "warnings": [],
        "hub_ref": None,
        "intensity_range": [0.4, 1.6],
        "dial_range": [0.4, 1.6],
        "budget_b": 7.5,
        "formula_id": "freq-budget@1",
        "created_at": summary["created_at"],
        "updated_at": summary["created_at"],
    }
    export = empty.http.get(f"{CLUSTERS}/{item['profile_id']}/export")
    assert export.json() == {"success": True, "data": WEATHER, "error": None}
    again = empty.http.post(
        f"{CLUSTERS}/import?on_conflict=rename", content=export.content, headers=JSON
    )
    (second,) = again.json()["data"]["results"]
    assert (second["name"], second["status"]) == ("weather words (2)", "imported")
    assert empty.http.get(f"{CLUSTERS}/{second['profile_id']}/export").json()["data"] == WEATHER


def test_a_document_with_explicit_nulls_is_imported(empty: Running) -> None:
    nulls = dict.fromkeys(("narrative", "display_token", "model", "sae", "budget", "provenance"))
    item = imported(empty, MINIMAL | nulls)
    assert (item["status"], item["warnings"]) == ("imported", [])
    summary = one(empty)
    assert (summary["intensity_range"], summary["layer"], summary["intensity"]) == (None, None, 1.0)
    assert summary["dial_range"] == [0.5, 1.5]


def test_a_narrative_may_have_any_characters_and_is_shown_without_control_characters(
    empty: Running,
) -> None:
    narrative = "one\u2028two\x0b\tthree\u0000\ud800\r\n\u200dfour"
    document = MINIMAL | {"narrative": narrative}
    profile_id = imported(empty, document)["profile_id"]
    shown = "one\ufffdtwo\ufffd\tthree\ufffd\ufffd\r\n\u200dfour"
    assert one(empty)["description"] == shown
    assert empty.data("GET", f"{PROFILES}/{profile_id}")["description"] == shown
    assert empty.data("GET", f"{CLUSTERS}/{profile_id}/export") == document


@pytest.mark.shows("clusters.3")
def test_each_definition_of_a_bundle_is_imported_on_its_own(empty: Running) -> None:
    imported(empty, MINIMAL)
    bundle = {
        "kind": "mistudio.cluster-bundle",
        "schema_version": "1",
        "definitions": [MINIMAL | {"name": "a"}, MINIMAL, MINIMAL | {"name": "b"}],
    }
    path = f"{CLUSTERS}/import?on_conflict=fail&activate=true"
    data = empty.data("POST", path, bundle)
    assert [(item["name"], item["status"]) for item in data["results"]] == [
        ("a", "imported"),
        ("small", "error"),
        ("b", "imported"),
    ]
    assert (data["imported"], data["blocked"], data["errors"]) == (2, 0, 1)
    failed = data["results"][1]
    assert failed["profile_id"] is None
    assert "small" in failed["error"]
    assert empty.data("GET", CLUSTERS)["active_cluster_id"] is None


def test_a_document_that_breaks_its_contract_is_refused_with_200(empty: Running) -> None:
    broken = MINIMAL | {"members": [{"feature_idx": 1, "strength": 300.5}]}
    status, code, details = refused(empty, json.dumps(broken).encode())
    assert (status, code) == (200, "VALIDATION_ERROR")
    assert details["errors"][0]["loc"] == ["body", "members", 0, "strength"]


def test_the_size_of_a_body_is_checked_before_it_is_parsed(empty: Running) -> None:
    assert refused(empty, b" " * (2**20 + 1))[:2] == (200, "PAYLOAD_TOO_LARGE")


# ------------------------------------------------------------------ binding


@pytest.mark.shows("clusters.2")
def test_an_import_without_an_sae_is_unbound_and_binds_when_it_is_activated(
    empty: Running,
) -> None:
    attached = empty.data("GET", "/api/saes/attachment")
    empty.data("POST", f"/api/saes/{attached['sae_id']}/detach")
    item = imported(empty, WEATHER, "?activate=true")
    assert item["status"] == "imported_unbound"
    assert [("not bound" in warning) for warning in item["warnings"]] == [True, True]
    assert (one(empty)["bound"], one(empty)["sae_id"]) == (False, None)
    path = f"{CLUSTERS}/{item['profile_id']}/activate"
    assert empty.error("POST", path)[:2] == (400, "SAE_NOT_ATTACHED")
    empty.data("POST", f"/api/saes/{attached['sae_id']}/attach", {"layer": attached["layer"]})
    assert empty.data("POST", path)["applied_steering"] is True
    summary = one(empty)
    assert (summary["sae_id"], summary["layer"]) == (attached["sae_id"], attached["layer"])
    assert (summary["bound"], summary["warnings"]) == (True, [])


def test_a_cluster_that_steers_nothing_is_a_warning(empty: Running) -> None:
    item = imported(empty, MINIMAL | {"members": [{"feature_idx": 1, "strength": 0.0}]})
    assert item["warnings"] == ["all strengths are 0, so the cluster steers nothing"]


# ------------------------------------------------------------------ activating


@pytest.mark.shows("clusters.7", "clusters.8", "states.27", "states.28")
def test_a_cluster_steers_with_the_sign_of_each_member_applied_once(empty: Running) -> None:
    item = imported(empty, WEATHER)
    done = empty.data("POST", f"{CLUSTERS}/{item['profile_id']}/activate")
    assert done == {
        "profile_id": item["profile_id"],
        "applied_steering": True,
        "feature_count": 3,
        "sensing_armed": False,
        "warnings": done["warnings"],
    }
    assert done["warnings"] == [
        f"the profile was made for model 'acme/tiny-1b'; '{demo.MODEL_NAME}' is loaded"
    ]
    assert empty.data("GET", STEERING)["enabled"] is True
    assert values(empty) == AT_ONE
    assert empty.data("GET", CLUSTERS)["active_cluster_id"] == item["profile_id"]
    health = empty.data("GET", "/api/health/detailed")["active_profile"]
    assert (health["source_kind"], health["id"]) == ("cluster", item["profile_id"])
    path = f"{CLUSTERS}/{item['profile_id']}/deactivate"
    assert empty.data("POST", path) == {"profile_id": item["profile_id"], "cleared_steering": True}
    assert values(empty) == {}


@pytest.mark.shows("clusters.9")
def test_deactivating_an_inactive_cluster_leaves_the_active_one(empty: Running) -> None:
    first = imported(empty, WEATHER, "?activate=true")["profile_id"]
    second = imported(empty, MINIMAL)["profile_id"]
    done = empty.data("POST", f"{CLUSTERS}/{second}/deactivate")
    assert done == {"profile_id": second, "cleared_steering": False}
    assert values(empty) == AT_ONE
    assert empty.data("DELETE", f"{CLUSTERS}/{second}") == {
        "profile_id": second,
        "was_active": False,
    }
    assert empty.data("DELETE", f"{CLUSTERS}/{first}") == {"profile_id": first, "was_active": True}
    assert values(empty) == {}


@pytest.mark.shows("clusters.1", "states.27")
def test_one_cluster_serves_at_a_time(empty: Running) -> None:
    first = imported(empty, WEATHER, "?activate=true")["profile_id"]
    second = imported(empty, MINIMAL)["profile_id"]
    empty.data("POST", f"{CLUSTERS}/{second}/activate")
    listed = empty.data("GET", CLUSTERS)
    active = {cluster["id"]: cluster["is_active"] for cluster in listed["clusters"]}
    assert active == {first: False, second: True}
    assert listed["active_cluster_id"] == second
    assert values(empty) == {"1": 3.0}


GATES = [
    ({"sae": {"n_features": WIDTH + 1}}, 422, "VALIDATION_ERROR"),
    ({"members": [{"feature_idx": WIDTH, "strength": 1}]}, 400, "INVALID_FEATURE_INDEX"),
]


@pytest.mark.shows("clusters.7", "states.27")
@pytest.mark.parametrize("routes", [CLUSTERS, PROFILES])
@pytest.mark.parametrize(("change", "status", "code"), GATES)
def test_the_gate_holds_on_the_routes_of_profiles_too_and_leaves_what_steers(
    empty: Running, routes: str, change: dict[str, Any], status: int, code: str
) -> None:
    serving = imported(empty, WEATHER, "?activate=true")["profile_id"]
    bad = imported(empty, MINIMAL | change)["profile_id"]
    refusal = empty.error("POST", f"{routes}/{bad}/activate")
    assert refusal[:2] == (status, code)
    details = refusal[2]
    assert details["attached_d_sae"] == WIDTH
    if status == 422:
        assert (details["profile_id"], details["declared_n_features"]) == (bad, WIDTH + 1)
    else:
        assert (details["feature_idx"], details["bad_indices"]) == (WIDTH, [WIDTH])
    assert values(empty) == AT_ONE
    assert empty.data("GET", CLUSTERS)["active_cluster_id"] == serving
    assert empty.error("POST", f"{PROFILES}/{bad}/activate", {"apply_steering": False})[1] == code


def test_the_values_of_a_cluster_cannot_be_changed_as_those_of_a_profile(empty: Running) -> None:
    profile_id = imported(empty, WEATHER, "?activate=true")["profile_id"]
    path = f"{PROFILES}/{profile_id}"
    for change in ({"steering": {"1": 1}}, {"layer": 3}, {"model_id": "x"}, {"intensity": 1.7}):
        assert empty.error("PATCH", path, change)[:2] == (422, "VALIDATION_ERROR")
    assert empty.data("PATCH", path, empty.data("GET", path))["steering"] == AT_ONE
    renamed = empty.data("PATCH", path, {"name": "rain", "intensity": 0.1})
    assert (renamed["name"], renamed["source_kind"], renamed["intensity"]) == (
        "rain",
        "cluster",
        0.1,
    )
    assert values(empty) == AT_ONE
    assert empty.http.get(f"{CLUSTERS}/{profile_id}/export").json()["data"] == WEATHER


def test_a_cluster_is_not_exported_as_a_profile(empty: Running) -> None:
    cluster_id = imported(empty, WEATHER)["profile_id"]
    status, code, details = empty.error("GET", f"{PROFILES}/{cluster_id}/export")
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert (details["profile_id"], details["source_kind"]) == (cluster_id, "cluster")
    assert [one["loc"] for one in details["errors"]] == [["path", "profile_id"]]
    assert empty.http.get(details["export_path"]).json()["data"] == WEATHER


def test_a_profile_that_is_no_cluster_is_refused(empty: Running) -> None:
    made = empty.data("POST", PROFILES, {"name": "calm"}, 201)["id"]
    for method, path, body in (
        ("POST", "/activate", None),
        ("POST", "/deactivate", None),
        ("DELETE", "", None),
        ("GET", "/export", None),
        ("PUT", "/intensity", {"intensity": 1}),
    ):
        status, code, details = empty.error(method, f"{CLUSTERS}/{made}{path}", body)
        assert (status, code) == (422, "VALIDATION_ERROR")
        assert (details["profile_id"], details["source_kind"]) == (made, "manual")
        unknown = empty.error(method, f"{CLUSTERS}/prof_000000000000{path}", body)
        assert unknown[:2] == (404, "PROFILE_NOT_FOUND")
    assert empty.data("GET", CLUSTERS)["total"] == 0


# ------------------------------------------------------------------ intensity


@pytest.mark.shows("clusters.1", "clusters.10", "clusters.11", "steering-dial.2")
def test_an_intensity_is_saved_and_steers_at_once(empty: Running) -> None:
    profile_id = imported(empty, WEATHER, "?activate=true")["profile_id"]
    path = f"{CLUSTERS}/active/intensity"
    assert empty.data("PUT", path, {"intensity": 0.5}) == {
        "profile_id": profile_id,
        "intensity": 0.5,
        "reapplied": True,
    }
    assert values(empty) == {"3": -1.0, "70": 6.25, "912": -3.0}
    own = f"{CLUSTERS}/{profile_id}/intensity"
    assert empty.data("PUT", own, {"intensity": 1.6, "reapply": False})["reapplied"] is False
    assert values(empty)["70"] == 6.25
    # an intensity always counts from the authored strengths, also after 0
    empty.data("PUT", own, {"intensity": 0})
    assert values(empty) == {"3": 0.0, "70": 0.0, "912": 0.0}
    empty.data("PUT", own, {"intensity": 1})
    assert values(empty) == AT_ONE
    assert one(empty)["intensity"] == 1.0


@pytest.mark.shows("clusters.14")
def test_an_intensity_below_the_floor_of_the_range_is_allowed_and_one_above_it_is_not(
    empty: Running,
) -> None:
    profile_id = imported(empty, WEATHER, "?activate=true")["profile_id"]
    own = f"{CLUSTERS}/{profile_id}/intensity"
    assert empty.data("PUT", own, {"intensity": 0.01})["reapplied"] is True
    status, code, details = empty.error("PUT", own, {"intensity": 1.61})
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert (details["profile_id"], details["intensity"]) == (profile_id, 1.61)
    assert details["range"] == [0.4, 1.6]
    undeclared = imported(empty, MINIMAL)["profile_id"]
    assert empty.data("PUT", f"{CLUSTERS}/{undeclared}/intensity", {"intensity": 1.5})
    refusal = empty.error("PUT", f"{CLUSTERS}/{undeclared}/intensity", {"intensity": 1.51})
    assert (refusal[1], refusal[2]["range"]) == ("VALIDATION_ERROR", [0.5, 1.5])


@pytest.mark.shows("clusters.14")
@pytest.mark.parametrize("bad", [b"NaN", b"-0.1", b"2.1", b'"1"'])
def test_an_intensity_is_a_number_from_0_to_2(empty: Running, bad: bytes) -> None:
    profile_id = imported(empty, WEATHER)["profile_id"]
    for path in (f"{CLUSTERS}/active/intensity", f"{CLUSTERS}/{profile_id}/intensity"):
        answer = empty.http.put(path, content=b'{"intensity": %s}' % bad, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert one(empty)["intensity"] == 1.0


def test_products_are_shown_without_the_noise_of_binary_fractions(empty: Running) -> None:
    members = [
        {"feature_idx": 1, "strength": 3},
        {"feature_idx": 2, "strength": 0, "sign": -1},
        {"feature_idx": 4, "strength": -0.7},
        {"feature_idx": 5, "strength": 0.123456789012345},
    ]
    cluster_id = imported(empty, MINIMAL | {"members": members}, "?activate=true")["profile_id"]
    at_one = {"1": 3.0, "2": 0.0, "4": -0.7, "5": 0.123456789012345}
    assert values(empty) == at_one
    path = f"{CLUSTERS}/{cluster_id}/intensity"
    empty.data("PUT", path, {"intensity": 1.2})
    assert values(empty) == {"1": 3.6, "2": 0.0, "4": -0.84, "5": 0.148148146814814}
    empty.data("PUT", path, {"intensity": 0.0})
    texts = [empty.http.get(route).text for route in (STEERING, PROFILES)]
    assert values(empty) == dict.fromkeys(at_one, 0.0)
    assert not any("-0.0" in text for text in texts)
    empty.data("PUT", path, {"intensity": 1.0})
    empty.data("POST", STEERING, {"feature_idx": 1, "value": 199.99999999999997})
    assert values(empty)["1"] == 199.99999999999997


def test_without_an_active_cluster_there_is_no_intensity_to_set(empty: Running) -> None:
    path = f"{CLUSTERS}/active/intensity"
    assert empty.error("PUT", path, {"intensity": 1})[:2] == (200, "NO_ACTIVE_CLUSTER")
    made = empty.data("POST", PROFILES, {"name": "calm", "steering": {"1": 1}}, 201)
    empty.data("POST", f"{PROFILES}/{made['id']}/activate")
    assert empty.error("PUT", path, {"intensity": 1})[:2] == (200, "NO_ACTIVE_CLUSTER")


# ------------------------------------------------------------------ the dial of a request


def steered_by(live: Running, **fields: Any) -> str | None:
    """The digest of the steering that a request with these fields has."""
    body = {"model": demo.MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}]}
    answer = live.post("/v1/chat/completions", body | {"max_tokens": 1} | fields)
    return answer.headers.get("x-service-steering-state")


def test_the_dial_of_a_stored_cluster_has_the_range_that_it_declares(empty: Running) -> None:
    imported(empty, WEATHER, "?activate=true")
    before = values(empty)
    body = {"model": demo.MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}]}
    for fields in ({"profile": "weather words"}, {}):
        asked = body | fields | {"max_tokens": 1, "steering_intensity": "min"}
        answer = empty.post("/v1/chat/completions", asked)
        assert answer.headers["x-service-steering-intensity"] == "0.4"
    assert values(empty) == before


def scaled(strength: float) -> dict[str, Any]:
    """The steering of WEATHER at an intensity, as a request brings it itself."""
    features = [{"index": int(i), "value": value * strength} for i, value in AT_ONE.items()]
    return {"sae_steering": {"features": features}}


@pytest.mark.shows("steering-dial.2", "steering-dial.5")
def test_the_intensity_of_a_request_takes_the_place_of_the_clusters_for_this_request(
    empty: Running,
) -> None:
    imported(empty, WEATHER, "?activate=true")
    empty.data("PUT", f"{CLUSTERS}/active/intensity", {"intensity": 0.5})
    own = steered_by(empty, **scaled(0.5))
    assert own is not None
    assert steered_by(empty) == own
    for asked, strength in ((1, 1.0), ("min", 0.4), (2, 1.6), (0.25, 0.25)):
        found = steered_by(empty, steering_intensity=asked)
        assert found == steered_by(empty, **scaled(strength)) != own
    assert steered_by(empty, steering_intensity="off") is None
    assert steered_by(empty) == own


def test_a_request_that_names_an_incompatible_cluster_is_refused(empty: Running) -> None:
    imported(empty, MINIMAL | {"sae": {"n_features": WIDTH + 1}})
    body = {"model": demo.MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}]}
    status, error = empty.v1_error("/v1/chat/completions", body | {"profile": "small"})
    assert (status, error["code"], error["param"]) == (400, "profile_incompatible", "profile")
