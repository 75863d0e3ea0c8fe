"""/api/monitoring against a running service, the demo model and its first SAE."""

from __future__ import annotations

import json
from typing import Any

import pytest
import socketio

from steerserve import demo
from tests.conftest import Start
from tests.resident import crash, engine_of
from tests.service import Running, add_sae, load_demo

BASE = "/api/monitoring"
FIRST, LAST = demo.saes()[0], demo.saes()[-1]
D_SAE = json.loads((FIRST.path / "cfg.json").read_text())["d_sae"]
K = json.loads((FIRST.path / "cfg.json").read_text())["k"]
RECORD = set(
    "timestamp request_id sae_id layer choice token_position token_id activations top_k fired read_point".split()
)
FIGURES = {"feature_idx", "count", "mean", "std", "min", "max", "active_ratio"}


@pytest.fixture
def monitored(steered: Running) -> Running:
    """The shared service with the first demo SAE attached and monitored, nothing recorded."""
    steered.data("POST", f"{BASE}/configure", {})
    steered.data("DELETE", f"{BASE}/history")
    return steered


def history(live: Running, query: str = "") -> list[dict[str, Any]]:
    """The records; that of a request is there once it is answered."""
    found = live.data("GET", f"{BASE}/history{query}")
    assert found["total"] == len(found["records"])
    return list(found["records"])


def statistics(live: Running, query: str = "") -> dict[str, Any]:
    return dict(live.data("GET", f"{BASE}/statistics{query}"))


def at_position(live: Running, position: int, **fields: Any) -> dict[int, float]:
    """What a request of its own reads there, before any steering."""
    asked = {"positions": {"start": position, "end": position + 1}, "top_k": K}
    answer = live.complete(
        "One day",
        return_sae_activations=asked | {"read_point": "pre_steering"},
        temperature=0,
        **fields,
    )
    (read,) = answer["service"]["sae_activations"]["positions"]
    return {found["index"]: found["value"] for found in read["features"]}


# ---------------------------------------------------------------- configuration


@pytest.mark.shows("monitoring-resources.1", "monitoring.1", "steering-errors.2")
def test_without_an_sae_only_the_state_is_answered(shared: Running) -> None:
    state = shared.data("GET", BASE)
    # what other tests left stays until it is cleared or configured anew
    assert {type(state.pop(name)) for name in ("history_size", "history_count", "top_k")} == {int}
    assert state == {
        "enabled": False,
        "sae_attached": False,
        "sae_id": None,
        "layer": None,
        "monitored_features": [],
        "read_point": "pre_steering",
    }
    for method, path, body in (
        ("POST", f"{BASE}/configure", {}),
        ("POST", "/api/saes/monitoring", {"enabled": False}),
        ("POST", f"{BASE}/enable", {"enabled": True}),
        ("GET", f"{BASE}/history", None),
        ("DELETE", f"{BASE}/history", None),
        ("GET", f"{BASE}/statistics", None),
        ("DELETE", f"{BASE}/statistics", None),
        ("POST", f"{BASE}/statistics/top", {}),
    ):
        assert shared.error(method, path, body)[:2] == (400, "SAE_NOT_ATTACHED"), path


