"""/api/profiles against a running service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Start
from tests.service import JSON, Running

PROFILES = "/api/profiles"


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


def test_a_profile_is_created_listed_read_and_deleted(empty: Running) -> None:
    context = {"description": "calm\nwater", "sae_id": "sae_demo", "model_id": "7", "layer": 9}
    made = create(empty, "calm", steering={"903": -1, "14": 2.5}, intensity=0.5, **context)
    assert re.fullmatch("prof_[0-9a-f]{12}", made["id"])
    assert made == context | {
        "id": made["id"],
        "name": "calm",
        "steering": {"14": 2.5, "903": -1.0},
        "intensity": 0.5,
        "is_active": False,
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
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


def test_only_the_name_is_needed(empty: Running) -> None:
    made = create(empty, "empty")
    assert (made["steering"], made["intensity"]) == ({}, 1.0)
    assert [made[key] for key in ("description", "model_id", "sae_id", "layer")] == [None] * 4
    assert create(empty, "nulls", description=None, model_id=None, sae_id=None, layer=None)


def test_a_list_is_in_the_order_of_creation(empty: Running) -> None:
    made = [create(empty, name) for name in ("c", "a", "b")]
    assert empty.data("GET", PROFILES)["profiles"] == made


@pytest.mark.parametrize("unknown", ["prof_000000000000", "calm", "%00", "%ED%A0%80", "x" * 5000])
def test_an_unknown_profile_is_not_found(empty: Running, unknown: str) -> None:
    create(empty, "calm")
    for method in ("GET", "DELETE"):
        refused = empty.error(method, f"{PROFILES}/{unknown}")
        assert refused[:2] == (404, "PROFILE_NOT_FOUND")


def test_a_name_is_taken_once(empty: Running) -> None:
    create(empty, "calm", steering={"1": 1})
    refused = empty.error("POST", PROFILES, {"name": "calm", "steering": {}})
    assert refused == (409, "PROFILE_ALREADY_EXISTS", {"name": "calm"})
    assert empty.data("GET", PROFILES)["total"] == 1
    assert create(empty, "Calm")


def test_of_two_creates_at_once_one_gets_the_name(empty: Running) -> None:
    def status(name: str) -> int:
        return empty.http.post(PROFILES, json={"name": name}).status_code

    with ThreadPoolExecutor(2) as pool:
        for name in ("a", "b", "c", "d", "e"):
            assert sorted(pool.map(status, [name, name])) == [201, 409]
    assert [profile["name"] for profile in empty.data("GET", PROFILES)["profiles"]] == list("abcde")


@pytest.mark.parametrize(
    "name", ["海 🌊", "ру́сский", "👩‍🚀", "x" * 100, "🌊" * 100, " a/b?c=%&'\"\\ "]
)
def test_a_name_may_be_any_line_of_text(empty: Running, name: str) -> None:
    made = create(empty, name, description=name * 5)
    assert (made["name"], made["description"]) == (name, name * 5)
    assert empty.data("GET", f"{PROFILES}/{made['id']}") == made


@pytest.mark.parametrize("model_id", [7, 0, 2**31, "7", "org/model", "x" * 100])
def test_a_model_id_may_be_a_number_and_is_kept_as_text(empty: Running, model_id: Any) -> None:
    assert create(empty, "m", model_id=model_id)["model_id"] == str(model_id)


def test_the_largest_layer_fits(empty: Running) -> None:
    assert create(empty, "deep", layer=2**31 - 1)["layer"] == 2**31 - 1


@pytest.mark.parametrize(
    "value", [-200.0, 200.0, 0.1 + 0.2, 199.99999999999997, -1e-300, 5e-324, -0.0]
)
def test_a_value_comes_back_as_the_same_float(empty: Running, value: float) -> None:
    made = create(empty, "exact", steering={"0": value}, intensity=1 / 3)
    stored = empty.data("GET", f"{PROFILES}/{made['id']}")
    assert repr(stored["steering"]["0"]) == repr(value)
    assert stored["intensity"] == 1 / 3


def test_a_thousand_features_are_the_most(empty: Running) -> None:
    values = {str(index): index / 7 for index in range(1000)}
    made = create(empty, "most", steering=values)
    assert list(made["steering"].items()) == list(values.items())
    refused = empty.error("POST", PROFILES, {"name": "more", "steering": values | {"1000": 1.0}})
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert refused[2]["errors"][0]["loc"] == ["body", "steering"]
    assert empty.data("GET", PROFILES)["total"] == 1


@pytest.mark.parametrize(
    "key",
    ["014", "-1", "-0", "+1", "1.0", "1e2", "", " 1", "1\n", "1_0", "x", "0x1", "¹", "١", "9" * 19],
)
def test_an_index_is_written_one_way_only(empty: Running, key: str) -> None:
    refused = empty.error("POST", PROFILES, {"name": "bad", "steering": {"14": 1.0, key: 1.0}})
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert [problem["loc"] for problem in refused[2]["errors"]] == [["body", "steering", key]]
    assert empty.data("GET", PROFILES)["total"] == 0


def test_an_index_that_is_no_text_is_named_as_it_was_written(empty: Running) -> None:
    body = rb'{"name": "bad", "steering": {"\ud800": 1}}'
    assert offenders(empty, body) == [["body", "steering", "\\ud800"]]


@pytest.mark.parametrize(
    "value",
    [*"200.001 -201 NaN Infinity -Infinity 1e400 true null [] {}".split(), '"3"', "1" + "0" * 400],
)
def test_a_value_out_of_bounds_is_refused_and_named(empty: Running, value: str) -> None:
    body = f'{{"name": "bad", "steering": {{"1": 200, "7": {value}, "2": -200}}}}'
    assert offenders(empty, body.encode()) == [["body", "steering", "7"]]


def test_every_offender_is_named_up_to_twenty(empty: Running) -> None:
    two = b'{"name": "bad", "steering": {"1": 201, "2": 1, "3": NaN}}'
    assert [place[-1] for place in offenders(empty, two)] == ["1", "3"]
    refused = empty.error(
        "POST", PROFILES, {"name": "bad", "steering": {f"x{i}": 1.0 for i in range(50)}}
    )
    assert len(refused[2]["errors"]) == 20


@pytest.mark.parametrize("value", ["2.001", "-0.1", "NaN", "Infinity", '"1"', "true", "null"])
def test_an_intensity_lies_between_0_and_2(empty: Running, value: str) -> None:
    body = f'{{"name": "bad", "intensity": {value}}}'
    assert offenders(empty, body.encode()) == [["body", "intensity"]]


@pytest.mark.parametrize("intensity", [0, 2, 0.25])
def test_an_intensity_at_its_bounds_is_taken(empty: Running, intensity: float) -> None:
    assert create(empty, "bound", intensity=intensity)["intensity"] == intensity


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


def test_a_restart_keeps_the_profiles(start: Start) -> None:
    with start() as live:
        made = [create(live, "calm", steering={"14": 2.5}), create(live, "海", intensity=0.1)]
        gone = create(live, "gone")
        live.data("DELETE", f"{PROFILES}/{gone['id']}")
    with start() as live:
        assert live.data("GET", PROFILES)["profiles"] == made
        assert live.error("POST", PROFILES, {"name": "calm"})[1] == "PROFILE_ALREADY_EXISTS"
        assert create(live, "gone")["id"] != gone["id"]
