"""Circuit sensing over HTTP: the firings of edges in real requests are those of an independent numpy pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import socketio

from steerserve import demo
from steerserve.rules.steering import evidence
from tests.openai.numpy_pass import PROMPTS, NumpyPass, Values, ask, events, gap, of_request, often
from tests.service import Running, add_sae

SENSING = "/api/circuit-sensing"
LOW, HIGH = demo.saes()
EPSILON = 0.1
LAG = 3
Thetas = dict[tuple[int, int], float]
"""(layer, feature) -> threshold."""


@pytest.fixture(scope="module")
def truth() -> NumpyPass:
    return NumpyPass()


@pytest.fixture(scope="module")
def thetas(shared: Running, truth: NumpyPass) -> Thetas:
    """Two features of each layer that fire often, but not everywhere, with thresholds that part their activations."""
    found: Thetas = {}
    texts = {prompt: ask(shared, prompt)[1] for prompt in PROMPTS[:8]}
    for sae in (LOW, HIGH):
        passes = [truth.activations(truth.tokens(*pair)[0], sae) for pair in texts.items()]
        values = np.concatenate(passes)
        for feature in often(values, 2, 0.25):
            found[sae.layer, feature] = gap(values[:, feature])
    return found


def at_layer(thetas: Thetas, sae: demo.DemoSae) -> dict[int, float]:
    return {feature: theta for (layer, feature), theta in thetas.items() if layer == sae.layer}


def edges_of(thetas: Thetas) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    low, high = ([at for at in thetas if at[0] == sae.layer] for sae in (LOW, HIGH))
    return [(up, down) for up in low for down in high]


def document(thetas: Thetas) -> dict[str, Any]:
    """A circuit of all edges from the lower to the upper features, and three edges that cannot be observed. Its
    strengths are 0, so that it does not change the text."""
    edges: list[dict[str, Any]] = [
        {"up": end(*up), "down": end(*down), "rung": 0, "type": "computed"}
        for up, down in edges_of(thetas)
    ]
    (up, down), *_ = edges_of(thetas)
    edges += [
        {"up": {"layer": up[0], "kind": "cluster"}, "down": end(*down)},
        {"up": end(*up), "down": end(HIGH.layer + 1, 5)},
        {"up": end(*up), "down": end(HIGH.layer, 1000)},
    ]
    members = [
        {
            "layer": layer,
            "feature": {"feature_idx": f, "strength": 0.0, "max_activation": theta / EPSILON},
        }
        for (layer, f), theta in thetas.items()
    ]
    return {
        "kind": "mistudio.circuit-definition",
        "schema_version": "1",
        "name": "sensed edges",
        "saes": [{"layer": sae.layer} for sae in (LOW, HIGH)],
        "members": members,
        "edges": edges,
        "sensing": {"max_token_lag": LAG, "context_tokens": 3},
    }


def end(layer: int, feature: int) -> dict[str, int]:
    return {"layer": layer, "feature_idx": feature}


@pytest.fixture
def circuit(shared: Running, thetas: Thetas) -> Iterator[tuple[Running, str]]:
    """The shared service with both SAEs attached and the circuit serving, and the id of the circuit."""
    saes = [{"sae_id": add_sae(shared, sae), "layer": sae.layer} for sae in (LOW, HIGH)]
    shared.data("POST", "/api/saes/attach-set", {"saes": saes})
    circuit_id = shared.data("POST", "/api/circuits/import", document(thetas))["id"]
    shared.data("POST", f"/api/circuits/{circuit_id}/activate?acknowledge_unvalidated=true")
    yield shared, circuit_id
    for row in shared.data("GET", "/api/circuits")["circuits"]:
        shared.data("DELETE", f"/api/circuits/{row['id']}")
    for sae in saes:
        if shared.data("GET", "/api/saes/attachments")["entries"]:
            shared.data("POST", f"/api/saes/{sae['sae_id']}/detach")


@pytest.fixture
def sensed(circuit: tuple[Running, str]) -> tuple[Running, str]:
    live, circuit_id = circuit
    assert live.data("POST", f"{SENSING}/{circuit_id}/enable")["armed"]
    return circuit


def brute_force(values: dict[int, Values], prompt: int, thetas: Thetas) -> list[tuple[Any, ...]]:
    """(edge, upstream position, downstream position, phase) of every firing, the newest upstream firing each."""
    found: list[tuple[Any, ...]] = []
    for up, down in edges_of(thetas):
        fires = {at: np.flatnonzero(values[at[0]][:, at[1]] > thetas[at]) for at in (up, down)}
        for q in fires[down]:
            before = [int(p) for p in fires[up] if p < q <= p + LAG]
            if before:
                key = f"{up[1]}@{up[0]}->{down[1]}@{down[0]}"
                phase = "prefill" if q < prompt else "decode"
                found.append((key, max(before), int(q), phase))
    return sorted(found)


def told(found: list[dict[str, Any]], request_id: str) -> list[tuple[Any, ...]]:
    return sorted(
        (event["edge_key"], event["up"]["pos"], event["down"]["pos"], event["phase"])
        for event in of_request(found, request_id)
    )


def test_the_edges_of_sixteen_requests_fire_as_in_an_independent_pass(
    sensed: tuple[Running, str], truth: NumpyPass, thetas: Thetas
) -> None:
    live, _ = sensed
    prompts = PROMPTS[1:]
    with ThreadPoolExecutor(16) as pool:
        streams = [index % 2 == 0 for index in range(16)]
        answers = list(pool.map(lambda p, s: ask(live, p, stream=s), prompts, streams))
    found, fired, clear = events(live, SENSING), 0, 0
    for prompt, (request_id, text) in zip(prompts, answers, strict=True):
        tokens, size = truth.tokens(prompt, text)
        if not all(truth.is_clear(tokens, sae, at_layer(thetas, sae)) for sae in (LOW, HIGH)):
            continue
        clear += 1
        values = {sae.layer: truth.activations(tokens, sae) for sae in (LOW, HIGH)}
        expected = brute_force(values, size, thetas)
        assert told(found, request_id) == expected
        fired += len(expected)
    assert clear >= 6
    assert fired >= 8


@pytest.mark.shows("circuit-sensing.1", "circuit-sensing.3", "circuit-sensing.7")
def test_enabling_tells_which_edges_are_observed_and_why_others_are_not(
    circuit: tuple[Running, str],
) -> None:
    live, circuit_id = circuit
    assert not live.data("GET", f"{SENSING}/status")["armed"]
    made = live.data("POST", f"{SENSING}/{circuit_id}/enable")
    assert (made["circuit_id"], made["enabled"], made["armed"]) == (circuit_id, True, True)
    reasons = [edge["reason"] for edge in made["unsensable_edges"]]
    assert reasons == ["endpoint_not_a_feature", "layer_not_attached", "no_activation_threshold"]
    assert made["message"] == "sensing is enabled; 4 of 7 edges are observed"
    status = live.data("GET", f"{SENSING}/status")
    assert status["armed"]
    assert status["paused_reason"] is None
    assert (status["circuit_id"], status["circuit_name"]) == (circuit_id, "sensed edges")
    assert status["layers"] == [LOW.layer, HIGH.layer]
    assert status["sensable_edges"] == 4
    assert status["unsensable_edges"] == made["unsensable_edges"]
    assert status["max_token_lag"] == LAG
    assert status["note"] == evidence.OBSERVATION
    assert status["enabled_circuits"] == [
        {"id": circuit_id, "name": "sensed edges", "is_active": True}
    ]


@pytest.mark.shows(
    "circuit-sensing.4", "circuit-sensing.5", "circuit-sensing.6", "circuit-errors.6"
)
def test_firings_are_listed_shown_and_cleared(sensed: tuple[Running, str]) -> None:
    live, circuit_id = sensed
    for prompt in PROMPTS[:4]:
        ask(live, prompt)
    found = events(live, SENSING, circuit_id=circuit_id)
    newest = found[0]
    shown = live.data("GET", f"{SENSING}/events/{newest['id']}")
    assert shown == newest
    assert shown["token_lag"] == shown["down"]["pos"] - shown["up"]["pos"] >= 1
    assert (shown["edge_rung"], shown["edge_rung_language"]) == (0, "associated")
    assert "causal" not in str(shown)
    assert set(shown["context_parts"]) == {"before", "span", "after"}
    key = newest["edge_key"].replace(">", "%3E")
    assert {event["edge_key"] for event in events(live, SENSING, edge_key=key)} == {
        newest["edge_key"]
    }
    assert events(live, SENSING, since=newest["created_at"]) == []
    assert live.data("DELETE", f"{SENSING}/events?circuit_id={circuit_id}") == {
        "deleted": len(found)
    }
    assert live.error("GET", f"{SENSING}/events/{newest['id']}")[:2] == (
        404,
        "CIRCUIT_SENSING_EVENT_NOT_FOUND",
    )
    assert live.error("POST", f"{SENSING}/circ_0/enable")[:2] == (404, "CIRCUIT_NOT_FOUND")


@pytest.mark.shows("circuit-sensing.2")
async def test_a_firing_is_told_over_the_socket_without_its_text(
    sensed: tuple[Running, str],
) -> None:
    live, circuit_id = sensed
    client = socketio.AsyncSimpleClient()
    await client.connect(live.url, transports=["websocket"])
    try:
        for prompt in PROMPTS[:4]:
            await asyncio.to_thread(ask, live, prompt)
        name, told = "", {}
        while name != "circuit:sensing:event":
            name, told = await client.receive(timeout=20)
    finally:
        await client.disconnect()
    event = live.data("GET", f"{SENSING}/events/{told['id']}")
    assert told["circuit_id"] == circuit_id
    assert {key for key in event if key not in told} == {
        "context_text",
        "context_token_ids",
        "context_parts",
    }


@pytest.mark.shows("circuit-sensing.8")
@pytest.mark.parametrize("way", ["disable", "deactivate", "delete", "detach"])
def test_after_every_way_out_no_edge_is_sensed(sensed: tuple[Running, str], way: str) -> None:
    live, circuit_id = sensed
    if way == "disable":
        made = live.data("POST", f"{SENSING}/{circuit_id}/disable")
        assert (made["enabled"], made["armed"]) == (False, False)
    elif way == "deactivate":
        live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    elif way == "delete":
        live.data("DELETE", f"/api/circuits/{circuit_id}")
    else:
        live.data("POST", f"/api/saes/{add_sae(live, HIGH)}/detach")
    assert not live.data("GET", f"{SENSING}/status")["armed"]
    before = len(events(live, SENSING))
    ask(live, PROMPTS[0])
    assert len(events(live, SENSING)) == before


def test_a_circuit_that_does_not_serve_is_enabled_for_later(circuit: tuple[Running, str]) -> None:
    live, circuit_id = circuit
    live.data("POST", f"/api/circuits/{circuit_id}/deactivate")
    made = live.data("POST", f"{SENSING}/{circuit_id}/enable")
    assert (made["enabled"], made["armed"]) == (True, False)
    assert "does not serve" in made["message"]
    live.data("POST", f"/api/circuits/{circuit_id}/activate?acknowledge_unvalidated=true")
    assert live.data("GET", f"{SENSING}/status")["armed"]