@pytest.mark.shows(
    "attachment-status.6 monitoring-resources.1 monitoring.2 monitoring.3 monitoring.4 saes.13",
    "limits.7 limits.8",
)
@pytest.mark.parametrize("path", [f"{BASE}/configure", "/api/saes/monitoring"])
def test_configuring_answers_the_state_and_is_told_where_the_sae_is_shown(
    steered: Running, path: str
) -> None:
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    assert steered.data("GET", "/api/saes/attachment")["monitoring_enabled"] is False
    state = steered.data("POST", path, {"features": [7, 3, 7], "history_size": 9, "top_k": 4})
    assert state["enabled"] is True
    assert (state["sae_attached"], state["sae_id"]) == (True, sae_id)
    assert state["monitored_features"] == [3, 7]
    assert (state["history_size"], state["top_k"]) == (9, 4)
    assert steered.data("GET", BASE) == state
    assert steered.data("GET", "/api/saes/attachment")["monitoring_enabled"] is True
    metrics = steered.data("GET", "/api/health/metrics")
    assert (metrics["monitoring_enabled"], metrics["monitored_features"]) == (True, 2)
    off = steered.data("POST", f"{BASE}/enable", {"enabled": False})
    assert off == state | {"enabled": False}
    metrics = steered.data("GET", "/api/health/metrics")
    assert (metrics["monitoring_enabled"], metrics["monitored_features"]) == (False, 0)
    assert steered.data("POST", f"{BASE}/enable", {"enabled": True}) == state
    again = steered.data("POST", path, {})
    assert (again["monitored_features"], again["history_size"], again["top_k"]) == ([], 100, 10)
    assert steered.data("GET", "/api/health/metrics")["monitored_features"] == D_SAE
    steered.data("POST", path, {"features": [3]})
    sent_back = steered.data("POST", path, {"features": again["monitored_features"]})
    assert sent_back == again
    assert steered.data("GET", "/api/health/metrics")["monitored_features"] == D_SAE


@pytest.mark.shows("monitoring.3", "limits.2")
def test_a_feature_outside_the_sae_is_refused_by_name(monitored: Running) -> None:
    details = {"feature_idx": D_SAE, "d_sae": D_SAE}
    before, armed = monitored.data("GET", BASE), engine_of(monitored).state.monitored
    for refused in (
        monitored.error("POST", f"{BASE}/configure", {"features": [0, D_SAE]}),
        monitored.error("GET", f"{BASE}/statistics?features=1,{D_SAE}"),
        monitored.error("GET", f"{BASE}/history?features={D_SAE}"),
        monitored.error("GET", f"{BASE}/contexts?feature={D_SAE}"),
    ):
        assert refused == (400, "INVALID_FEATURE_INDEX", details)
    assert monitored.data("GET", BASE) == before
    assert engine_of(monitored).state.monitored == armed


@pytest.mark.shows("monitoring.3", "monitoring.9", "limits.8")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/configure", {"features": [True]}),
        ("/configure", {"history_size": 1001}),
        ("/configure", {"top_k": 1001}),
        ("/enable", {"enabled": 1}),
        ("/statistics/top", {"k": 101}),
    ],
)
def test_a_bad_body_is_a_validation_error_and_changes_nothing(
    monitored: Running, path: str, body: Any
) -> None:
    before = monitored.data("GET", BASE)
    assert monitored.error("POST", BASE + path, body)[:2] == (422, "VALIDATION_ERROR")
    assert monitored.data("GET", BASE) == before


@pytest.mark.shows("monitoring.5", "limits.9")
@pytest.mark.parametrize("query", ["/history?limit=1001", "/statistics?features=1,,2"])
def test_a_bad_query_is_a_validation_error(monitored: Running, query: str) -> None:
    assert monitored.error("GET", BASE + query)[:2] == (422, "VALIDATION_ERROR")


# ---------------------------------------------------------------- records


@pytest.mark.shows("monitoring-resources.2", "overview.2", "monitoring.5")
def test_a_record_is_what_the_last_token_activated(monitored: Running) -> None:
    answer = monitored.complete("One day", max_tokens=6, temperature=0)
    (record,) = history(monitored)
    assert set(record) == RECORD
    assert record["request_id"] == answer["id"]
    assert record["read_point"] == "pre_steering"
    assert (record["layer"], record["choice"]) == (FIRST.layer, 0)
    # the last sampled token goes through no forward pass
    assert record["token_position"] == answer["usage"]["total_tokens"] - 2
    read = at_position(monitored, record["token_position"], max_tokens=6)
    seen = {found["feature_index"]: found["activation"] for found in record["activations"]}
    assert seen == pytest.approx(read, rel=1e-4)
    assert record["fired"] == len(seen) == K
    values = [found["activation"] for found in record["activations"]]
    assert values == sorted(values, reverse=True)
    assert record["top_k"] == record["activations"][:10]


