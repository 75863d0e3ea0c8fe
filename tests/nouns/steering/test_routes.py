"""/api/saes and /api/saes/steering against a running service and the demo SAEs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import socketio

from steerserve import demo
from tests.resident import engine_of
from tests.service import JSON, Running, add_sae

STEERING = "/api/saes/steering"
FIRST, LAST = demo.saes()[0], demo.saes()[-1]
D_SAE = json.loads((FIRST.path / "cfg.json").read_text())["d_sae"]


def greedy(live: Running) -> str:
    answer = live.complete("One day", max_tokens=24, temperature=0)
    return str(answer["choices"][0]["text"])


def set_one(live: Running, index: int, value: float) -> dict[str, Any]:
    return live.data("POST", STEERING, {"feature_idx": index, "value": value})


# ---------------------------------------------------------------- SAEs


@pytest.mark.shows("saes.1", "saes.4")
def test_an_sae_is_registered_once_from_its_folder(shared: Running) -> None:
    first = add_sae(shared, FIRST)
    assert first == add_sae(shared, FIRST)
    assert first.startswith("sae_")
    record = shared.data("GET", f"/api/saes/{first}")
    assert record["d_sae"] == D_SAE
    assert record["trained_layer"] == FIRST.layer
    assert record["trained_on"] == demo.MODEL_NAME
    assert record["status"] == "cached"
    assert record["hook_name"] == f"blocks.{FIRST.layer}.hook_resid_post"
    listed = shared.data("GET", "/api/saes")
    assert record in listed["saes"]
    assert listed["total"] == len(listed["saes"])
    assert listed["attachment"]["is_attached"] is False


@pytest.mark.shows("download-errors.6")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "VALIDATION_ERROR"),
        ({"local_path": "x"}, 400, "INVALID_LOCAL_PATH"),
        ({"local_path": "/etc"}, 400, "INVALID_LOCAL_PATH"),
        ({"local_path": str(demo.MODEL_DIR)}, 400, "SAE_INCOMPATIBLE"),
    ],
)
def test_a_bad_registration_is_refused(
    shared: Running, body: dict[str, Any], status: int, code: str
) -> None:
    assert shared.error("POST", "/api/saes/download", body)[:2] == (status, code)


@pytest.mark.shows(
    "attach-response.6",
    "overview.2",
    "saes.5",
    "saes.8",
    "saes.9",
    "saes.10",
    "saes.17",
    "states.7",
    "states.8",
    "states.9",
    "steering-errors.3",
)
def test_attach_reports_where_it_hooked_and_locks_the_model(shared: Running) -> None:
    sae_id = add_sae(shared, FIRST)
    attached = shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": FIRST.layer})
    try:
        assert attached["status"] == "attached"
        assert attached["layer_module_path"] == f"model.layers.{FIRST.layer}"
        assert attached["warnings"] == []
        assert attached["memory_usage_mb"] >= 1
        model = shared.data("GET", "/api/models")["models"][0]
        assert model["locked"] is True
        again = shared.error("POST", f"/api/saes/{sae_id}/attach", {"layer": FIRST.layer})
        assert again[:2] == (409, "SAE_ALREADY_ATTACHED")
        assert shared.error("DELETE", f"/api/saes/{sae_id}")[:2] == (409, "SAE_ALREADY_ATTACHED")
        status = shared.data("GET", "/api/saes/attachment")
        assert (status["sae_id"], status["layer"]) == (sae_id, FIRST.layer)
        assert shared.data("GET", f"/api/saes/{sae_id}")["status"] == "attached"
    finally:
        freed = shared.data("POST", f"/api/saes/{sae_id}/detach")
    assert freed["status"] == "detached"
    assert shared.data("GET", "/api/models")["models"][0]["locked"] is False
    assert shared.error("POST", f"/api/saes/{sae_id}/detach")[:2] == (400, "SAE_NOT_ATTACHED")
    assert shared.data("GET", f"/api/saes/{sae_id}")["status"] == "cached"


@pytest.mark.shows("saes.7", "states.9")
def test_a_layer_mismatch_warns_and_a_missing_layer_is_incompatible(shared: Running) -> None:
    sae_id = add_sae(shared, FIRST)
    other = 0 if FIRST.layer else 1
    path = f"/api/saes/{sae_id}/compatibility"
    fits = shared.data("GET", f"{path}?layer={FIRST.layer}")
    assert fits == {"compatible": True, "errors": [], "warnings": []}
    differs = shared.data("GET", f"{path}?layer={other}")
    assert differs["compatible"] is True
    assert f"layer {FIRST.layer}" in differs["warnings"][0]
    missing = shared.data("GET", f"{path}?layer=99")
    assert missing["compatible"] is False
    refused = shared.error("POST", f"/api/saes/{sae_id}/attach", {"layer": 99})
    assert refused[:2] == (400, "SAE_INCOMPATIBLE")
    assert shared.error("POST", f"/api/saes/{sae_id}/attach", {"layer": -1})[0] == 422
    assert shared.error("GET", path)[:2] == (422, "VALIDATION_ERROR")


# ---------------------------------------------------------------- steering


@pytest.mark.shows("states.11", "steering.2", "steering-errors.2")
def test_every_route_needs_an_attached_sae(shared: Running) -> None:
    calls = [
        ("GET", STEERING, None),
        ("POST", STEERING, {"feature_idx": 1, "value": 1}),
        ("POST", f"{STEERING}/batch", {"steering": {"1": 1}}),
        ("POST", f"{STEERING}/enable", None),
        ("POST", f"{STEERING}/disable", None),
        ("DELETE", f"{STEERING}/1", None),
        ("DELETE", STEERING, None),
    ]
    for method, path, body in calls:
        assert shared.error(method, path, body)[:2] == (400, "SAE_NOT_ATTACHED"), path


@pytest.mark.shows(
    "steering-state.1",
    "steering-state.2",
    "states.11",
    "states.12",
    "states.13",
    "states.14",
    "states.15",
    "steering.3",
    "steering.4",
    "steering.5",
    "steering.6",
    "steering.7",
    "steering.8",
    "steering.9",
)
def test_setting_enables_disabling_keeps_removing_the_last_disables(steered: Running) -> None:
    assert steered.data("GET", STEERING) == {"enabled": False, "values": {}}
    assert set_one(steered, 5, 12.5) == {"enabled": True, "values": {"5": 12.5}}
    assert steered.data("POST", f"{STEERING}/disable") == {"enabled": False, "values": {"5": 12.5}}
    assert steered.data("POST", f"{STEERING}/enable")["enabled"] is True
    batch = steered.data("POST", f"{STEERING}/batch", {"steering": {"6": -1, "7": 200}})
    assert batch == {"enabled": True, "values": {"5": 12.5, "6": -1.0, "7": 200.0}}
    assert steered.data("DELETE", f"{STEERING}/5")["values"] == {"6": -1.0, "7": 200.0}
    assert steered.data("DELETE", f"{STEERING}/7")["enabled"] is True
    assert steered.data("DELETE", f"{STEERING}/6") == {"enabled": False, "values": {}}
    set_one(steered, 1, 1)
    assert steered.data("DELETE", STEERING) == {"enabled": False, "values": {}}


@pytest.mark.shows("envelope.5", "states.11", "steering.5", "steering.11", "steering-errors.6")
def test_a_bad_index_in_a_batch_changes_nothing(steered: Running) -> None:
    before, held = set_one(steered, 5, 3), engine_of(steered).state.steering
    status, code, details = steered.error(
        "POST", f"{STEERING}/batch", {"steering": {"1": 1, str(D_SAE): 2}}
    )
    assert (status, code) == (400, "INVALID_FEATURE_INDEX")
    assert details == {"feature_idx": D_SAE, "d_sae": D_SAE}
    assert steered.data("GET", STEERING) == before
    assert engine_of(steered).state.steering == held


@pytest.mark.shows("steering-state.3", "steering.11", "limits.2", "steering-errors.6")
@pytest.mark.parametrize("index", [-1, D_SAE, 2**40, 10**25])
def test_an_index_outside_the_sae_is_refused(steered: Running, index: int) -> None:
    body = {"feature_idx": index, "value": 1}
    assert steered.error("POST", STEERING, body)[:2] == (400, "INVALID_FEATURE_INDEX")
    if index < 2**40:
        assert steered.error("DELETE", f"{STEERING}/{index}")[1] == "INVALID_FEATURE_INDEX"


@pytest.mark.shows(
    "steering-state.3",
    "states.11",
    "steering.12",
    "limits.1",
    "steering-errors.8",
    "steering-errors.9",
)
@pytest.mark.parametrize(
    "content",
    [
        b'{"feature_idx": 1, "value": 200.001}',
        b'{"feature_idx": 1, "value": -201}',
        b'{"feature_idx": 1, "value": NaN}',
        b'{"feature_idx": 1, "value": Infinity}',
        b'{"feature_idx": 1, "value": 1e400}',
        b'{"feature_idx": 1, "value": 1' + b"0" * 400 + b"}",
        b'{"feature_idx": 1, "value": null}',
        b'{"feature_idx": 1, "feature_idx": 2, "value": 1}',
        b'{"feature_idx": 1, "value": "3"}',
        b'{"feature_idx": 1, "value": true}',
        b'{"feature_idx": 1.5, "value": 1}',
        b'{"feature_idx": "1", "value": 1}',
        b'{"feature_idx": true, "value": 1}',
        b'{"value": 1}',
        b"{",
        b"[]",
    ],
)
def test_a_bad_value_is_a_validation_error_and_changes_nothing(
    steered: Running, content: bytes
) -> None:
    answer = steered.http.post(STEERING, content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert steered.data("GET", STEERING) == {"enabled": False, "values": {}}


@pytest.mark.shows("steering.5", "steering.12", "limits.3")
@pytest.mark.parametrize(
    "values",
    [
        *({"1": value} for value in (300, -200.5, True, "1", None, [], {})),
        {str(i): 1.0 for i in range(1001)},
    ],
    ids=lambda values: repr(values)[:16],
)
def test_a_bad_batch_is_a_validation_error(steered: Running, values: dict[str, Any]) -> None:
    refused = steered.error("POST", f"{STEERING}/batch", {"steering": values})
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert steered.data("GET", STEERING)["values"] == {}


@pytest.mark.parametrize(
    "key", ["x", "1.0", "", " 1", "01", "-0", "+1", "1_0", "1e2", "١", "1\n", "9" * 65]
)
def test_a_key_that_is_no_index_rejects_the_whole_batch(steered: Running, key: str) -> None:
    before = set_one(steered, 5, 3)
    refused = steered.error("POST", f"{STEERING}/batch", {"steering": {"1": 1, key: 1}})
    assert refused == (400, "INVALID_FEATURE_INDEX", {"feature_idx": key, "d_sae": D_SAE})
    assert steered.data("GET", STEERING) == before


def test_a_key_that_is_half_a_character_can_be_answered(steered: Running) -> None:
    content = b'{"steering": {"\\ud800": 1}}'
    answer = steered.http.post(f"{STEERING}/batch", content=content, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_FEATURE_INDEX")


@pytest.mark.parametrize("content", [b'{"1": 1, "1": 2}', b'{"1": NaN}', b"[]", b"null", b'"1"'])
def test_a_batch_that_is_no_map_of_numbers_is_refused(steered: Running, content: bytes) -> None:
    before = set_one(steered, 5, 3)
    whole = b'{"steering": ' + content + b"}"
    answer = steered.http.post(f"{STEERING}/batch", content=whole, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert steered.data("GET", STEERING) == before


def test_an_empty_batch_changes_nothing(steered: Running) -> None:
    empty = steered.data("POST", f"{STEERING}/batch", {"steering": {}})
    assert empty == {"enabled": False, "values": {}}
    assert steered.error("POST", f"{STEERING}/batch", {})[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.shows("steering-state.3", "limits.1", "limits.2")
def test_both_bounds_and_both_zeros_are_taken(steered: Running) -> None:
    values = {"0": -200, "1": 200, "2": 0, "3": -0.0, str(D_SAE - 1): 199.99999999999997}
    answer = steered.post(f"{STEERING}/batch", {"steering": values})
    assert answer.json()["data"]["values"] == values
    assert "-0.0" not in answer.text


def test_enabling_without_values_steers_nothing_and_says_so(steered: Running) -> None:
    plain = greedy(steered)
    assert steered.data("POST", f"{STEERING}/enable") == {"enabled": True, "values": {}}
    assert greedy(steered) == plain
    assert steered.data("GET", "/api/saes/attachment")["steering_apply_count"] == 0
    assert steered.data("POST", f"{STEERING}/disable") == {"enabled": False, "values": {}}


# ---------------------------------------------------------------- which SAE


@pytest.fixture
def both(steered: Running) -> Iterator[tuple[Running, str, str]]:
    """Two attached SAEs and their ids; steering is off."""
    first = steered.data("GET", "/api/saes/attachment")["sae_id"]
    second = add_sae(steered, LAST)
    steered.data(
        "POST", "/api/saes/attach-set", {"saes": [{"sae_id": second, "layer": LAST.layer}]}
    )
    yield steered, first, second
    steered.data("POST", f"/api/saes/{second}/detach")


def test_the_steering_routes_act_on_the_sae_that_a_request_names(
    both: tuple[Running, str, str],
) -> None:
    live, first, second = both
    one, two = f"{first}@{FIRST.layer}", f"{second}@{LAST.layer}"
    assert set_one(live, 1, 5) == {"enabled": True, "values": {"1": 5.0}}
    by_id = {"feature_idx": 2, "value": 7, "sae_id": second}
    told = live.data("POST", STEERING, by_id)
    assert told == {"enabled": True, "values": {"2": 7.0}, "others": {one: {"1": 5.0}}}
    batch = {"steering": {"3": -1}, "layer": LAST.layer}
    assert live.data("POST", f"{STEERING}/batch", batch)["values"] == {"2": 7.0, "3": -1.0}
    everything = {"enabled": True, "values": {"1": 5.0}, "others": {two: {"2": 7.0, "3": -1.0}}}
    assert live.data("GET", STEERING) == everything
    assert live.data("GET", f"{STEERING}?sae_id={first}&layer={FIRST.layer}") == everything
    assert live.data("GET", f"{STEERING}?sae_id={second}")["values"] == {"2": 7.0, "3": -1.0}
    removed = live.data("DELETE", f"{STEERING}/3?sae_id={second}")
    assert removed["values"] == {"2": 7.0}
    cleared = live.data("DELETE", f"{STEERING}?layer={LAST.layer}")
    assert cleared == {"enabled": True, "values": {}, "others": {one: {"1": 5.0}}}
    assert live.data("DELETE", f"{STEERING}?sae_id={first}") == {"enabled": False, "values": {}}


def test_an_sae_that_is_not_attached_is_refused_and_nothing_changes(
    both: tuple[Running, str, str],
) -> None:
    live, first, second = both
    before = set_one(live, 1, 5)
    for where in ({"sae_id": "sae_none"}, {"layer": 99}, {"sae_id": first, "layer": LAST.layer}):
        query = "&".join(f"{name}={value}" for name, value in where.items())
        for method, path, body in [
            ("GET", f"{STEERING}?{query}", None),
            ("POST", STEERING, {"feature_idx": 1, "value": 1, **where}),
            ("POST", f"{STEERING}/batch", {"steering": {"1": 1}, **where}),
            ("DELETE", f"{STEERING}/1?{query}", None),
            ("DELETE", f"{STEERING}?{query}", None),
        ]:
            status, code, details = live.error(method, path, body)
            assert (status, code) == (400, "SAE_NOT_ATTACHED"), path
            assert {"sae_id": second, "layer": LAST.layer} in details["attached"]
    assert live.data("GET", STEERING) == before
    for bad in ({"sae_id": ""}, {"sae_id": 7}, {"layer": -1}, {"layer": "1"}):
        assert live.error("POST", STEERING, {"feature_idx": 1, "value": 1, **bad})[0] == 422
    assert live.error("GET", f"{STEERING}?layer=x")[:2] == (422, "VALIDATION_ERROR")


# ---------------------------------------------------------------- the rest


def test_enable_takes_the_older_toggle(steered: Running) -> None:
    set_one(steered, 5, 3)
    off = steered.data("POST", f"{STEERING}/enable?enabled=false")
    assert off == {"enabled": False, "values": {"5": 3.0}}
    assert steered.data("POST", f"{STEERING}/enable?enabled=true")["enabled"] is True
    assert steered.error("POST", f"{STEERING}/enable?enabled=perhaps")[:2] == (
        422,
        "VALIDATION_ERROR",
    )


@pytest.mark.parametrize("index", ["x", "01", "+1", "1.0", "-0", "1_0", "%20", "9" * 65])
def test_an_index_in_a_path_is_written_one_way(steered: Running, index: str) -> None:
    before = set_one(steered, 1, 3)
    refused = steered.error("DELETE", f"{STEERING}/{index}")
    assert refused[:2] == (422, "VALIDATION_ERROR")
    assert steered.data("GET", STEERING) == before


@pytest.mark.shows("steering.5", "limits.3")
def test_a_thousand_features_are_set_at_once(steered: Running) -> None:
    values = {str(i): 0.01 for i in range(1000)}
    assert len(steered.data("POST", f"{STEERING}/batch", {"steering": values})["values"]) == 1000


@pytest.mark.shows(
    "overview.2", "states.12", "states.13", "steering.6", "steering.7", "steering.10"
)
def test_steering_changes_the_text_and_zero_and_disabled_do_not(steered: Running) -> None:
    plain = greedy(steered)
    set_one(steered, 5, 60)
    pushed = greedy(steered)
    assert pushed != plain
    steered.data("POST", f"{STEERING}/disable")
    assert greedy(steered) == plain
    steered.data("POST", f"{STEERING}/enable")
    assert greedy(steered) == pushed
    set_one(steered, 5, 0)
    assert greedy(steered) == plain


@pytest.mark.shows("overview.8", "steering.1")
def test_steering_applies_to_every_completion_while_it_is_active(steered: Running) -> None:
    chat = {"messages": [{"role": "user", "content": "Tell me a story."}]}
    asked = {
        "/v1/chat/completions": chat,
        "/v1/completions": {"prompt": "One day"},
    }

    def texts() -> dict[tuple[str, bool], str]:
        seen = {}
        for path, fields in asked.items():
            body = {"model": demo.MODEL_NAME, "max_tokens": 16, "temperature": 0, **fields}
            (choice,) = steered.post(path, body).json()["choices"]
            seen[path, False] = choice.get("text") or choice["message"]["content"]
            *chunks, _ = steered.stream(path, body)
            parts = [choice for chunk in chunks for choice in chunk["choices"]]
            seen[path, True] = "".join(
                part.get("text") or part.get("delta", {}).get("content") or "" for part in parts
            )
        return seen

    plain = texts()
    set_one(steered, 5, 60)
    pushed = texts()
    assert all(pushed[form] != plain[form] for form in plain)
    steered.data("POST", f"{STEERING}/disable")
    assert texts() == plain


@pytest.mark.shows("attachment-status.7")
def test_the_apply_count_counts_the_steered_passes_only(steered: Running) -> None:
    def count() -> int:
        return int(steered.data("GET", "/api/saes/attachment")["steering_apply_count"])

    steered.complete("One day", max_tokens=5, seed=1)
    assert count() == 0
    set_one(steered, 5, 1)
    steered.complete("One day", max_tokens=5, seed=1)
    # one prefill pass gives the first token, each further token takes one
    assert count() == 5
    steered.data("POST", f"{STEERING}/disable")
    steered.complete("One day", max_tokens=5, seed=1)
    assert count() == 5


@pytest.mark.shows("steering.1")
def test_a_change_takes_effect_within_a_running_stream(steered: Running) -> None:
    body = {
        "model": demo.MODEL_NAME,
        "prompt": ["One day"] * 8,
        "max_tokens": 600,
        "temperature": 2.0,
    }
    with steered.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        set_one(steered, 5, 1)
        while not steered.data("GET", "/api/saes/attachment")["steering_apply_count"]:
            next(lines)


async def test_steering_updates_are_told_over_the_socket(steered: Running) -> None:
    client = socketio.AsyncSimpleClient()
    await client.connect(steered.url, transports=["websocket"])
    try:
        set_one(steered, 5, 2)
        name, body = await client.receive(timeout=20)
        assert name == "steering:update"
        assert body["values"] == {"5": 2.0}
        assert body["activeCount"] == body["active_count"] == 1
        steered.data("DELETE", STEERING)
        _, body = await client.receive(timeout=20)
        assert (body["enabled"], body["activeCount"]) == (False, 0)
    finally:
        await client.disconnect()
