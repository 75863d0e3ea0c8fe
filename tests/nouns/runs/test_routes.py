"""/api/runs against a running service that records its answers."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steerserve import demo
from steerserve.files import model_content
from steerserve.nouns.runs import rules
from steerserve.nouns.runs.rules import ShownRun
from steerserve.nouns.runs.store import RunStore
from steerserve.rules.steering.edits import Condition, Edit, Target
from steerserve.rules.steering.vector import Direction
from tests.service import Running, add_sae, load_demo, running

TEXT = {"model": demo.MODEL_NAME, "prompt": "One day the", "max_tokens": 12}
CHAT = {
    "model": demo.MODEL_NAME,
    "messages": [{"role": "user", "content": "Tell me a story"}],
    "max_tokens": 12,
}
FEATURE = 90


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("recording"), record_runs=True) as live:
        load_demo(live)
        sae = demo.saes()[0]
        sae_id = add_sae(live, sae)
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
        yield live


@pytest.fixture(autouse=True)
def unsteered(live: Running) -> Iterator[None]:
    yield
    live.data("DELETE", "/api/saes/steering")


def newest(live: Running) -> dict[str, Any]:
    """The record of the newest answer."""
    (summary,) = live.data("GET", "/api/runs?limit=1")["runs"]
    return dict(live.data("GET", f"/api/runs/{summary['request_id']}"))


def replay(live: Running, request_id: str) -> dict[str, Any]:
    return dict(live.data("POST", f"/api/runs/{request_id}/replay"))


def imported(live: Running, run: dict[str, Any], request_id: str, **changes: Any) -> str:
    """A changed copy of a record, as another service might have exported it."""
    copy = {**run, **changes, "request_id": request_id}
    body = {"runs": [copy]}
    assert live.data("POST", "/api/runs/import", body) == {"imported": 1, "known": 0}
    return request_id


def steer(live: Running, value: float) -> None:
    live.data("POST", "/api/saes/steering", {"feature_idx": FEATURE, "value": value})


def test_an_answer_is_found_by_the_id_of_its_request(live: Running) -> None:
    sent = {"X-Request-Id": "trial:7"}
    body = TEXT | {"max_tokens": 1}
    ids = [live.post("/v1/completions", body, **sent).json()["id"] for _ in range(2)]
    streamed = live.http.post("/v1/completions", json=body | {"stream": True}, headers=sent)
    newest_id = json.loads(streamed.text.split("data: ")[1])["id"]
    found = live.data("GET", "/api/runs/trial:7")
    assert (found["request_id"], found["also"]) == (newest_id, ids[::-1])
    by_answer = live.data("GET", f"/api/runs/{ids[0]}")
    assert (by_answer["request_id"], by_answer["x_request_id"], by_answer["also"]) == (
        ids[0],
        "trial:7",
        [],
    )
    # the service names a request that has no id of its own
    unnamed = live.post("/v1/completions", body)
    by_header = live.data("GET", f"/api/runs/{unnamed.headers['x-request-id']}")
    assert by_header["request_id"] == unnamed.json()["id"]
    assert live.error("GET", "/api/runs/trial:8")[:2] == (404, "RUN_NOT_FOUND")


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"n": 2}),
        ("/v1/completions", TEXT),
        (
            "/v1/responses",
            {"model": demo.MODEL_NAME, "input": "Tell me a story", "max_output_tokens": 12},
        ),
    ],
)
def test_an_answer_without_a_seed_is_made_again(
    live: Running, path: str, body: dict[str, Any], *, is_streamed: bool
) -> None:
    if is_streamed:
        body = {name: value for name, value in body.items() if name != "n"}
        live.http.post(path, json=body | {"stream": True}).raise_for_status()
        seed = None
    else:
        answer = live.post(path, body)
        seed = int(answer.headers["x-service-seed"].partition(";")[0])
    run = newest(live)
    assert (run["route"], run["seed_chosen"]) == (path, True)
    assert seed in (None, run["seed"])
    assert all(choice["text"] for choice in run["choices"])
    assert replay(live, run["request_id"]) == {
        "request_id": run["request_id"],
        "equal": True,
        "reasons": [],
    }


def test_a_replay_has_the_live_steering_of_then_and_leaves_that_of_now(live: Running) -> None:
    steer(live, 60.0)
    plain = {"op": "ablate", "feature": {"index": 3}, "positions": "generated"}
    live.data("PUT", "/api/interventions", {"edits": [plain]})
    answer = live.complete("One day the", max_tokens=12, seed=7)
    steered = newest(live)
    assert (steered["request_id"], steered["seed"]) == (answer["id"], 7)
    assert not steered["seed_chosen"]
    (values,) = steered["steering"]["values"].values()
    assert values == {str(FEATURE): 60.0}
    assert steered["steering"]["edits"] is not None
    live.data("DELETE", "/api/interventions")
    steer(live, -60.0)
    before = live.data("GET", "/api/saes/steering")
    assert live.complete("One day the", max_tokens=12, seed=7)["choices"] != answer["choices"]
    assert replay(live, answer["id"])["equal"]
    assert live.data("GET", "/api/saes/steering") == before


def test_a_steered_scoring_request_with_its_report_and_a_profile_in_the_name_is_made_again(
    live: Running,
) -> None:
    values = {"name": "storm", "steering": {str(FEATURE): 40.0}}
    profile = live.data("POST", "/api/profiles", values, 201)["id"]
    named = {"model": f"{demo.MODEL_NAME}@storm"}
    live.post("/v1/completions", TEXT | named | {"return_steering_report": True})
    written = newest(live)
    live.post("/v1/completions", TEXT | named | {"logprobs": 3, "max_tokens": 1, "echo": True})
    scored = newest(live)
    live.data("DELETE", f"/api/profiles/{profile}")
    assert scored["choices"][0]["scores"]
    for run in (written, scored):
        assert run["steering"]["state"] is not None
        assert replay(live, run["request_id"])["equal"]


def test_an_answer_with_values_of_another_text_is_made_again(live: Running) -> None:
    source = {"text": "A whale swam near", "positions": "last_prompt"}
    edit = {"op": "replace", "layer": 2, "source": source, "positions": "last_prompt"}
    live.complete("One day", max_tokens=8, seed=1, interventions={"edits": [edit]})
    told = replay(live, newest(live)["request_id"])
    assert (told["equal"], told["reasons"]) == (True, [])


def test_a_record_with_an_earlier_digest_is_of_the_same_model(live: Running) -> None:
    steer(live, 40)
    live.complete("One day the", max_tokens=6, seed=1)
    run = newest(live)
    (model,) = live.data("GET", "/api/models")["models"]
    assert run["model"]["content_digest"] == model["content_digest"]
    now = model["content_digest"]
    before = model_content.digest(Path(model["local_path"]), threading.Event()).first_version
    (sae,) = run["saes"]
    place = {name: sae[name] for name in ("layer", "site")}
    entry = place | {
        "sae": {"content_digest": sae["content_digest"]},
        "index": FEATURE,
        "value": 40.0,
    }

    def state(content: str) -> str:
        document = {"model": {"content_digest": content}, "steering": [entry]}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return f"sha256={hashlib.sha256(text.encode()).hexdigest()}"

    assert run["steering"]["state"] == state(now)
    for number, (content, reasons) in enumerate(((before, []), ("0" * 64, ["model", "steering"]))):
        other = imported(
            live,
            run,
            f"cmpl-before-{number}",
            model=run["model"] | {"content_digest": content},
            steering=run["steering"] | {"state": state(content)},
        )
        found = replay(live, other)
        assert found["equal"]
        assert [one["code"] for one in found["reasons"]] == reasons


def test_a_difference_is_named_with_its_place_and_the_reasons(live: Running) -> None:
    answer = live.complete("One day the", max_tokens=6, seed=1)
    run = newest(live)
    text = answer["choices"][0]["text"]
    choices = [run["choices"][0] | {"text": text[:3] + "#"}]
    other = imported(
        live,
        run,
        "cmpl-other",
        choices=choices,
        versions=run["versions"] | {"torch": "0.1"},
        machine=run["machine"] | {"processor": "abacus", "probe": "x"},
    )
    found = replay(live, other)
    assert found["equal"] is False
    assert found["first_difference"] == {
        "choice": 0,
        "part": "text",
        "at": 3,
        "recorded": "#",
        "replayed": text[3:43],
    }
    assert [one["code"] for one in found["reasons"]] == ["version", "processor", "logits"]


def test_no_header_and_no_unknown_field_is_kept_and_store_false_keeps_nothing(
    live: Running,
) -> None:
    count = live.data("GET", "/api/runs")["total"]
    secret = {"authorization": "Bearer s3cret-key", "x-service-lease": "s3cret-lease"}
    live.post("/v1/completions", TEXT | {"api_key": "s3cret"}, **secret)
    live.post("/v1/completions", TEXT | {"store": False, "prompt": "A private text"})
    live.post("/v1/chat/completions", CHAT | {"store": False})
    body = {"model": demo.MODEL_NAME, "input": "A private text", "store": False}
    live.post("/v1/responses", body | {"max_output_tokens": 2})
    export = live.http.get("/api/runs/export")
    assert export.headers["content-type"].startswith("application/x-ndjson")
    lines = export.text.splitlines()
    assert live.data("GET", "/api/runs")["total"] == len(lines) == count + 1
    assert not any(word in export.text for word in ("s3cret", "private"))
    assert json.loads(lines[-1])["request_id"] == newest(live)["request_id"]
    # an export is an import
    again = live.http.post(
        "/api/runs/import",
        content=export.content,
        headers={"content-type": "application/x-ndjson"},
    )
    assert again.json()["data"] == {"imported": 0, "known": count + 1}


def test_what_cannot_be_made_again_is_refused_by_name(live: Running) -> None:
    steer(live, 60.0)
    live.complete("One day the", max_tokens=2)
    run = newest(live)
    changed = imported(live, run, "cmpl-changed", steering=run["steering"] | {"changed": True})
    gguf = imported(live, run, "cmpl-gguf", model=run["model"] | {"engine": "gguf"})
    unseeded = imported(live, run, "cmpl-unseeded", seed=None)
    for request_id in (changed, gguf, unseeded):
        found = live.error("POST", f"/api/runs/{request_id}/replay")
        assert found[:2] == (409, "RUN_NOT_REPLAYABLE")
    assert live.error("POST", "/api/runs/cmpl-nobody/replay")[:2] == (404, "RUN_NOT_FOUND")
    assert live.error("GET", "/api/runs/cmpl-nobody")[:2] == (404, "RUN_NOT_FOUND")
    key = run["saes"][0]["key"]
    elsewhere = [run["saes"][0] | {"layer": 0, "key": "sae_x@0"}]
    steering = run["steering"] | {"values": {"sae_x@0": {"1": 2.0}}}
    gone = imported(live, run, "cmpl-gone", saes=elsewhere, steering=steering)
    status, code, details = live.error("POST", f"/api/runs/{gone}/replay")
    assert (status, code, details["layer"]) == (400, "SAE_NOT_ATTACHED", 0)
    steering = run["steering"] | {"values": {key: {"999999": 2.0}}}
    wild = imported(live, run, "cmpl-wild", steering=steering)
    assert live.error("POST", f"/api/runs/{wild}/replay")[:2] == (400, "INVALID_FEATURE_INDEX")


@pytest.mark.parametrize(
    "body",
    [
        {"runs": []},
        {"runs": [{"request_id": "x"}]},
        {"runs": 1},
        [],
    ],
)
def test_a_wrong_import_is_refused_whole(live: Running, body: Any) -> None:
    status, code, details = live.error("POST", "/api/runs/import", body)
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert details["param"].startswith("runs")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"runs":[' + b",".join([b"[]"] * 250_001) + b"]}"),
        ("application/x-ndjson", b"\n" * 100_001),
        ("application/x-ndjson", b'{"x":[' + b",".join([b"[]"] * 250_001) + b"]}"),
    ],
    ids=("values", "lines", "values of a line"),
)
def test_an_import_is_measured_before_its_records_are_read(
    live: Running, kind: str, body: bytes
) -> None:
    answer = live.http.post("/api/runs/import", content=body, headers={"content-type": kind})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "PAYLOAD_TOO_LARGE"


def test_recorded_edits_that_no_request_can_have_are_refused_and_end_nothing(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.complete("One day the", max_tokens=2)
    run = newest(live)
    direction = Direction(1, "resid_post", struct.pack("<192f", *192 * [1.0]))
    late = Direction(4, "resid_post", direction.data)
    for number, (edit, part) in enumerate(
        (
            (Edit(direction, Target(offset=1e300)), "target"),
            (Edit(direction, Target(offset=1.0), when=Condition(late, above=0.0)), "when"),
        )
    ):
        steering = run["steering"] | {"edits": rules.encoded_edits([edit])}
        record = run | {"request_id": f"cmpl-wild-{number}", "steering": steering}
        place = f"steering.edits[0].{part}"
        if part == "target":
            found = live.error("POST", "/api/runs/import", {"runs": [record]})
            assert found[:2] == (422, "INVALID_INTERVENTION")
            assert found[2]["param"] == f"runs[0].{place}"
        with monkeypatch.context() as patch:
            # a record of before
            patch.setattr(rules, "check_imported", lambda run, place: None)
            live.data("POST", "/api/runs/import", {"runs": [record]})
        found = live.error("POST", f"/api/runs/{record['request_id']}/replay")
        assert (*found[:2], found[2]["param"]) == (422, "INVALID_INTERVENTION", place)


def test_a_fault_of_the_database_loses_records_and_no_answer(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> int:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "add", full)
        live.complete("One day the", max_tokens=2)
        live.data("GET", "/api/runs")  # the record was written or lost
    health = {one["name"]: one for one in live.data("GET", "/api/health/ready")["components"]}
    assert health["runs"]["status"] == "degraded"
    assert "not recorded: 1" in health["runs"]["message"]
    live.complete("One day the", max_tokens=2)
    live.data("GET", "/api/runs")
    assert "runs" not in {
        one["name"] for one in live.data("GET", "/api/health/ready")["components"]
    }


def test_nothing_is_recorded_by_default(shared: Running) -> None:
    answer = shared.post("/v1/completions", TEXT)
    assert "x-service-seed" not in answer.headers
    found = shared.data("GET", "/api/runs")
    assert (found["runs"], found["recording"]) == ([], False)


def test_one_record_is_deleted_and_the_others_stay(live: Running) -> None:
    live.complete("One day the", max_tokens=2)
    kept = newest(live)["request_id"]
    live.complete("One day the", max_tokens=2)
    gone = newest(live)["request_id"]
    stored = live.data("GET", "/api/runs")["stored_bytes"]
    assert live.data("DELETE", f"/api/runs/{gone}") == {"request_id": gone}
    assert newest(live)["request_id"] == kept
    assert live.data("GET", "/api/runs")["stored_bytes"] < stored
    for method in ("GET", "DELETE"):
        assert live.error(method, f"/api/runs/{gone}")[:2] == (404, "RUN_NOT_FOUND")


def test_a_record_is_read_as_it_was_written(live: Running) -> None:
    live.complete("One day the", max_tokens=2)
    run = newest(live)
    assert msgspec.to_builtins(msgspec.convert(run, ShownRun, strict=False), str_keys=True) == run