@pytest.mark.shows("monitoring.5", "monitoring.6")
def test_history_is_newest_first_filtered_by_the_id_of_the_answer_and_cleared(
    monitored: Running,
) -> None:
    ids = [monitored.complete("One day", max_tokens=2, seed=i)["id"] for i in range(3)]
    chat = monitored.chat("Tell me a story.", max_tokens=2, n=2, temperature=1.0)["id"]
    assert chat.startswith("chatcmpl-")
    records = history(monitored)
    assert [r["request_id"] for r in records] == [chat, chat, *reversed(ids)]
    assert {r["choice"] for r in records[:2]} == {0, 1}
    assert history(monitored, "?limit=2") == records[:2]
    assert history(monitored, f"?request_id={ids[0]}") == records[4:]
    assert history(monitored, "?request_id=nobody") == []
    assert monitored.data("DELETE", f"{BASE}/history")["cleared"] == 5
    assert history(monitored) == []


@pytest.mark.shows("monitoring.3", "monitoring.5", "limits.8", "limits.9")
def test_50_records_are_answered_unless_the_request_names_up_to_1000(monitored: Running) -> None:
    state = monitored.data("POST", f"{BASE}/configure", {"history_size": 1000, "top_k": 1000})
    assert (state["history_size"], state["top_k"]) == (1000, 1000)
    monitored.complete(["One day"] * 51, max_tokens=1)
    assert len(history(monitored)) == 50
    assert len(history(monitored, "?limit=1000")) == 51
    assert len(history(monitored, "?limit=1")) == 1


def test_streams_and_several_prompts_are_recorded_under_their_one_id(monitored: Running) -> None:
    body = {"model": demo.MODEL_NAME, "prompt": ["One day", "Once"], "max_tokens": 2}
    events = monitored.stream("/v1/completions", body)
    records = history(monitored)
    assert {r["request_id"] for r in records} == {events[0]["id"]}
    assert {r["choice"] for r in records} == {0, 1}


def test_records_can_be_asked_for_the_values_of_a_few_features(monitored: Running) -> None:
    monitored.complete("One day", max_tokens=4, temperature=0)
    (whole,) = history(monitored)
    loud = whole["top_k"][0]
    silent = min(set(range(D_SAE)) - {a["feature_index"] for a in whole["activations"]})
    (record,) = history(monitored, f"?features={silent},{loud['feature_index']}")
    values = [loud, {"feature_index": silent, "activation": 0.0}]
    assert record == whole | {
        "activations": sorted(values, key=lambda value: value["feature_index"])
    }


@pytest.mark.shows("scoring-mode.19")
def test_scoring_and_embeddings_are_never_recorded(monitored: Running) -> None:
    monitored.complete("One day", max_tokens=1, logprobs=2)
    monitored.post("/v1/embeddings", {"model": demo.MODEL_NAME, "input": "One day"})
    assert history(monitored) == []
    assert statistics(monitored)["features"] == []


# ---------------------------------------------------------------- statistics


@pytest.mark.shows("monitoring.7", "monitoring.9")
def test_the_top_is_ordered_by_its_metric_with_ties_by_index(monitored: Running) -> None:
    monitored.complete("One day", max_tokens=8, temperature=0)
    every = statistics(monitored)["features"]
    assert [one["feature_idx"] for one in every] == sorted(one["feature_idx"] for one in every)
    for metric in ("mean", "max", "active_ratio", "count"):
        top = monitored.data("POST", f"{BASE}/statistics/top", {"k": 5, "metric": metric})
        assert (top["metric"], top["k"]) == (metric, 5)
        # all were observed at as many tokens: `count` ranks by those at which they were active
        rank = "active_ratio" if metric == "count" else metric
        best = sorted(every, key=lambda one: (-one[rank], one["feature_idx"]))[:5]
        assert top["features"] == best
    assert len(monitored.data("POST", f"{BASE}/statistics/top", {})["features"]) == 10
    named = [every[0]["feature_idx"], every[2]["feature_idx"]]
    some = statistics(monitored, f"?features={named[1]},{named[0]}")
    assert some["features"] == [every[0], every[2]]


