"""Attaching SAEs to the loaded model, one or several: /api/saes/{id}/attach and its neighbours on the demo model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from tests.conftest import Start
from tests.nouns.steering.test_routes import greedy, set_one
from tests.resident import crash
from tests.service import Running, add_demo, add_sae, load_demo

FIRST, LAST = demo.saes()[0], demo.saes()[-1]
FEATURE, STRENGTH = demo.proof()["feature_idx"], demo.proof()["strength"]


@pytest.fixture
def free(shared: Running) -> Iterator[Running]:
    """The shared service; whatever is attached at the end of the test is detached."""
    yield shared
    for sae_id in {entry["sae_id"] for entry in attachments(shared)["entries"]}:
        shared.data("POST", f"/api/saes/{sae_id}/detach")


def attachments(live: Running) -> Any:
    return live.data("GET", "/api/saes/attachments")


def attach(live: Running, sae: demo.DemoSae, **fields: Any) -> Any:
    body = {"layer": sae.layer, **fields}
    return live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", body)


def members(live: Running, *saes: demo.DemoSae) -> list[dict[str, Any]]:
    return [{"sae_id": add_sae(live, sae), "layer": sae.layer} for sae in saes]


def attach_set(live: Running, *saes: demo.DemoSae, **fields: Any) -> Any:
    return live.data("POST", "/api/saes/attach-set", {"saes": members(live, *saes), **fields})


def copied(live: Running, folder: Path) -> tuple[str, Path]:
    """A registered SAE like a demo SAE, and where its weights lie."""
    shutil.copytree(FIRST.path, folder)
    # equal content would be the demo SAE itself
    config = folder / "cfg.json"
    config.write_text(config.read_text() + "\n")
    body = {"local_path": str(folder)}
    sae_id = live.data("POST", "/api/saes/download", body, 202)["sae_id"]
    return sae_id, folder / "sae_weights.safetensors"


# ---------------------------------------------------------------- one


def test_the_answer_says_what_was_attached_and_how(free: Running) -> None:
    attached = attach(free, FIRST)
    assert attached["dtype"] == "float32"
    assert attached["site"] == "resid_post"
    assert attached["is_calibrated"] is True
    status = free.data("GET", "/api/saes/attachment")
    (listed,) = free.data("GET", "/api/saes/attachments")["entries"]
    for name in ("layer_module_path", "site", "dtype", "is_calibrated", "k", "check", "warnings"):
        assert listed[name] == status[name] == attached[name]


def test_the_check_says_what_it_read_and_the_l0_of_a_free_choice_only(free: Running) -> None:
    chosen, free_choice = (attach(free, sae) for sae in demo.saes())
    text = {"text": "a short story of the service", "tokens": chosen["check"]["tokens"]}
    assert 80 < text["tokens"] < 150
    for one in (chosen, free_choice):
        assert text.items() <= one["check"].items()
        assert 24 < one["check"]["features_fired"] < 1024
    assert (chosen["k"], "l0" in chosen["check"]) == (24, False)
    assert (free_choice["k"], round(free_choice["check"]["l0"])) == (None, 24)


def test_what_the_operator_says_wins_over_the_files(free: Running) -> None:
    attached = attach(free, FIRST, overrides={"k": 3, "site": "resid_pre"}, dtype="float16")
    assert attached["k"] == 3
    assert attached["site"] == "resid_pre"
    assert attached["dtype"] == "float16"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"layer": 2, "dtype": "int8"}',
        b'{"layer": 2, "overrides": {"activaton": "relu"}}',
        b'{"layer": 2, "overrides": {"threshold": NaN}}',
        b'{"layer": 2, "overrides": {"norm_factor": 0}}',
        b'{"layer": 2, "overrides": {"site": "resid_somewhere"}}',
    ],
)
def test_a_bad_body_is_refused_and_attaches_nothing(free: Running, body: bytes) -> None:
    path = f"/api/saes/{add_sae(free, FIRST)}/attach"
    answer = free.http.post(path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert attachments(free)["count"] == 0


@pytest.mark.parametrize(
    ("method", "word", "allowed"),
    [
        ("DELETE", "attachment", "GET, HEAD"),
        ("DELETE", "attachments", "GET, HEAD"),
        ("GET", "attach-set", "POST"),
        ("DELETE", "attach-set", "POST"),
        ("GET", "monitoring", "POST"),
        ("DELETE", "monitoring", "POST"),
    ],
)
def test_a_word_is_not_read_as_an_id(shared: Running, method: str, word: str, allowed: str) -> None:
    answer = shared.http.request(method, f"/api/saes/{word}")
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"


@pytest.mark.shows("steering-errors.1")
def test_an_unknown_sae_is_not_found(free: Running) -> None:
    for method, path, body in (
        ("POST", "/api/saes/sae_none/attach", {"layer": 0}),
        ("POST", "/api/saes/sae_none/detach", None),
        ("GET", "/api/saes/sae_none/compatibility?layer=0", None),
    ):
        assert free.error(method, path, body)[:2] == (404, "SAE_NOT_FOUND")


@pytest.mark.shows("steering-errors.5")
def test_an_sae_whose_files_were_damaged_is_refused(free: Running, tmp_path: Path) -> None:
    sae_id, weights = copied(free, tmp_path / "damaged")
    weights.write_bytes(weights.read_bytes()[:1000])
    refused = free.error("POST", f"/api/saes/{sae_id}/attach", {"layer": FIRST.layer})
    assert refused[:2] == (500, "SAE_LOAD_FAILED")
    assert attachments(free)["is_attached"] is False
    free.data("DELETE", f"/api/saes/{sae_id}")


# ---------------------------------------------------------------- several


@pytest.mark.shows("attachment-status.8", "saes.11", "saes.12")
def test_a_set_is_attached_and_listed(free: Running) -> None:
    made = attach_set(free, FIRST, LAST)
    assert (made["status"], made["attached_count"]) == ("attached", 2)
    assert [(e["layer"], e["status"]) for e in made["entries"]] == [
        (FIRST.layer, "attached"),
        (LAST.layer, "attached"),
    ]
    assert all(e["dtype"] == "float16" and e["warnings"] == [] for e in made["entries"])
    assert made["total_memory_usage_mb"] == sum(e["memory_usage_mb"] for e in made["entries"])
    assert (made["vram_envelope_mb"], made["vram_warning"]) == (4096, False)
    found = attachments(free)
    assert (found["is_attached"], found["count"]) == (True, 2)
    assert found["total_memory_usage_mb"] == made["total_memory_usage_mb"]
    assert (found["vram_envelope_mb"], found["vram_warning"]) == (4096, False)
    assert found["to_restore"] == []
    wanted = {"sae_id", "layer", "memory_usage_mb", "steering_enabled", "monitoring_enabled"}
    assert all(wanted | {"steering_apply_count"} <= set(entry) for entry in found["entries"])
    assert free.data("GET", "/api/models")["models"][0]["locked"] is True


def test_nothing_attached_is_told_as_such(free: Running) -> None:
    assert attachments(free) == {
        "is_attached": False,
        "count": 0,
        "entries": [],
        "total_memory_usage_mb": None,
        "vram_envelope_mb": 4096,
        "vram_warning": False,
        "to_restore": [],
    }


def test_every_attached_sae_tells_the_one_switch(free: Running) -> None:
    attach_set(free, FIRST, LAST)

    def told() -> list[bool]:
        each = [entry["steering_enabled"] for entry in attachments(free)["entries"]]
        assert free.data("GET", "/api/saes/attachment")["steering_enabled"] is each[0]
        assert free.data("GET", "/api/saes/steering")["enabled"] is each[0]
        return each

    assert told() == [False, False]
    free.data("POST", "/api/saes/steering/enable")
    assert told() == [True, True]
    set_one(free, 5, 3)
    free.complete("One day", max_tokens=4, temperature=0)
    counts = [entry["steering_apply_count"] for entry in attachments(free)["entries"]]
    assert counts[0] > 0
    assert counts[1] == 0
    free.data("POST", "/api/saes/steering/disable")
    assert told() == [False, False]


def test_the_switch_outlasts_a_detach_until_the_last_sae_is_detached(free: Running) -> None:
    attach_set(free, FIRST)
    first, last = add_sae(free, FIRST), add_sae(free, LAST)
    set_one(free, 5, 3)
    attach_set(free, LAST)
    assert free.data("GET", "/api/saes/steering") == {"enabled": True, "values": {"5": 3.0}}
    free.data("POST", f"/api/saes/{first}/detach")
    assert free.data("GET", "/api/saes/steering") == {"enabled": True, "values": {}}
    free.data("POST", f"/api/saes/{first}/attach", {"layer": FIRST.layer})
    assert free.data("GET", "/api/saes/steering") == {"enabled": False, "values": {}}
    free.data("POST", "/api/saes/steering/enable")
    attach_set(free, LAST)
    assert free.data("GET", "/api/saes/steering") == {"enabled": True, "values": {}}
    for sae_id in (first, last):
        free.data("POST", f"/api/saes/{sae_id}/detach")
    attach_set(free, FIRST)
    assert free.data("GET", "/api/saes/steering") == {"enabled": False, "values": {}}


@pytest.mark.parametrize(
    "body",
    [
        {"saes": []},
        {"saes": [{"sae_id": "sae_1", "layer": 0}] * 17},
        {"saes": [{"sae_id": "sae_1", "layer": 0}], "dtype": "int4"},
    ],
)
def test_a_bad_set_is_refused(free: Running, body: dict[str, Any]) -> None:
    assert free.error("POST", "/api/saes/attach-set", body)[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.shows("attachment-status.8", "saes.11")
def test_a_set_needs_a_model_and_the_envelope_only_warns(start: Start) -> None:
    with start(multisae_vram_envelope_mb=1, multisae_attach_dtype="stored") as live:
        body = {"saes": members(live, FIRST, LAST)}
        refused = live.error("POST", "/api/saes/attach-set", body)
        assert refused[:2] == (400, "MODEL_NOT_LOADED")
        live.data("POST", f"/api/models/{add_demo(live)}/load?wait=true")
        made = live.data("POST", "/api/saes/attach-set", body)
        assert (made["vram_envelope_mb"], made["vram_warning"]) == (1, True)
        assert {e["dtype"] for e in made["entries"]} == {"float32"}
        assert attachments(live)["vram_warning"] is True


# ---------------------------------------------------------------- the engine ends


@pytest.mark.local("a replica that ends is started again while its model stays loaded")
def test_a_model_whose_engine_was_killed_is_served_steered_again_or_not_at_all(
    bare: Running, tmp_path: Path
) -> None:
    model_id = load_demo(bare)
    plain = greedy(bare)
    # the proof's feature is one of this SAE
    sae = next(sae for sae in demo.saes() if sae.name == demo.proof()["sae"])
    folder = tmp_path / "sae"
    shutil.copytree(sae.path, folder)
    registered = bare.data("POST", "/api/saes/download", {"local_path": str(folder)}, 202)
    sae_id = registered["sae_id"]
    bare.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    bare.data("POST", "/api/saes/steering", {"feature_idx": FEATURE, "value": STRENGTH})
    steered = greedy(bare)
    assert steered != plain

    crash(bare)
    assert bare.data("GET", "/api/saes/attachment")["is_attached"] is False
    assert bare.data("GET", f"/api/saes/{sae_id}")["status"] == "cached"
    lost = {"model_id": model_id, "sae_id": sae_id, "layer": sae.layer}
    assert attachments(bare)["to_restore"] == [lost]
    assert greedy(bare) == steered
    assert attachments(bare)["to_restore"] == []
    state = bare.data("GET", "/api/saes/steering")
    assert state == {"enabled": True, "values": {str(FEATURE): STRENGTH}}
    assert bare.data("GET", f"/api/saes/{sae_id}")["status"] == "attached"
    assert bare.data("GET", f"/api/models/{model_id}")["locked"] is True

    crash(bare)
    folder.rename(tmp_path / "elsewhere")
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 2}
    status, error = bare.v1_error("/v1/completions", body)
    assert (status, error["code"]) == (500, "model_load_failed")
    assert sae_id in error["message"]
    status, error = bare.v1_error("/v1/completions", body)
    assert (status, error["code"]) == (500, "model_load_failed")
    assert sae_id in bare.data("GET", f"/api/models/{model_id}")["error_message"]

    detached = bare.data("POST", f"/api/saes/{sae_id}/detach")
    assert detached["memory_freed_mb"] == 0
    bare.data("POST", f"/api/models/{model_id}/load?wait=true")
    assert greedy(bare) == plain
    assert bare.data("GET", f"/api/models/{model_id}")["locked"] is False


def test_a_model_says_that_an_sae_holds_its_lock_and_so_does_unlocking(steered: Running) -> None:
    state = steered.data("GET", "/api/models")
    model_id = state["loaded_model_id"]
    (model,) = [row for row in state["models"] if row["id"] == model_id]
    sae_id = steered.data("GET", "/api/saes/attachment")["sae_id"]
    why = f"because the SAE {sae_id!r} is attached to it"
    lock = {"by": "attached_sae", "sae_ids": [sae_id], "message": f"locked {why}"}
    assert (model["locked"], model["lock"]) == (True, lock)
    unlocked = steered.data("POST", f"/api/models/{model_id}/unlock")
    assert (unlocked["locked"], unlocked["lock"]) == (False, None)
    assert unlocked["message"] == f"the model was locked {why}; the SAE stays attached"
    assert steered.data("GET", "/api/saes/attachment")["sae_id"] == sae_id
