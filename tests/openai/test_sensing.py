"""Cluster sensing over HTTP: the firings of real requests are those of an independent numpy pass over the hidden
states, and everything that operators do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import socketio

from steerserve import demo
from steerserve.rules.steering import evidence
from tests.openai.conftest import piece_of
from tests.openai.numpy_pass import (
    PROMPTS,
    NumpyPass,
    Spans,
    ask,
    events,
    gap,
    of_request,
    often,
    spans,
)
from tests.service import JSON, Running

SENSING = "/api/sensing"
SAE = demo.saes()[0]
MEMBERS = 4
EPSILON = 0.1


@pytest.fixture(scope="module")
def truth() -> NumpyPass:
    return NumpyPass()


@pytest.fixture(scope="module")
def thetas(shared: Running, truth: NumpyPass) -> dict[int, float]:
    """The features that fire most often over the answers to the prompts, each with a threshold that parts its
    activations clearly."""
    with ThreadPoolExecutor(8) as pool:
        texts = [text for _, text in pool.map(lambda prompt: ask(shared, prompt), PROMPTS)]
    passes = [
        truth.activations(truth.tokens(prompt, text)[0], SAE)
        for prompt, text in zip(PROMPTS, texts, strict=True)
    ]
    values = np.concatenate(passes)
    return {feature: gap(values[:, feature]) for feature in often(values, MEMBERS)}


def document(thetas: dict[int, float], **changes: Any) -> dict[str, Any]:
    members = [
        {"feature_idx": feature, "strength": 0.0, "max_activation": theta / EPSILON}
        for feature, theta in thetas.items()
    ]
    return {
        "kind": "mistudio.cluster-definition",
        "schema_version": "1",
        "name": "sensed words",
        "display_token": "\u0120sea",
        "members": members,
        "sensing": {"min_k": 1, "context_tokens": 3},
    } | changes


@pytest.fixture
def sensed(steered: Running, thetas: dict[int, float]) -> Iterator[tuple[Running, str]]:
    """The shared service with an active cluster that is sensed, and the id of the cluster."""
    steered.data("POST", "/api/clusters/import", document(thetas))
    cluster_id = find(steered)
    assert cluster_id is not None
    steered.data("POST", f"/api/clusters/{cluster_id}/activate")
    enabled = steered.data("POST", f"{SENSING}/{cluster_id}/enable")
    assert enabled == {"profile_id": cluster_id, "sensing_enabled": True, "armed": True}
    yield steered, cluster_id
    if find(steered) is not None:
        steered.data("DELETE", f"/api/clusters/{cluster_id}")


def find(live: Running) -> str | None:
    listed = live.data("GET", "/api/clusters")["clusters"]
    return next((one["id"] for one in listed), None)


def same(told: list[dict[str, Any]], expected: Spans) -> None:
    assert [(e["pos_start"], e["pos_end"], e["phase"]) for e in told] == [e[:3] for e in expected]
    for event, (_, _, _, peaks) in zip(told, expected, strict=True):
        fired = dict(event["fired_members"])
        assert fired == pytest.approx(peaks, rel=0.03)
        assert event["fired_count"] == len(peaks)


@pytest.mark.parametrize("stream", [False, True])
def test_the_firings_of_a_request_are_those_of_an_independent_pass(
    sensed: tuple[Running, str], truth: NumpyPass, thetas: dict[int, float], stream: bool
) -> None:
    live, _ = sensed
    clear = iter(PROMPTS)
    tokens: list[int] = []
    while not (tokens and truth.is_clear(tokens, SAE, thetas)):
        asked = next(clear)
        request_id, text = ask(live, asked, stream=stream)
        tokens, prompt = truth.tokens(asked, text)
    expected = spans(truth.activations(tokens, SAE), prompt, thetas, 1)
    assert {phase for _, _, phase, _ in expected} == {"prefill", "decode"}
    same(of_request(events(live, SENSING), request_id), expected)


def test_sixteen_rows_of_one_batch_have_their_own_firings(
    sensed: tuple[Running, str], truth: NumpyPass, thetas: dict[int, float]
) -> None:
    live, _ = sensed
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda prompt: ask(live, prompt), PROMPTS[1:]))
    assert len(answers) == 16
    found, fired, clear = events(live, SENSING), 0, 0
    for prompt, (request_id, text) in zip(PROMPTS[1:], answers, strict=True):
        tokens, size = truth.tokens(prompt, text)
        if not truth.is_clear(tokens, SAE, thetas):
            continue
        clear += 1
        expected = spans(truth.activations(tokens, SAE), size, thetas, 1)
        same(of_request(found, request_id), expected)
        fired += len(expected)
    assert clear >= 6
    assert fired >= 16


@pytest.mark.shows("cluster-sensing.3", "other-resources.2")
def test_an_event_shows_the_text_around_it(sensed: tuple[Running, str]) -> None:
    live, cluster_id = sensed
    ask(live, PROMPTS[0])
    listed = events(live, SENSING)[0]
    event = live.data("GET", f"{SENSING}/events/{listed['id']}")
    assert event == listed
    assert event["profile_id"] == cluster_id
    parts = event["context_parts"]
    assert set(parts) == {"before", "span", "after"}
    assert parts["span"].strip()
    assert len(event["context_token_ids"]) <= 7 + event["pos_end"] - event["pos_start"]
    assert event["summary"].startswith("sea: ")
    assert event["summary"].split(": ")[0] not in PROMPTS[0]


@pytest.mark.shows("events.6", "events.7")
async def test_a_firing_is_told_over_the_socket_without_its_text(
    sensed: tuple[Running, str],
) -> None:
    live, cluster_id = sensed
    client = socketio.AsyncSimpleClient()
    await client.connect(live.url, transports=["websocket"])
    try:
        request_id, _ = await asyncio.to_thread(ask, live, PROMPTS[0])
        name, told = "", {}
        while name != "sensing:event":
            name, told = await client.receive(timeout=20)
    finally:
        await client.disconnect()
    assert (told["profile_id"], told["request_id"]) == (cluster_id, request_id)
    event = live.data("GET", f"{SENSING}/events/{told['id']}")
    hidden = {"context_text", "context_token_ids", "context_parts"}
    assert hidden <= set(event)
    assert told.items() >= {k: v for k, v in event.items() if k not in hidden}.items()
    assert not [key for key in told if "context" in key.lower()]
    assert event["context_parts"]["before"] + event["context_parts"]["span"] not in str(told)


@pytest.mark.shows(
    "cluster-sensing.1",
    "cluster-sensing.2",
    "cluster-sensing.4",
    "circuit-errors.7",
    "cluster-sensing.3",
)
def test_events_are_listed_scoped_and_cleared(sensed: tuple[Running, str]) -> None:
    live, cluster_id = sensed
    ask(live, PROMPTS[0])
    found = events(live, SENSING, profile_id=cluster_id)
    assert [event["id"] for event in found] == sorted((e["id"] for e in found), reverse=True)
    assert events(live, SENSING, profile_id="prof_000000000000") == []
    assert events(live, SENSING, since=found[0]["created_at"]) == []
    assert len(events(live, SENSING, limit=1)) == 1
    status = live.data("GET", f"{SENSING}/status")
    assert status["armed"]
    assert status["profile_id"] == cluster_id
    assert (status["member_count"], status["min_k"]) == (MEMBERS, 1)
    assert status["threshold_mode"] == "epsilon_max"
    assert status["note"] == evidence.OBSERVATION
    assert status["last_request_overhead_ms"] > 0
    assert status["retention"] == {"max_events_per_cluster": 1000, "max_age_days": 7.0}
    assert status["enabled_clusters"] == [
        {"id": cluster_id, "name": "sensed words", "is_active": True}
    ]
    cleared = live.data("DELETE", f"{SENSING}/events?profile_id={cluster_id}")
    assert cleared == {"deleted": len(found)}
    assert live.error("GET", f"{SENSING}/events/{found[0]['id']}")[:2] == (
        404,
        "SENSING_EVENT_NOT_FOUND",
    )


def test_what_is_no_cluster_is_not_sensed_and_the_refusal_says_where(
    sensed: tuple[Running, str],
) -> None:
    live, _ = sensed
    made = live.data("POST", "/api/profiles", {"name": "plain"}, 201)["id"]
    try:
        status, code, details = live.error("POST", f"{SENSING}/{made}/enable")
    finally:
        live.data("DELETE", f"/api/profiles/{made}")
    assert (status, code, details["source_kind"]) == (422, "VALIDATION_ERROR", "manual")
    assert [one["loc"] for one in details["errors"]] == [["path", "profile_id"]]


@pytest.mark.parametrize("path", [SENSING, "/api/circuit-sensing"])
@pytest.mark.parametrize(
    ("since", "are_newer"),
    [("0001-01-01T00:00:00%2B14:00", True), ("9999-12-31T23:59:59-14:00", False)],
)
def test_a_time_that_is_no_year_in_utc_is_before_or_after_all_events(
    sensed: tuple[Running, str], path: str, since: str, are_newer: bool
) -> None:
    live, _ = sensed
    ask(live, PROMPTS[0])
    every = live.data("GET", f"{path}/events")["events"]
    newer = live.data("GET", f"{path}/events?since={since}")["events"]
    assert newer == (every if are_newer else [])
    assert bool(every) == (path == SENSING)


def test_a_profile_route_tells_too_whether_an_activated_cluster_is_sensed(
    sensed: tuple[Running, str],
) -> None:
    live, cluster_id = sensed
    done = live.data("POST", f"/api/profiles/{cluster_id}/activate")
    assert done["sensing_armed"] is True
    live.data("POST", f"{SENSING}/{cluster_id}/disable")
    done = live.data("POST", f"/api/profiles/{cluster_id}/activate")
    assert done["sensing_armed"] is False


@pytest.mark.shows("cluster-sensing.7")
def test_a_quorum_is_kept_beside_the_document(sensed: tuple[Running, str]) -> None:
    live, cluster_id = sensed
    before = live.data("GET", f"/api/clusters/{cluster_id}/export")
    config = f"{SENSING}/{cluster_id}/config"
    made = live.data("PUT", config, {"min_k": MEMBERS})
    assert made == {
        "profile_id": cluster_id,
        "min_k": MEMBERS,
        "effective_min_k": MEMBERS,
        "armed": True,
    }
    status, code, details = live.error("PUT", config, {"min_k": MEMBERS + 1})
    assert (status, code) == (422, "VALIDATION_ERROR")
    (fault,) = details.pop("errors")
    assert fault["loc"] == ["body", "min_k"]
    assert details == {
        "min_k": MEMBERS + 1,
        "member_count": MEMBERS,
        "sensable_count": MEMBERS,
    }
    assert live.data("GET", f"/api/clusters/{cluster_id}/export") == before
    # null asks for all, whatever the document says
    assert live.data("PUT", config, {"min_k": None})["effective_min_k"] == MEMBERS
    assert live.data("PUT", config, {"min_k": 1})["effective_min_k"] == 1
    for wrong in ({"min_k": 0}, {"min_k": 1.5}, {"min_k": True}, {}):
        assert live.error("PUT", config, wrong)[:2] == (422, "VALIDATION_ERROR")
    twice = live.http.put(config, content=b'{"min_k": 1, "min_k": 2}', headers=JSON)
    assert (twice.status_code, twice.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert live.data("GET", f"{SENSING}/status")["min_k"] == 1


WAYS: dict[str, Callable[[Running, str], Any]] = {
    "disable": lambda live, of: live.data("POST", f"{SENSING}/{of}/disable"),
    "deactivate": lambda live, of: live.data("POST", f"/api/clusters/{of}/deactivate"),
    "delete": lambda live, of: live.data("DELETE", f"/api/clusters/{of}"),
    "detach": lambda live, of: live.data(
        "POST", f"/api/saes/{live.data('GET', '/api/saes/attachment')['sae_id']}/detach"
    ),
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_turn_of_a_chat_does_not_report_the_answer_of_the_first_again(
    sensed: tuple[Running, str], stream: bool
) -> None:
    live, _ = sensed
    turns = [{"role": "user", "content": PROMPTS[0]}]
    first_id, text = chat(live, turns, stream=stream)
    first = of_request(events(live, SENSING), first_id)
    assert {event["phase"] for event in first} == {"prefill", "decode"}
    turns += [{"role": "assistant", "content": text}, {"role": "user", "content": PROMPTS[1]}]
    second_id, _ = chat(live, turns, stream=stream)
    second = of_request(events(live, SENSING), second_id)
    assert second
    assert min(event["pos_start"] for event in second) > max(event["pos_end"] for event in first)


def chat(live: Running, turns: list[dict[str, str]], *, stream: bool) -> tuple[str, str]:
    """The id and the text of a greedy answer to a chat."""
    body = {"model": demo.MODEL_NAME, "messages": turns, "max_tokens": 16, "temperature": 0}
    if not stream:
        answer = live.post("/v1/chat/completions", body).json()
        return answer["id"], answer["choices"][0]["message"]["content"]
    sent = live.stream("/v1/chat/completions", body | {"stream": True})
    chunks = [chunk for chunk in sent if isinstance(chunk, dict)]
    return chunks[0]["id"], "".join(map(piece_of, chunks))