@pytest.mark.shows("monitoring.7", "monitoring.8")
def test_a_reset_begins_anew(monitored: Running) -> None:
    monitored.complete("One day", max_tokens=3)
    before = statistics(monitored)
    gone = monitored.data("DELETE", f"{BASE}/statistics")
    assert gone["cleared"] == len(before["features"]) > 0
    after = statistics(monitored)
    assert (after["features"], after["total_activations"]) == ([], 0)
    assert after["since"] > before["since"]
    assert len(history(monitored)) == 1


# ---------------------------------------------------------------- what changes under it


def test_no_text_is_kept_unless_the_operator_wants_it(monitored: Running) -> None:
    monitored.complete("One day", max_tokens=4)
    kept = monitored.data("GET", f"{BASE}/contexts?feature=3")
    sae_id = monitored.data("GET", BASE)["sae_id"]
    assert kept == {"sae_id": sae_id, "feature_idx": 3, "size": 0, "kept": 0, "contexts": []}


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_it_goes_on_after_a_crash_of_the_engine_with_its_contexts(start: Start) -> None:
    with start(monitoring_contexts=50) as live:
        load_demo(live)
        sae_id = add_sae(live, LAST)
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": LAST.layer})
        live.data("POST", f"{BASE}/configure", {"features": [3], "top_k": 1})
        crash(live)
        state = live.data("GET", BASE)
        assert (state["enabled"], state["sae_attached"]) == (False, False)
        live.complete("One day", max_tokens=2)
        while not live.data("GET", BASE)["enabled"]:
            pass
        assert live.data("GET", BASE)["monitored_features"] == [3]
        answer = live.complete("One day", max_tokens=2)
        assert history(live)[0]["request_id"] == answer["id"]
        live.data("POST", f"{BASE}/configure", {})
        live.data("DELETE", f"{BASE}/statistics")
        answer = live.complete("One day", max_tokens=6, temperature=0)
        best = max(statistics(live)["features"], key=lambda feature: feature["max"])
        kept = live.data("GET", f"{BASE}/contexts?feature={best['feature_idx']}&limit=1")
        assert (kept["size"], kept["kept"]) == (50, statistics(live)["tokens"])
        (context,) = kept["contexts"]
        assert context["request_id"] == answer["id"]
        assert context["activation"] == pytest.approx(best["max"], rel=1e-5)
        assert "".join(context["context_parts"].values()).endswith(context["context_text"])
        assert context["context_text"] in "One day" + answer["choices"][0]["text"]


@pytest.mark.shows("events.1", "events.4", "events.5")
async def test_records_and_states_are_told_over_the_socket(monitored: Running) -> None:
    client = socketio.AsyncSimpleClient()
    await client.connect(monitored.url, transports=["websocket"])
    try:
        await client.emit("monitoring:join")
        monitored.data("POST", f"{BASE}/configure", {"top_k": 2})
        name, body = await client.receive(timeout=20)
        assert name == "monitoring:state"
        assert (body["enabled"], body["monitored_features"]) == (True, [])
        answer = monitored.complete("One day", max_tokens=3, temperature=0)
        name, body = await client.receive(timeout=20)
        assert name == "monitoring:activation"
        (record,) = history(monitored)
        assert body == {
            "timestamp": record["timestamp"],
            "request_id": answer["id"],
            "position": record["token_position"],
            "activations": record["top_k"],
        }
        assert len(body["activations"]) == 2
    finally:
        await client.disconnect()
