"""/api/circuits on the demo model with its two SAEs: documents, gates, claims, evidence, and every way out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve import demo
from steerserve.nouns.circuits.rules.hazards import MEASURED
from tests.circuits import D_SAE, HIGH, LOW, activated, attach, document, feature, imported
from tests.service import Running


@pytest.fixture
def live(attached: Running) -> Running:
    return attached


def failed(live: Running, method: str, path: str, body: Any = None) -> tuple[str, dict[str, Any]]:
    """The code and details of a refusal that comes with status 200."""
    status, code, details = live.error(method, path, body)
    assert status == 200
    return code, details


def steered(live: Running) -> dict[str, dict[str, float]]:
    """The live values by attachment."""
    listed = live.data("GET", "/api/saes/attachments")["entries"]
    values = {}
    for one in listed:
        where = f"sae_id={one['sae_id']}&layer={one['layer']}"
        values[one["layer"]] = live.data("GET", f"/api/saes/steering?{where}")["values"]
    return values


# ------------------------------------------------------------------ documents


@pytest.mark.shows("circuits.7", "circuits.12")
def test_an_export_is_the_document_and_can_be_imported_as_it_was_answered(
    unattached: Running,
) -> None:
    circuit_id = imported(unattached)
    answer = unattached.http.get(f"/api/circuits/{circuit_id}/export").json()
    assert answer["data"] == document()
    again = unattached.data("POST", "/api/circuits/import", answer)
    assert again["name"] == "rain to umbrella (2)"
    assert unattached.data("GET", f"/api/circuits/{again['id']}/export") == document()


@pytest.mark.shows("circuits.3", "circuits.7", "other-resources.1")
def test_the_row_says_what_the_document_is(unattached: Running) -> None:
    row = unattached.data("POST", "/api/circuits/import", document())
    assert row.pop("id").startswith("circ_")
    assert row.pop("created_at") == row.pop("updated_at")
    assert row == {
        "name": "rain to umbrella",
        "description": "made for a test",
        "rung": 2,
        "rung_language": "causally validated (edge)",
        "rung_next_step": "test the faithfulness of the whole circuit",
        "validated": True,
        "edge_count": 1,
        "layers": [LOW.layer, HIGH.layer],
        "serveable": False,
        "is_active": False,
        "serving_mode": None,
        "intensity": 1.0,
        "steering": None,
        "composed_layers": [],
        "per_sae_warnings": [
            {
                "layer": layer,
                "sae_id": None,
                "verdict": "unbound",
                "reason": f"no SAE is attached at layer {layer}",
            }
            for layer in (LOW.layer, HIGH.layer)
        ],
        "warnings": [],
    }


def test_one_circuit_is_answered_with_its_members_and_edges(unattached: Running) -> None:
    edges = [*document()["edges"], {"up": {"layer": 2, "kind": "cluster"}, "down": {"layer": 3}}]
    circuit_id = imported(unattached, edges=edges, budget={"intensity_range": [0.2, 9]})
    (row,) = unattached.data("GET", "/api/circuits")["circuits"]
    up, down = {"layer": LOW.layer, "feature_idx": 70}, {"layer": HIGH.layer, "feature_idx": 31}
    assert unattached.data("GET", f"/api/circuits/{circuit_id}") == row | {
        "steering": False,
        "dial_range": [0.2, 2.0],
        "sensing_enabled": False,
        "members": [up | {"label": None, "value": 8.0}, down | {"label": None, "value": -6.0}],
        "edges": [
            {
                "edge_key": f"70@{LOW.layer}->31@{HIGH.layer}",
                "up": up,
                "down": down,
                "edge_type": None,
                "rung": 2,
                "rung_language": "causally validated (edge)",
                "effect_size": 0.4,
                "weight_prior": None,
            },
            {
                "edge_key": "cluster@2->cluster@3",
                "up": {"layer": 2, "feature_idx": None},
                "down": {"layer": 3, "feature_idx": None},
                "edge_type": None,
                "rung": 0,
                "rung_language": "associated",
                "effect_size": None,
                "weight_prior": None,
            },
        ],
        "hazards": [
            {
                "kind": "cancelling",
                "edge_key": f"70@{LOW.layer}->31@{HIGH.layer}",
                "up": up | {"value": 8.0},
                "down": down | {"value": -6.0},
                "label": "validated:ES=0.4",
            }
        ],
    }


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kind": "mistudio.cluster-definition"}, "UNKNOWN_KIND"),
        ({"members": []}, "VALIDATION_ERROR"),
        ({"edges": [{"up": {"layer": 2}, "down": {"layer": 3}, "rung": 9}]}, "VALIDATION_ERROR"),
        ({"narrative": "n" * 2**20}, "PAYLOAD_TOO_LARGE"),
    ],
)
def test_a_document_is_refused_with_status_200(
    unattached: Running, changes: Any, code: str
) -> None:
    assert failed(unattached, "POST", "/api/circuits/import", document(**changes))[0] == code
    assert unattached.data("GET", "/api/circuits")["total"] == 0


def test_a_name_that_is_taken_is_renamed_or_refused(unattached: Running) -> None:
    names = [unattached.data("POST", "/api/circuits/import", document())["name"] for _ in range(3)]
    assert names == ["rain to umbrella", "rain to umbrella (2)", "rain to umbrella (3)"]
    refused = unattached.error("POST", "/api/circuits/import?on_conflict=fail", document())
    assert refused[:2] == (422, "VALIDATION_ERROR")


# ------------------------------------------------------------------ lists


@pytest.mark.shows("circuits.1", "circuits.3", "other-resources.1")
def test_the_list_is_newest_first_and_filtered(unattached: Running, demo_saes: list[str]) -> None:
    ids = [imported(unattached, rung=rung, name=f"rung {rung}") for rung in (0, 1, 2, 3)]
    low = {"members": [{"layer": LOW.layer, "feature": feature(1)}], "edges": []}
    ids.append(imported(unattached, name="low", **low))
    attach(unattached, demo_saes, LOW.layer)

    def listed(query: str) -> list[str]:
        page = unattached.data("GET", f"/api/circuits?{query}")
        assert page["active_circuit_id"] is None
        return [row["id"] for row in page["circuits"]]

    assert listed("") == ids[::-1]
    assert listed("min_rung=2") == [ids[3], ids[2]]
    assert listed("serveable=true") == [ids[4]]
    assert listed("serveable=false&limit=2&offset=1") == [ids[2], ids[1]]
    assert unattached.data("GET", "/api/circuits?serveable=false&limit=2")["total"] == 4
    assert unattached.data("GET", "/api/circuits?promoted=true")["total"] == 5


@pytest.mark.parametrize("query", ["min_rung=4", "limit=0", "limit=201", "offset=-1"])
def test_a_list_with_a_wrong_parameter_is_refused(unattached: Running, query: str) -> None:
    assert unattached.error("GET", f"/api/circuits?{query}")[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "circ_0/activate"),
        ("POST", "circ_0/deactivate"),
        ("DELETE", "circ_0"),
        ("GET", "circ_0"),
        ("GET", "circ_0/export"),
    ],
)
@pytest.mark.shows("circuit-errors.1")
def test_an_unknown_circuit_is_404(unattached: Running, method: str, path: str) -> None:
    assert unattached.error(method, f"/api/circuits/{path}")[:2] == (404, "CIRCUIT_NOT_FOUND")


# ------------------------------------------------------------------ serving


@pytest.mark.shows("circuits.1", "circuits.8", "other-resources.1", "states.25", "circuits.4")
def test_a_circuit_serves_each_member_at_the_sae_of_its_layer(
    live: Running, demo_saes: list[str]
) -> None:
    circuit_id = imported(live)
    answer = activated(live, circuit_id)
    assert (answer["is_active"], answer["serving_mode"], answer["steering"]) == (True, "full", True)
    assert answer["bound_layers"] == [LOW.layer, HIGH.layer]
    assert answer["slice_layer"] is None
    assert answer["applied_per_layer"] == {
        str(LOW.layer): {"70": 8.0},
        str(HIGH.layer): {"31": -6.0},
    }
    assert answer["acknowledged_unvalidated"] is False
    assert answer["warnings"] == []
    assert "allowed_layer_overlap" not in answer
    assert answer["hazards"] == [
        {
            "kind": "cancelling",
            "edge_key": f"70@{LOW.layer}->31@{HIGH.layer}",
            "up": {"layer": LOW.layer, "feature_idx": 70, "value": 8.0},
            "down": {"layer": HIGH.layer, "feature_idx": 31, "value": -6.0},
            "label": "validated:ES=0.4",
        }
    ]
    assert steered(live) == {LOW.layer: {"70": 8.0}, HIGH.layer: {"31": -6.0}}
    (row,) = live.data("GET", "/api/circuits/active")
    assert row["id"] == circuit_id
    assert row["steering"] is True
    assert row["rung_language"] == "causally validated (edge)"
    assert live.data("GET", "/api/circuits/active?single=true") == row
    assert live.data("GET", "/api/circuits")["active_circuit_id"] == circuit_id


def test_a_served_circuit_changes_what_the_model_writes(live: Running) -> None:
    proof = demo.proof()
    strong = [{"layer": HIGH.layer, "feature": feature(proof["feature_idx"], proof["strength"])}]
    circuit_id = imported(live, members=strong, edges=[])
    before = live.complete("One day", max_tokens=12, temperature=0)["choices"][0]["text"]
    activated(live, circuit_id, acknowledge_unvalidated=True)
    during = live.complete("One day", max_tokens=12, temperature=0)["choices"][0]["text"]
    live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    after = live.complete("One day", max_tokens=12, temperature=0)["choices"][0]["text"]
    assert before == after != during


@pytest.mark.shows("circuits.9", "states.26")
def test_a_deactivation_removes_only_the_values_of_the_circuit(live: Running) -> None:
    live.data("POST", "/api/saes/steering", {"feature_idx": 70, "value": 1.0})
    circuit_id = imported(live)
    activated(live, circuit_id)
    assert steered(live)[LOW.layer] == {"70": 9.0}
    answer = live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    assert (answer["cleared_steering"], answer["is_active"]) == (True, False)
    assert steered(live) == {LOW.layer: {"70": 1.0}, HIGH.layer: {}}
    again = live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    assert again["cleared_steering"] is False
    assert steered(live) == {LOW.layer: {"70": 1.0}, HIGH.layer: {}}
    live.data("DELETE", "/api/saes/steering")


# ------------------------------------------------------------------ gates


@pytest.mark.parametrize("rung", [0, 1])
@pytest.mark.shows("circuit-errors.2", "circuit-errors.8", "circuits.8", "states.25")
def test_a_circuit_below_rung_2_serves_only_when_acknowledged(live: Running, rung: int) -> None:
    circuit_id = imported(live, rung=rung)
    code, details = failed(live, "POST", f"/api/circuits/{circuit_id}/activate")
    phrase = ["associated", "suggested (attribution-supported)"][rung]
    assert code == "UNVALIDATED_CIRCUIT"
    assert (details["circuit_id"], details["rung"], details["rung_language"]) == (
        circuit_id,
        rung,
        phrase,
    )
    assert details["next_step"]
    assert steered(live) == {LOW.layer: {}, HIGH.layer: {}}
    assert activated(live, circuit_id, acknowledge_unvalidated=True)["acknowledged_unvalidated"]


def test_evidence_is_asked_for_before_the_saes(unattached: Running) -> None:
    circuit_id = imported(unattached, rung=0)
    code, _ = failed(unattached, "POST", f"/api/circuits/{circuit_id}/activate")
    assert code == "UNVALIDATED_CIRCUIT"


@pytest.mark.shows("circuits.2", "states.25", "steering-errors.7")
def test_without_saes_every_member_is_an_offender(unattached: Running) -> None:
    circuit_id = imported(unattached)
    status, code, details = unattached.error("POST", f"/api/circuits/{circuit_id}/activate")
    assert (status, code) == (422, "SAE_SET_INCOMPLETE")
    assert [(one["layer"], one["feature_idx"]) for one in details["offenders"]] == [
        (LOW.layer, 70),
        (HIGH.layer, 31),
    ]
    assert unattached.data("GET", "/api/circuits/claims") == []


def test_a_circuit_whose_saes_are_attached_but_do_not_fit_is_told_so(live: Running) -> None:
    saes = [{"layer": layer, "n_features": D_SAE + 1} for layer in (LOW.layer, HIGH.layer)]
    made = live.data("POST", "/api/circuits/import", document(saes=saes))
    error = live.http.post(f"/api/circuits/{made['id']}/activate").json()["error"]
    assert error["code"] == "SAE_SET_INCOMPLETE"
    assert error["message"] == "no attached SAE fits a layer of the circuit"
    assert all("features" in one["reason"] for one in error["details"]["offenders"])


def test_an_index_outside_of_the_sae_is_refused_before_anything_changes(live: Running) -> None:
    circuit_id = imported(live, high=D_SAE)
    status, code, details = live.error("POST", f"/api/circuits/{circuit_id}/activate")
    assert (status, code) == (400, "INVALID_FEATURE_INDEX")
    assert (details["feature_idx"], details["layer"]) == (D_SAE, HIGH.layer)
    assert live.data("GET", "/api/circuits/claims") == []
    assert steered(live) == {LOW.layer: {}, HIGH.layer: {}}


# ------------------------------------------------------------------ several circuits


def at(layer: int, *indices: int) -> dict[str, Any]:
    return {
        "members": [{"layer": layer, "feature": feature(index)} for index in indices],
        "edges": [],
    }


@pytest.mark.shows("circuit-errors.5", "circuits.5", "circuits.10", "circuits.4")
def test_circuits_on_disjoint_layers_serve_at_once(live: Running) -> None:
    low = imported(live, name="low", **at(LOW.layer, 1))
    high = imported(live, name="high", **at(HIGH.layer, 2))
    for circuit_id in (low, high):
        activated(live, circuit_id, acknowledge_unvalidated=True)
    assert steered(live) == {LOW.layer: {"1": 8.0}, HIGH.layer: {"2": 8.0}}
    rows = live.data("GET", "/api/circuits/active")
    assert [(row["id"], row["steering"]) for row in rows] == [(low, True), (high, True)]
    assert live.data("GET", "/api/circuits/claims") == [
        {
            "layer": LOW.layer,
            "circuit_id": low,
            "circuit_name": "low",
            "composed": False,
            "steering_keys": [1],
        },
        {
            "layer": HIGH.layer,
            "circuit_id": high,
            "circuit_name": "high",
            "composed": False,
            "steering_keys": [2],
        },
    ]
    code, details = failed(live, "PUT", "/api/circuits/active/intensity", {"intensity": 0.5})
    assert code == "AMBIGUOUS_ACTIVE_CIRCUIT"
    assert details["active_circuits"] == [{"id": low, "name": "low"}, {"id": high, "name": "high"}]


@pytest.mark.shows("circuit-errors.3", "circuits.8", "states.25")
def test_a_held_layer_is_contention_and_can_be_overridden(live: Running) -> None:
    first, second = imported(live, name="first"), imported(live, name="second", low=1, high=2)
    activated(live, first)
    code, details = failed(live, "POST", f"/api/circuits/{second}/activate")
    assert code == "CIRCUIT_LAYER_CONTENTION"
    assert details["contended_layers"] == [LOW.layer, HIGH.layer]
    assert details["incumbent"] == {"id": first, "name": "first"}
    assert details["overridable"] is True
    assert details["override_param"] == "allow_layer_overlap"
    assert details["measured_hazard"] == dict(MEASURED)
    assert "colliding_keys" not in details
    answer = activated(live, second, allow_layer_overlap=True)
    assert answer["composed_layers"] == [LOW.layer, HIGH.layer]
    assert answer["allowed_layer_overlap"] is True
    assert steered(live)[LOW.layer] == {"1": 8.0, "70": 8.0}
    assert all(row["composed"] for row in live.data("GET", "/api/circuits/claims"))
    # the layers are not composed any more once the other circuit has left
    live.data("POST", f"/api/circuits/{first}/deactivate")
    assert not any(row["composed"] for row in live.data("GET", "/api/circuits/claims"))
    assert live.data("GET", "/api/circuits/active")[0]["composed_layers"] == []


@pytest.mark.shows("circuit-errors.3", "circuits.8")
def test_the_same_feature_is_a_collision_that_nothing_overrides(live: Running) -> None:
    first, second = imported(live, name="first"), imported(live, name="second", low=70, high=2)
    activated(live, first)
    path = f"/api/circuits/{second}/activate?allow_layer_overlap=true"
    code, details = failed(live, "POST", path)
    assert code == "CIRCUIT_LAYER_CONTENTION"
    assert details["colliding_keys"] == [
        {"layer": LOW.layer, "feature_idx": 70, "incumbent": {"id": first, "name": "first"}}
    ]
    assert details["overridable"] is False
    assert [row["circuit_id"] for row in live.data("GET", "/api/circuits/claims")] == [first, first]
    assert steered(live) == {LOW.layer: {"70": 8.0}, HIGH.layer: {"31": -6.0}}


# ------------------------------------------------------------------ ways out


@pytest.mark.parametrize(
    "way_out",
    ["deactivate", "delete", "clear", "clear one SAE", "detach", "profile"],
)
@pytest.mark.shows("circuits.11")
def test_every_way_out_removes_the_values_and_releases_the_layers(
    live: Running, demo_saes: list[str], way_out: str
) -> None:
    circuit_id = imported(live)
    activated(live, circuit_id)
    match way_out:
        case "deactivate":
            live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
        case "delete":
            assert live.data("DELETE", f"/api/circuits/{circuit_id}") == {
                "circuit_id": circuit_id,
                "deleted": True,
            }
        case "clear":
            live.data("DELETE", "/api/saes/steering")
        case "clear one SAE":
            live.data("DELETE", f"/api/saes/steering?sae_id={demo_saes[1]}")
        case "detach":
            live.data("POST", f"/api/saes/{demo_saes[1]}/detach")
        case "profile":
            body = {"name": "calm", "steering": {"5": 1.0}}
            profile_id = live.data("POST", "/api/profiles", body, 201)["id"]
            done = live.data("POST", f"/api/profiles/{profile_id}/activate")
            assert "circuit 'rain to umbrella' was deactivated" in done["warnings"]
    assert live.data("GET", "/api/circuits/active") == []
    assert live.data("GET", "/api/circuits/claims") == []
    rest = {"5": 1.0} if way_out == "profile" else {}
    assert steered(live)[LOW.layer] == rest
    assert live.service.owners.steering.live.circuits == ()


def test_a_profile_on_a_layer_of_the_circuit_is_released_with_a_warning(live: Running) -> None:
    body = {"name": "calm", "steering": {"5": 1.0}, "layer": HIGH.layer}
    profile_id = live.data("POST", "/api/profiles", body, 201)["id"]
    live.data("POST", f"/api/profiles/{profile_id}/activate")
    answer = activated(live, imported(live))
    assert answer["warnings"] == ["'calm' steered a layer of the circuit and was deactivated"]
    assert live.data("GET", "/api/profiles/active") is None
    assert steered(live)[HIGH.layer] == {"31": -6.0}


@pytest.mark.shows("circuits.6")
def test_a_release_of_claims_says_what_it_found(live: Running) -> None:
    circuit_id = imported(live)

    def released(circuit_id: str) -> dict[str, Any]:
        answer = live.data("POST", f"/api/circuits/claims/release?circuit_id={circuit_id}")
        assert isinstance(answer, dict)
        return answer

    unknown, empty = released("circ_0"), released(circuit_id)
    activated(live, circuit_id)
    held = released(circuit_id)
    assert held["circuit_id"] == circuit_id
    assert held["released_layers"] == [LOW.layer, HIGH.layer]
    assert unknown["released_layers"] == empty["released_layers"] == []
    warnings = [answer["warnings"][0] for answer in (unknown, empty, held)]
    assert len(set(warnings)) == 3
    assert live.data("GET", "/api/circuits/claims") == []
    # the circuit still steers; activating it again takes its layers again
    assert live.data("GET", "/api/circuits/active")[0]["steering"] is True
    activated(live, circuit_id)
    assert len(live.data("GET", "/api/circuits/claims")) == 2


def test_a_release_needs_a_circuit(unattached: Running) -> None:
    assert unattached.error("POST", "/api/circuits/claims/release")[:2] == (422, "VALIDATION_ERROR")


# ------------------------------------------------------------------ slice-fallback


@pytest.fixture
def half(unattached: Running, demo_saes: list[str]) -> Running:
    """The shared service with only the SAE of the lower layer attached."""
    attach(unattached, demo_saes, LOW.layer)
    return unattached


def test_the_layer_of_a_slice_is_released_with_its_cluster(half: Running) -> None:
    activated(half, imported(half))
    cluster_id = half.data("GET", "/api/clusters")["active_cluster_id"]
    half.data("DELETE", f"/api/clusters/{cluster_id}")
    assert (
        half.data("GET", "/api/circuits/active") == half.data("GET", "/api/circuits/claims") == []
    )


def test_a_circuit_with_a_missing_sae_serves_one_layer_by_a_cluster(half: Running) -> None:
    circuit_id = imported(half)
    answer = activated(half, circuit_id)
    assert (answer["serving_mode"], answer["steering"]) == ("slice_fallback", False)
    assert (answer["slice_layer"], answer["applied_per_layer"]) == (LOW.layer, None)
    assert answer["bound_layers"] == [LOW.layer]
    assert steered(half) == {LOW.layer: {"70": 8.0}}
    clusters = half.data("GET", "/api/clusters")
    (row,) = clusters["clusters"]
    assert row["name"] == f"rain to umbrella [L{LOW.layer} slice]"
    assert clusters["active_cluster_id"] == row["id"]
    assert row["intensity_range"] == [0.2, 1.4]
    note = half.data("GET", f"/api/clusters/{row['id']}/export")["provenance"]["source_note"]
    assert f"projection_of={circuit_id}; parent_rung=2;" in note
    assert [one["layer"] for one in half.data("GET", "/api/circuits/claims")] == [LOW.layer]
    ended = half.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    assert ended["cleared_steering"] is True
    assert steered(half) == {LOW.layer: {}}
    assert half.data("GET", "/api/clusters")["active_cluster_id"] is None
    assert half.data("GET", "/api/circuits/claims") == []


def test_the_cluster_of_a_slice_is_made_once(half: Running) -> None:
    circuit_id = imported(half)
    activated(half, circuit_id)
    (before,) = half.data("GET", "/api/clusters")["clusters"]
    activated(half, circuit_id)
    assert half.data("GET", "/api/clusters")["clusters"] == [before]
    changed = half.data("PUT", "/api/circuits/active/intensity", {"intensity": 0.5})
    assert (changed["intensity"], changed["reapplied"]) == (0.5, False)
    assert changed["warnings"]
    assert steered(half) == {LOW.layer: {"70": 8.0}}
    half.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    activated(half, circuit_id)
    (after,) = half.data("GET", "/api/clusters")["clusters"]
    assert (after["name"], after["intensity"]) == (before["name"], 0.5)
    assert steered(half) == {LOW.layer: {"70": 4.0}}


def test_the_clusters_of_the_slices_are_deleted_with_their_circuit(half: Running) -> None:
    ids = [imported(half, name="x" * 120, low=low) for low in (70, 71)]
    for circuit_id in ids * 2:
        activated(half, circuit_id)
        half.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    assert len(half.data("GET", "/api/clusters")["clusters"]) == 2
    half.data("DELETE", f"/api/circuits/{ids[0]}")
    (left,) = half.data("GET", "/api/clusters")["clusters"]
    assert left["members"][0][0] == 71
    activated(half, ids[1])
    half.data("DELETE", f"/api/circuits/{ids[1]}")
    assert half.data("GET", "/api/clusters")["clusters"] == []
    assert steered(half) == {LOW.layer: {}}


def test_an_imported_cluster_stays_whatever_its_name_and_its_note_say(half: Running) -> None:
    circuit_id = imported(half)
    activated(half, circuit_id)
    half.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    (made,) = half.data("GET", "/api/clusters")["clusters"]
    copy = half.data("GET", f"/api/clusters/{made['id']}/export")
    (kept,) = half.data("POST", "/api/clusters/import", copy)["results"]
    activated(half, circuit_id)
    half.data("DELETE", f"/api/circuits/{circuit_id}")
    (left,) = half.data("GET", "/api/clusters")["clusters"]
    assert left["id"] == kept["profile_id"]


@pytest.mark.parametrize("keeps", ["renamed", "activated"])
def test_the_cluster_of_a_slice_stays_where_an_operator_uses_it(half: Running, keeps: str) -> None:
    circuit_id = imported(half)
    activated(half, circuit_id)
    half.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    (cluster,) = half.data("GET", "/api/clusters")["clusters"]
    if keeps == "renamed":
        half.data("PATCH", f"/api/profiles/{cluster['id']}", {"name": "mine"})
    else:
        half.data("POST", f"/api/clusters/{cluster['id']}/activate")
    half.data("DELETE", f"/api/circuits/{circuit_id}")
    (left,) = half.data("GET", "/api/clusters")["clusters"]
    assert (left["id"], left["is_active"]) == (cluster["id"], keeps == "activated")


# ------------------------------------------------------------------ intensity


@pytest.mark.shows("circuit-errors.4", "circuits.10")
def test_without_an_active_circuit_there_is_no_intensity(live: Running) -> None:
    imported(live)
    code, _ = failed(live, "PUT", "/api/circuits/active/intensity", {"intensity": 1.0})
    assert code == "NO_ACTIVE_CIRCUIT"


@pytest.mark.shows("circuits.10")
def test_a_new_intensity_is_live_at_once_and_absolute(live: Running) -> None:
    circuit_id = imported(live)
    activated(live, circuit_id)

    def dialed(intensity: float, **more: Any) -> dict[str, Any]:
        body = {"intensity": intensity, **more}
        answer = live.data("PUT", "/api/circuits/active/intensity", body)
        assert isinstance(answer, dict)
        return answer

    off = dialed(0.0)
    assert (off["intensity"], off["reapplied"], off["steering"]) == (0.0, True, False)
    half = dialed(0.5)
    assert (half["intensity"], half["reapplied"], half["superseded"]) == (0.5, True, False)
    assert half["warnings"] == []
    assert steered(live) == {LOW.layer: {"70": 4.0}, HIGH.layer: {"31": -3.0}}
    kept = dialed(1.0, reapply=False)
    assert (kept["intensity"], kept["reapplied"]) == (1.0, False)
    assert steered(live)[LOW.layer] == {"70": 4.0}
    held = dialed(2.0)
    assert (held["intensity"], len(held["warnings"])) == (1.4, 1)
    assert dialed(0.1)["intensity"] == 0.2
    # the intensity is kept for the next activation
    live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    assert activated(live, circuit_id)["applied_per_layer"][str(LOW.layer)] == {"70": 1.6}


@pytest.mark.parametrize(("asked", "held"), [(2.0, 1.4), (0.1, 0.2), (0.0, 0.0)])
def test_a_row_has_the_intensity_at_which_the_circuit_serves(
    live: Running, asked: float, held: float
) -> None:
    budget = {"intensity": asked, "intensity_range": [0.2, 1.4]}
    row = live.data("POST", "/api/circuits/import", document(budget=budget))
    assert row["intensity"] == held
    assert [("is used" in warning) for warning in row["warnings"]] == [True] * (asked != held)
    (listed,) = live.data("GET", "/api/circuits")["circuits"]
    assert listed["intensity"] == held
    served = activated(live, row["id"])
    assert served["intensity"] == held
    assert served["applied_per_layer"][str(LOW.layer)]["70"] == pytest.approx(8 * held)


def test_a_slice_has_the_intensity_of_its_circuit_within_its_range(half: Running) -> None:
    budget = {"intensity": 2.0, "intensity_range": [0.2, 1.5]}
    answer = activated(half, imported(half, budget=budget))
    assert (answer["intensity"], answer["serving_mode"]) == (1.5, "slice_fallback")
    assert steered(half) == {LOW.layer: {"70": 12.0}}


def test_a_comparison_scales_the_strengths_of_the_document_whatever_the_dial_is(
    live: Running, demo_saes: list[str]
) -> None:
    activated(live, imported(live))
    live.data("PUT", "/api/circuits/active/intensity", {"intensity": 0.5})
    live.data("POST", "/api/saes/steering", {"feature_idx": 9, "value": 2.0})
    body = {"prompt": "One day", "intensities": [0, 1, 0.25], "max_tokens": 1}
    sides = live.data("POST", "/api/compare", body)["sides"]
    low, high = f"{demo_saes[0]}@{LOW.layer}", f"{demo_saes[1]}@{HIGH.layer}"
    assert [side["steering"] for side in sides] == [
        {},
        {low: {"9": 2.0, "70": 8.0}, high: {"31": -6.0}},
        {low: {"9": 2.0, "70": 2.0}, high: {"31": -1.5}},
    ]
    chat = {"model": demo.MODEL_NAME, "max_tokens": 1, "steering_intensity": 0.25}
    chat["messages"] = [{"role": "user", "content": "One day"}]
    state = live.post("/v1/chat/completions", chat).headers["x-service-steering-state"]
    assert state == sides[2]["steering_state"]
    own = body | {"steering": {"5": 4.0}, "intensities": [0.5]}
    (side,) = live.data("POST", "/api/compare", own)["sides"]
    assert side["steering"] == {low: {"5": 2.0}}
    live.data("DELETE", "/api/saes/steering")


@pytest.mark.parametrize("body", [{}, {"intensity": 2.5}, {"intensity": -1}, {"intensity": "1"}])
def test_a_wrong_intensity_is_refused(live: Running, body: Any) -> None:
    activated(live, imported(live))
    refused = live.error("PUT", "/api/circuits/active/intensity", body)
    assert refused[:2] == (422, "VALIDATION_ERROR")


def test_a_new_intensity_below_rung_2_is_acknowledged_anew(live: Running) -> None:
    activated(live, imported(live, rung=1), acknowledge_unvalidated=True)
    body: dict[str, Any] = {"intensity": 0.5}
    code, _ = failed(live, "PUT", "/api/circuits/active/intensity", body)
    assert code == "UNVALIDATED_CIRCUIT"
    assert steered(live)[LOW.layer] == {"70": 8.0}
    body["acknowledge_unvalidated"] = True
    assert live.data("PUT", "/api/circuits/active/intensity", body)["reapplied"] is True


# ------------------------------------------------------------------ words


@pytest.mark.shows("circuits.4")
@pytest.mark.parametrize("rung", [0, 1])
def test_no_answer_about_a_circuit_below_rung_2_has_the_word_causal(
    live: Running, rung: int
) -> None:
    circuit_id = imported(live, rung=rung)
    answers = [
        live.http.post(f"/api/circuits/{circuit_id}/activate"),
        live.http.post(f"/api/circuits/{circuit_id}/activate?acknowledge_unvalidated=true"),
        live.http.put("/api/circuits/active/intensity", json={"intensity": 0.5}),
        live.http.get("/api/circuits"),
        live.http.get("/api/circuits/active"),
        live.http.get("/api/circuits/claims"),
        live.http.get(f"/api/circuits/{circuit_id}/export"),
        live.http.get("/api/health/detailed"),
        live.http.post(
            "/v1/completions",
            json={"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1},
        ),
        live.http.post(f"/api/circuits/claims/release?circuit_id={circuit_id}"),
        live.http.post(f"/api/circuits/{circuit_id}/deactivate"),
    ]
    assert circuit_id in answers[3].text
    for answer in answers:
        assert answer.status_code == 200
        assert "causal" not in (answer.text + json.dumps(dict(answer.headers))).lower()
