"""A server with continuous batching: which requests run without a slot, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from steerserve import demo
from tests.near import check_same_chat
from tests.resident import processes, standing_still
from tests.service import ONE_REPLICA, Running, add_sae, load_demo, running

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One slot and no waiting room, so that whoever needs a slot beside another is refused."""
    home = tmp_path_factory.mktemp("batched")
    room = {"max_concurrent_requests": 1, "max_pending_requests": 0, **ONE_REPLICA}
    with running(home, enable_continuous_batching=True, **room) as live:
        load_demo(live)
        yield live


def ask(live: Running, **fields: Any) -> httpx2.Response:
    body = {"model": demo.MODEL_NAME, "messages": HELLO, "max_tokens": 3, **fields}
    return live.http.post(CHAT, json=body)


@pytest.mark.shows("seeds.8", "continuous-batching.1")
@pytest.mark.parametrize(
    ("fields", "backend"),
    [
        (GREEDY, "cbm"),
        ({**GREEDY, "top_p": 1, "frequency_penalty": 0, "n": 1}, "cbm"),
        ({**GREEDY, "extra_messages": [HELLO]}, "cbm"),
        ({}, "serial"),
        ({**GREEDY, "top_p": 0.9}, "serial"),
        ({**GREEDY, "presence_penalty": 1, "frequency_penalty": -1}, "serial"),
        ({**GREEDY, "seed": 1}, "serial"),
        ({**GREEDY, "steering_intensity": "off"}, "serial"),
        ({**GREEDY, "max_tokens": 1, "logprobs": True}, "serial"),
    ],
)
def test_only_requests_of_the_fixed_parameters_run_without_a_slot(
    batched: Running, fields: dict[str, Any], backend: str
) -> None:
    answer = ask(batched, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-service-backend"] == backend


@pytest.mark.shows("chat-parameters.26", "continuous-batching.1")
def test_a_request_with_a_profile_takes_a_slot(batched: Running) -> None:
    made = batched.data("POST", "/api/profiles", {"name": "calm", "steering": {"1": 2.0}}, 201)
    answer = ask(batched, **GREEDY, profile="calm")
    batched.data("DELETE", f"/api/profiles/{made['id']}")
    assert (answer.status_code, answer.headers["x-service-backend"]) == (200, "serial")


@pytest.mark.shows("request-activations.11")
def test_a_request_for_activations_takes_a_slot(batched: Running) -> None:
    sae = demo.saes()[0]
    sae_id = add_sae(batched, sae)
    batched.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    answers = [ask(batched, **GREEDY, **fields) for fields in ({}, {"return_sae_activations": {}})]
    batched.data("POST", f"/api/saes/{sae_id}/detach")
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.headers["x-service-backend"] for answer in answers] == ["cbm", "serial"]


def test_they_need_no_slot_and_give_the_text_that_a_slot_gives(
    batched: Running, shared: Running
) -> None:
    (alone,) = ask(shared, **GREEDY, max_tokens=12).json()["choices"]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ask(batched, **GREEDY, max_tokens=12), range(12)))
    assert [answer.status_code for answer in answers] == [200] * 12
    for answer in answers:
        (choice,) = answer.json()["choices"]
        check_same_chat(shared, HELLO, choice["message"]["content"], alone["message"]["content"])


def test_a_slot_is_still_one_for_all_others(batched: Running) -> None:
    service = batched.service
    with ThreadPoolExecutor(2) as pool:
        with standing_still(batched):
            holding = pool.submit(ask, batched, temperature=1.5)
            while not service.owners.queue.counts().holding:
                pass
            assert ask(batched, temperature=1.5).json()["error"]["code"] == "queue_full"
            beside = pool.submit(ask, batched, **GREEDY)
        assert [holding.result().status_code, beside.result().status_code] == [200, 200]


@pytest.mark.shows("seeds.5")
def test_a_seed_promises_what_it_can(batched: Running) -> None:
    assert ask(batched, seed=5).headers["x-service-seed"] == "5;scope=best-effort"


@pytest.mark.shows("continuous-batching.2")
def test_a_response_format_is_refused(batched: Running) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "any", "schema": {}}}
    for wanted in ({"type": "json_object"}, schema):
        answer = ask(batched, response_format=wanted)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "response_format_unsupported")
        assert error["param"] == "response_format"
    assert ask(batched, response_format={"type": "text"}).status_code == 200


@pytest.mark.shows(
    "continuous-batching.3",
    "queue-block.4",
    "queue-block.5",
    "queue-block.8",
    "queue-block.9",
    "queue-block.14",
    "health.5",
)
def test_the_health_block_says_so(batched: Running) -> None:
    block = batched.data("GET", "/api/health/detailed")["inference"]
    assert (block["backend"], block["cbm_enabled"], block["cbm_running"]) == ("cbm", True, True)
    measured = ("in_flight", "queue_waiting", "estimated_wait_seconds", "error")
    assert [block[name] for name in measured] == [None] * 4
    told = batched.data("GET", "/api/health/inference")
    assert told["backend"] == "cbm"
    assert told["cbm_config"]["default_temperature"] == 0
    assert told["capabilities"]["per_request_sampling_params"] is False
    assert "response_format is refused" in told["limitations"]


@pytest.mark.shows("continuous-batching.3")
def test_a_server_without_it_says_so_too(shared: Running) -> None:
    told = shared.data("GET", "/api/health/inference")
    assert told["backend"] == "serial"
    slots = shared.service.settings.max_concurrent_requests * len(processes(shared))
    assert told["queue"]["max_concurrent"] == slots
