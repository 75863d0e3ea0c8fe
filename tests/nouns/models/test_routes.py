"""/api/models against a running service and real checkpoints."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file

from steerserve import demo
from steerserve.control.residency.events import LoadComplete, UnloadComplete
from tests.conftest import Start
from tests.doubles import write_checkpoint
from tests.files.test_gguf import entry_of, text
from tests.files.test_gguf_hostile import number, tensor, write
from tests.nouns.models.test_downloads import Events
from tests.resident import processes
from tests.service import Running, add_demo, add_model, load_demo
from tests.worker.running import altered


def with_code(folder: Path, code: str) -> Path:
    """The demo model with code of its own."""
    auto_map = {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}
    altered(demo.MODEL_DIR, folder, model_type="never-heard-of", auto_map=auto_map)
    (folder / "code.py").write_text(code)
    return folder


@pytest.mark.shows(
    "model-record.10 model-record.16 overview.1 models.1 models.5 models.6 models.7",
    "model-errors.4 model-errors.5",
)
def test_a_model_lives_from_registration_to_deletion(bare: Running) -> None:
    model_id = add_demo(bare)
    assert bare.data("GET", "/api/models")["total"] == 1
    accepted = bare.data("POST", f"/api/models/{model_id}/load", status=202)
    assert accepted["status"] == "loading"
    # a request for the model that is being loaded waits for it
    assert bare.complete("One day", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert bare.data("GET", f"/api/models/{model_id}")["status"] == "loaded"
    assert bare.error("POST", f"/api/models/{model_id}/load")[:2] == (
        400,
        "MODEL_ALREADY_LOADED",
    )
    assert bare.error("DELETE", f"/api/models/{model_id}")[:2] == (409, "MODEL_BUSY")
    gone = bare.data("POST", f"/api/models/{model_id}/unload")
    assert (gone["status"], gone["loaded_at"], gone["device"]) == ("ready", None, None)
    assert bare.error("POST", f"/api/models/{model_id}/unload")[:2] == (
        400,
        "MODEL_NOT_LOADED",
    )
    bare.data("DELETE", f"/api/models/{model_id}")
    assert demo.MODEL_DIR.is_dir()
    assert bare.data("GET", "/api/models") == {
        "models": [],
        "total": 0,
        "loaded_model_id": None,
    }
    assert bare.error("GET", f"/api/models/{model_id}")[:2] == (404, "MODEL_NOT_FOUND")


def test_the_sites_of_the_loaded_model_are_listed(bare: Running) -> None:
    model_id = add_demo(bare)
    refused = bare.error("GET", f"/api/models/{model_id}/sites")
    assert refused[:2] == (400, "MODEL_NOT_LOADED")
    bare.data("POST", f"/api/models/{model_id}/load?wait=true")
    told = bare.data("GET", f"/api/models/{model_id}/sites")
    listed = {one["site"]: one for one in told["sites"]}
    assert told["model_id"] == model_id
    assert listed["resid_post"] == {
        "site": "resid_post",
        "layers": [0, 1, 2, 3, 4],
        "width": 192,
        "heads": None,
        "module_path": "model.layers.{layer}",
        "can_write": True,
    }
    assert listed["logits"]["layers"] is None
    assert not listed["logits"]["can_write"]
    assert listed["hook_z"]["heads"] == 6
    assert "router_logits" not in listed


@pytest.mark.shows(
    "overview.7 models.8 models.9 models.21 models.25 models.26 models.27 states.3 states.6",
    "model-errors.7",
)
def test_a_load_of_another_model_unloads_the_locked_one_first_whatever_the_policy(
    bare: Running, tmp_path: Path
) -> None:
    other = shutil.copytree(demo.MODEL_DIR, tmp_path / "other")
    refuse = {"X-Service-Load-Policy": "refuse"}
    first, second = load_demo(bare), add_model(bare, other, "other")
    told: list[object] = []
    bare.service.owners.bus.subscribe(told.append)
    assert bare.data("POST", f"/api/models/{first}/lock")["locked"] is True
    answer = bare.http.post(f"/api/models/{second}/load?wait=true", headers=refuse)
    assert (answer.status_code, answer.json()["data"]["status"]) == (200, "loaded")
    steps = [event for event in told if isinstance(event, UnloadComplete | LoadComplete)]
    assert [(type(step), step.model_id) for step in steps] == [
        (UnloadComplete, first),
        (LoadComplete, second),
    ]
    models = {model["id"]: model for model in bare.data("GET", "/api/models")["models"]}
    assert (models[first]["status"], models[first]["locked"]) == ("ready", False)
    locked = bare.data("POST", f"/api/models/{second}/lock")
    assert (locked["locked"], locked["lock"]["by"]) == (True, "operator")
    assert bare.error("POST", f"/api/models/{first}/lock")[:2] == (409, "MODEL_LOCKED")
    unlocked = bare.data("POST", f"/api/models/{second}/unlock")
    assert (unlocked["locked"], unlocked["lock"]) == (False, None)
    assert unlocked["message"] == "the model was locked because an operator locked it"
    again = bare.data("POST", f"/api/models/{second}/unlock")
    assert again["message"] == "the model was not locked"
    assert bare.complete("One day", max_tokens=1)["model"] == demo.MODEL_NAME
    bare.data("POST", f"/api/models/{first}/lock")
    answer = bare.http.post(f"/api/models/{first}/unload", headers=refuse)
    assert (answer.status_code, answer.json()["data"]["status"]) == (200, "ready")


@pytest.mark.shows("model-record.10", "model-errors.3")
def test_a_failed_load_leaves_the_reason_and_the_next_load_works(
    bare: Running, tmp_path: Path
) -> None:
    # its weights do not fit its configuration
    bad = add_model(bare, altered(demo.MODEL_DIR, tmp_path / "broken", num_hidden_layers="many"))
    status, code, _ = bare.error("POST", f"/api/models/{bad}/load?wait=true")
    assert (status, code) == (500, "MODEL_LOAD_FAILED")
    record = bare.data("GET", f"/api/models/{bad}")
    assert record["status"] == "error"
    assert record["error_message"]
    status, error = bare.v1_error("/v1/completions", {"model": "broken", "prompt": "x"})
    assert (status, error["code"]) == (500, "model_load_failed")
    assert error["message"].endswith(f"POST /api/models/{bad}/load tries again")
    load_demo(bare)
    assert bare.complete("One day", max_tokens=1)["choices"]


def test_a_model_that_is_loading_is_not_the_loaded_one(bare: Running) -> None:
    model_id = add_demo(bare)
    bare.data("POST", f"/api/models/{model_id}/load", status=202)
    listed: dict[str, Any] = {"loaded_model_id": None}
    while listed["loaded_model_id"] is None:
        listed = bare.data("GET", "/api/models")
    assert listed["models"][0]["loaded_at"] is not None


@pytest.mark.shows("model-record.5", "models.2", "download-errors.6")
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "VALIDATION_ERROR"),
        ({"source": "local"}, 422, "VALIDATION_ERROR"),
        ({"source": "local", "local_path": "/etc"}, 400, "INVALID_LOCAL_PATH"),
        ({"source": "local", "local_path": "/tmp", "quantization": "Q5"}, 422, "VALIDATION_ERROR"),
        *(
            (
                {"source": "local", "local_path": str(demo.MODEL_DIR), "custom_name": name},
                422,
                "VALIDATION_ERROR",
            )
            for name in ("a\r\nb", "red ")
        ),
        (
            {"source": "local", "local_path": str(demo.MODEL_DIR), "trust_remote_code": "true"},
            422,
            "VALIDATION_ERROR",
        ),
        ({"source": "local", "local_path": str(demo.MODEL_DIR)}, 409, "MODEL_ALREADY_EXISTS"),
    ],
)
def test_a_bad_registration_is_refused(
    shared: Running, body: dict[str, Any], status: int, code: str
) -> None:
    assert shared.error("POST", "/api/models", body)[:2] == (status, code)


@pytest.mark.shows("model-errors.1")
@pytest.mark.parametrize("written", ["999", "0", "-1", "99999999999999999999"])
def test_an_unknown_model_is_not_found(shared: Running, written: str) -> None:
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/load"), ("POST", "/unload")):
        refused = shared.error(method, f"/api/models/{written}{tail}")
        assert refused[:2] == (404, "MODEL_NOT_FOUND")


@pytest.mark.shows("formats.1", "envelope.1", "envelope.3", "overview.14")
def test_broken_json_and_a_wrong_method_answer_in_the_envelope(shared: Running) -> None:
    answer = shared.http.post(
        "/api/models", content=b"{", headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    assert shared.error("PATCH", "/api/models")[:2] == (405, "METHOD_NOT_ALLOWED")
    assert shared.error("GET", "/api/nothing")[:2] == (404, "NOT_FOUND")
    assert shared.error("GET", "/api/models/seven")[:2] == (422, "VALIDATION_ERROR")


@pytest.mark.shows("models.2")
def test_code_in_a_checkpoint_does_not_run_without_the_opt_in(
    bare: Running, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w').close()\n"
    added = add_model(bare, with_code(tmp_path / "remote", code))
    assert bare.error("POST", f"/api/models/{added}/load?wait=true")[0] == 500
    assert not marker.exists()


def test_a_hostile_chat_template_runs_in_a_sandbox(bare: Running, tmp_path: Path) -> None:
    folder, marker = tmp_path / "hostile", tmp_path / "ran"
    shutil.copytree(demo.MODEL_DIR, folder)
    template = f"{{{{ lipsum.__globals__['os'].popen('touch {marker}').read() }}}}"
    (folder / "chat_template.jinja").write_text(template)
    add_model(bare, folder)
    body = {"model": "hostile", "messages": [{"role": "user", "content": "x"}]}
    status, error = bare.v1_error("/v1/chat/completions", body)
    assert (status, error["param"]) == (400, "messages")
    assert not marker.exists()


def test_a_folder_changed_after_registration_is_checked_again(
    bare: Running, tmp_path: Path
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(demo.MODEL_DIR, folder)
    added = add_model(bare, folder)
    shutil.rmtree(folder)
    os.symlink("/etc", folder)
    assert bare.error("POST", f"/api/models/{added}/load")[:2] == (
        400,
        "INVALID_LOCAL_PATH",
    )


def test_events_tell_a_load_and_an_unload(bare: Running) -> None:
    model_id = add_demo(bare)
    with closing(Events(bare)) as events:
        bare.data("POST", f"/api/models/{model_id}/load", status=202)
        seen = events.until("model:load:complete")
        bare.data("POST", f"/api/models/{model_id}/unload")
        events.until("model:unload:complete")
    stages = [body["stage"] for name, body in seen if name == "model:load:progress"]
    assert stages[0] == "loading_tokenizer"
    assert stages[-1] == "complete"
    complete = dict(seen)["model:load:complete"]
    assert complete["modelId"] == complete["model_id"] == model_id
    assert complete["memoryUsedMb"] > 0
    percents = [body["progress"] for name, body in seen if name == "model:load:progress"]
    assert percents == sorted(percents)


@pytest.mark.parametrize("written", ["1%0A", "%201", "+1", "1.0", "01", "1_0", "١"])
def test_an_id_is_written_in_one_way_only(shared: Running, written: str) -> None:
    for method, path in (("GET", ""), ("POST", "/unload"), ("GET", "/lease")):
        status, code, _ = shared.error(method, f"/api/models/{written}{path}")
        assert (status, code) == (422, "VALIDATION_ERROR")


def test_a_checkpoint_with_a_tensor_missing_is_not_served_with_an_invented_one(
    bare: Running, tmp_path: Path
) -> None:
    folder = shutil.copytree(demo.MODEL_DIR, tmp_path / "holed")
    tensors = load_file(folder / "model.safetensors")
    removed = "model.layers.2.mlp.down_proj.weight"
    del tensors[removed]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for quantization in ("FP16", "Q4"):
        holed = add_model(bare, folder, f"holed-{quantization}", quantization=quantization)
        status, code, _ = bare.error("POST", f"/api/models/{holed}/load?wait=true")
        assert (status, code) == (500, "MODEL_LOAD_FAILED")
        assert removed in bare.data("GET", f"/api/models/{holed}")["error_message"]


def test_the_reason_of_a_failed_load_names_no_folder_of_this_machine(
    bare: Running, tmp_path: Path
) -> None:
    folder = shutil.copytree(demo.MODEL_DIR, tmp_path / "mute")
    for file in folder.glob("*token*"):
        file.unlink()
    mute = add_model(bare, folder, "mute")
    bare.error("POST", f"/api/models/{mute}/load?wait=true")
    reason = bare.data("GET", f"/api/models/{mute}")["error_message"]
    assert len(reason.split()) > 5
    assert str(tmp_path) not in reason


@pytest.mark.parametrize("kind", ["weights", "name", "alignment"])
def test_a_gguf_file_that_lies_is_refused_and_makes_no_record(
    shared: Running, tmp_path: Path, kind: str
) -> None:
    """Such numbers and names would not fit the columns of a database."""
    huge = tuple(tensor(str(n), (1 << 53,), 0, kind=99) for n in range(2000))
    entries = {
        "weights": (),
        "name": (entry_of("general.name", 8, text("n")),) * 2,
        "alignment": (number("general.alignment", 3),),
    }
    path = write(tmp_path / "m-Q8_0.gguf", *entries[kind], tensors=huge)
    before = shared.data("GET", "/api/models")
    status, code, _ = shared.error(
        "POST", "/api/models", {"source": "local", "local_path": str(path)}
    )
    assert (status, code) == (400, "INVALID_LOCAL_PATH")
    assert shared.data("GET", "/api/models") == before


# ---------------------------------------------------------------- ending a load


@pytest.mark.parametrize("settings", [{"api_keys": "k"}, {"host": "0.0.0.0"}])
def test_the_code_of_a_model_runs_only_where_the_operator_allows_it(
    start: Start, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path / "coded")
    body = {"source": "local", "local_path": str(folder), "trust_remote_code": True}
    opened = settings | {"local_paths": "/"}
    with start(allow_remote_code=True, **opened) as live:
        live.http.headers["authorization"] = "Bearer k"
        model_id = live.data("POST", "/api/models", body, 202)["id"]
        parts = {one["name"] for one in live.data("GET", "/api/health/detailed")["components"]}
        assert "remote_code" in parts
        assert ("access" in parts) is ("host" in settings)
    with start(**opened) as live:
        live.http.headers["authorization"] = "Bearer k"
        hub = {"source": "huggingface", "repo_id": "a/b", "trust_remote_code": True}
        for sent in (body, hub):
            status, code, details = live.error("POST", "/api/models", sent)
            assert (status, code, details["setting"]) == (
                403,
                "REMOTE_CODE_REFUSED",
                "ALLOW_REMOTE_CODE",
            )
        assert live.error("POST", f"/api/models/{model_id}/load")[1] == "REMOTE_CODE_REFUSED"
        status, error = live.v1_error("/v1/completions", {"model": "coded", "prompt": "a"})
        assert (status, error["code"]) == (403, "remote_code_refused")
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "models_need_remote" in one]
    assert "models=['coded']" in line


def processes_of(live: Running, model_id: int) -> list[psutil.Process]:
    """The processes of the engine of this model, once the model is in the slot and its engine has started."""
    while True:
        live.data("GET", "/api/health")
        resident = live.service.owners.conductor.resident
        if resident is None or resident.row.id != model_id or resident.engine is None:
            continue
        if running := processes(live):
            return running


@pytest.mark.shows("models.2", "model-errors.6")
def test_a_load_that_hangs_is_ended_by_an_operator_at_any_moment(
    bare: Running, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(4) as pool:
        good = load_demo(bare)
        hanging = with_code(tmp_path / "hanging", "while True:\n    pass\n")
        bad = add_model(bare, hanging, "hanging", trust_remote_code=True)
        body = {"model": "hanging", "prompt": "One day", "max_tokens": 1}
        for ends in (["unload"], ["cancel"], ["unload", "cancel", "unload", "cancel"]):
            waiting = pool.submit(bare.http.post, f"/api/models/{bad}/load?wait=true")
            while bare.data("GET", f"/api/models/{bad}")["status"] != "loading":
                pass
            running = processes_of(bare, bad)
            assert bare.error("POST", f"/api/models/{good}/load")[:2] == (409, "MODEL_BUSY")
            asked = pool.submit(bare.http.post, "/v1/completions", json=body)
            while bare.service.owners.conductor.view().phase == "loading" and (
                bare.data("GET", "/api/health/detailed")["inference"]["queue_pending"] < 1
            ):
                pass
            barrier = threading.Barrier(len(ends))

            def end(
                how: str, barrier: threading.Barrier = barrier
            ) -> tuple[int, dict[str, object]]:
                barrier.wait()
                answer = bare.http.post(f"/api/models/{bad}/{how}")
                return answer.status_code, answer.json()

            with ThreadPoolExecutor(len(ends)) as operators:
                answers = list(operators.map(end, ends))
            for how, (status, answer) in zip(ends, answers, strict=True):
                # a second unload is refused while the first runs, and afterwards nothing is loaded
                assert status == 200 or how == "unload", answer
                assert status in (200, 400, 409)
            assert 200 in [status for status, _ in answers]
            assert not [process for process in running if process.is_running()]
            model = bare.data("GET", f"/api/models/{bad}")
            assert (model["status"], model["error_message"]) == (
                "ready",
                "the load was ended by an operator",
            )
            refused = asked.result()
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "model_busy"
            assert int(refused.headers["retry-after"]) >= 1
            assert waiting.result().status_code == 409
        bare.data("POST", f"/api/models/{good}/load?wait=true")
        assert bare.complete("One day", max_tokens=2)["choices"]
