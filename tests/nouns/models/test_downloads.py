"""Models from the hub over the API: preview, download, cancel, going on, deleting; and where the token goes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import socketio

from steerserve import demo
from tests.loopback_hub import Fault, LoopbackHub
from tests.service import Running, add_model, running

SENTINEL = "hf_SentinelTokenThatNobodyElseMaySee"
DEMO = {f.name: f.read_bytes() for f in demo.MODEL_DIR.iterdir() if f.is_file()}
REPO = "acme/tiny-stories"


@pytest.fixture(scope="module")
def service(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service for all tests of this file."""
    home = tmp_path_factory.mktemp("home")
    settings = {"hf_endpoint": hub.url, "disk_reserve_mb": 0, "hub_breaker_failures": 2}
    with running(home, **settings) as live:
        yield live


@pytest.fixture
def live(service: Running, hub: LoopbackHub) -> Iterator[Running]:
    """The service without models and with a closed breaker, and its hub with one repository."""
    hub.repos.clear()
    hub.add(REPO, DEMO | {"pytorch_model.bin": b"never fetched", "run.py": b"never fetched"})
    hub.seen.clear()
    yield service
    for fault in hub.faults:
        fault.release.set()
    hub.heal()
    service.data("POST", "/api/health/circuits/huggingface/reset")
    for row in service.data("GET", "/api/models")["models"]:
        if row["status"] == "loaded":
            service.data("POST", f"/api/models/{row['id']}/unload")
        service.data("DELETE", f"/api/models/{row['id']}")


class Events:
    """What a Socket.IO client is told."""

    def __init__(self, live: Running) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = socketio.AsyncSimpleClient()
        self._loop.run_until_complete(self._client.connect(live.url, transports=["websocket"]))

    def until(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Everything up to the first event of this name."""
        found = []
        while True:
            event, told = self._loop.run_until_complete(self._client.receive(timeout=30))
            found.append((event, told))
            if event == name:
                return found

    def close(self) -> None:
        self._loop.run_until_complete(self._client.disconnect())
        self._loop.close()


@pytest.fixture
def events(live: Running) -> Iterator[Events]:
    made = Events(live)
    yield made
    made.close()


def body(**fields: Any) -> dict[str, Any]:
    return {"source": "huggingface", "repo_id": REPO, **fields}


def add(live: Running, **fields: Any) -> dict[str, Any]:
    return live.data("POST", "/api/models", body(**fields), 202)


def add_held(live: Running, hub: LoopbackHub) -> tuple[dict[str, Any], Fault]:
    """A model whose download stands still, and what holds it."""
    fault = hub.fault("/model.safetensors", hold=100)
    row = add(live)
    assert fault.held.wait(30)
    return row, fault


def add_whole(live: Running, events: Events, **fields: Any) -> dict[str, Any]:
    """A model as it was answered, once it is downloaded."""
    row = add(live, **fields)
    events.until("model:download:complete")
    return row


def model_files(live: Running) -> list[Path]:
    """The files of models that are on this machine."""
    found = [p for p in live.service.settings.model_cache_dir.rglob("*") if p.is_file()]
    return [path for path in found if ".hub" not in path.parts]


@pytest.mark.shows(
    "events.2 events.5 chat-parameters.20 model-record.3 model-record.4 model-record.10",
    "models.2 models.3 models.5",
)
def test_a_model_is_previewed_downloaded_loaded_and_deleted(live: Running, events: Events) -> None:
    shown = live.data("POST", "/api/models/preview", {"repo_id": REPO})
    assert (shown["name"], shown["is_gated"]) == ("tiny-stories", False)
    assert shown["architecture"] == "LlamaForCausalLM"
    sizes = shown["estimated_sizes"]
    assert set(sizes) == {"FP16", "Q8", "Q4", "Q2"}
    assert all(set(size) == {"disk_mb", "memory_mb"} for size in sizes.values())
    memory = [sizes[precision]["memory_mb"] for precision in ("FP16", "Q8", "Q4", "Q2")]
    assert memory == sorted(memory, reverse=True)
    assert memory[0] > memory[2] > 0

    row = add(live, custom_name=None)
    assert (row["status"], row["name"], row["source"]) == (
        "downloading",
        "tiny-stories",
        "huggingface",
    )
    told = events.until("model:download:complete")
    progress = [event for name, event in told if name == "model:download:progress"]
    fetched = sum(len(DEMO[name]) for name in DEMO if name not in ("VERSION", "report.json"))
    assert progress[-1]["progress"] == 100
    assert progress[-1]["totalBytes"] == progress[-1]["downloadedBytes"] <= fetched
    assert all(p["modelId"] == row["id"] for p in progress)

    ready = live.data("GET", f"/api/models/{row['id']}")
    assert (ready["status"], ready["download_progress"], ready["download"]) == ("ready", None, None)
    assert ready["repo_id"] == REPO
    folder = Path(ready["local_path"])
    assert "pytorch_model.bin" not in os.listdir(folder)
    assert "run.py" not in os.listdir(folder)
    assert ready["revision"] == folder.name
    live.data("POST", f"/api/models/{row['id']}/load?wait=true")
    asked = {"prompt": "Once", "max_tokens": 3, "temperature": 0}
    answer = live.post("/v1/completions", {"model": REPO, **asked}).json()
    assert answer["model"] == "tiny-stories"
    assert f"@{ready['revision']}:" in answer["system_fingerprint"]

    status, code, _ = live.error("DELETE", f"/api/models/{row['id']}")
    assert (status, code) == (409, "MODEL_BUSY")
    live.data("POST", f"/api/models/{row['id']}/unload")
    live.data("DELETE", f"/api/models/{row['id']}")
    assert not folder.exists()


@pytest.mark.shows("models.17", "model-errors.2")
def test_the_same_repository_at_the_same_precision_is_there_already(
    live: Running, events: Events
) -> None:
    add_whole(live, events)
    status, code, details = live.error("POST", "/api/models", body())
    assert (status, code) == (409, "MODEL_ALREADY_EXISTS")
    assert details["quantization"] == "FP16"
    # another precision shares the files: nothing is fetched again, and deleting one leaves the other its files
    second = add_whole(live, events, quantization="Q8")
    assert second["name"] == "tiny-stories:Q8"
    live.data("DELETE", f"/api/models/{second['id']}")
    (first,) = live.data("GET", "/api/models")["models"]
    assert (Path(first["local_path"]) / "config.json").is_file()


@pytest.mark.shows("models.10", "download-errors.2")
def test_a_cancelled_download_leaves_nothing_and_goes_on_when_asked_again(
    live: Running, hub: LoopbackHub, events: Events
) -> None:
    row, fault = add_held(live, hub)
    status, code, _ = live.error("POST", f"/api/models/{row['id']}/load")
    assert (status, code) == (409, "MODEL_BUSY")
    status, _, _ = live.error("POST", "/api/models", body())
    assert status == 409
    cancelled = live.data("POST", f"/api/models/{row['id']}/cancel")
    assert (cancelled["status"], cancelled["error_message"]) == ("error", "cancelled by user")
    failed = dict(events.until("model:download:error"))["model:download:error"]
    assert failed["error"]["code"] == "DOWNLOAD_CANCELLED"
    assert model_files(live) == []
    status, code, _ = live.error("POST", f"/api/models/{row['id']}/load")
    assert (status, code) == (499, "DOWNLOAD_CANCELLED")
    # a model in any other status is left as it is
    assert live.data("POST", f"/api/models/{row['id']}/cancel")["status"] == "error"
    fault.release.set()
    hub.heal()
    again = add(live)
    assert (again["id"], again["status"]) == (row["id"], "downloading")
    events.until("model:download:complete")
    assert live.data("POST", f"/api/models/{row['id']}/cancel")["status"] == "ready"


def test_a_record_whose_download_was_cancelled_keeps_no_files_of_another_precision(
    live: Running, hub: LoopbackHub, events: Events
) -> None:
    cancelled, fault = add_held(live, hub)
    live.data("POST", f"/api/models/{cancelled['id']}/cancel")
    fault.release.set()
    hub.heal()
    second = add_whole(live, events, quantization="Q8")
    live.data("DELETE", f"/api/models/{second['id']}")
    assert model_files(live) == []


@pytest.mark.shows("download-errors.2")
def test_a_load_that_waits_for_a_download_ends_as_the_download_does(
    live: Running, hub: LoopbackHub
) -> None:
    with ThreadPoolExecutor(1) as pool:
        for is_cancelled in (True, False):
            row, fault = add_held(live, hub)
            loading = pool.submit(live.http.post, f"/api/models/{row['id']}/load?wait=true")
            while live.data("GET", "/api/health/metrics")["active_requests"] == 0:
                pass
            if is_cancelled:
                live.data("POST", f"/api/models/{row['id']}/cancel")
            fault.release.set()
            hub.heal()
            answer = loading.result()
            if is_cancelled:
                assert answer.status_code == 499
                assert answer.json()["error"]["code"] == "DOWNLOAD_CANCELLED"
            else:
                assert answer.status_code == 200, answer.text
                assert answer.json()["data"]["status"] == "loaded"


@pytest.mark.shows("models.2")
def test_a_failed_download_goes_on_with_a_branch_that_moved(
    live: Running, hub: LoopbackHub, events: Events
) -> None:
    hub.fault("/model.safetensors", status=404)
    row = add(live)
    events.until("model:download:error")
    hub.heal()
    hub.add(REPO, DEMO | {"merges.txt": b"new"})
    again = add(live, custom_name="moved")
    assert (again["id"], again["name"]) == (row["id"], "moved")
    assert again["revision"] != row["revision"]
    events.until("model:download:complete")
    folders = [
        path.name
        for path in (live.service.settings.model_cache_dir / "acme--tiny-stories").iterdir()
    ]
    assert folders == [again["revision"]]


@pytest.mark.shows("model-errors.2")
def test_another_commit_is_the_same_model_unless_the_request_names_it(
    live: Running, hub: LoopbackHub, events: Events
) -> None:
    row = add_whole(live, events)
    newer = hub.add(REPO, DEMO | {"merges.txt": b"new"}).sha
    status, code, details = live.error("POST", "/api/models", body())
    assert (status, code) == (409, "MODEL_ALREADY_EXISTS")
    assert (details["model_id"], details["revision"]) == (row["id"], row["revision"])

    second = add(live, revision=newer)
    assert second["id"] != row["id"]
    assert (second["name"], second["revision"]) == (f"tiny-stories@{newer[:8]}", newer)
    events.until("model:download:complete")
    for commit, held in ((row["revision"], row), (newer, second)):
        hub.add(REPO, DEMO, sha=commit)
        status, code, details = live.error("POST", "/api/models", body(revision=commit))
        assert (status, code, details["model_id"]) == (409, "MODEL_ALREADY_EXISTS", held["id"])
    # no name changes what it means
    asked = {"prompt": "Once", "max_tokens": 1}
    for name, answered in ((REPO, row), ("tiny-stories", row), (f"{REPO}@{newer[:8]}", second)):
        answer = live.post("/v1/completions", {"model": name, **asked}).json()
        assert answer["model"] == answered["name"]


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A file with these tensors: name -> dtype, shape, bytes."""
    header, end = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


QUANTIZED: dict[str, tuple[dict[str, Any], dict[str, tuple[str, list[int], int]]]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4},
        {
            "model.layers.0.mlp.qweight": ("I32", [256, 2048], 2 << 20),
            "model.layers.0.mlp.scales": ("F16", [16, 2048], 1 << 16),
        },
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4},
        {"model.layers.0.mlp.qweight": ("I32", [2048, 512], 4 << 20)},
    ),
    "fp8": (
        {"quant_method": "fp8"},
        {
            "model.layers.0.mlp.weight": ("F8_E4M3", [2048, 2048], 4 << 20),
            "model.layers.0.mlp.weight_scale_inv": ("F32", [16, 16], 1024),
        },
    ),
}
EMBEDDING = {"model.embed_tokens.weight": ("F16", [1024, 1024], 2 << 20)}


@pytest.mark.shows("models.3", "models.18")
@pytest.mark.parametrize(
    ("method", "shards"), [("gptq", 1), ("gptq", 9), ("awq", 1), ("fp8", 1), ("fp8", 9)]
)
def test_a_quantized_repository_is_previewed_by_the_weights_it_stores(
    live: Running, hub: LoopbackHub, events: Events, method: str, shards: int
) -> None:
    settings, tensors = QUANTIZED[method]
    config = json.loads(DEMO["config.json"])
    config = {"architectures": config["architectures"], "quantization_config": settings}
    files = {"config.json": json.dumps(config).encode()}
    for number in range(1, shards + 1):
        part = f"model-{number:05d}-of-{shards:05d}.safetensors"
        files[part] = safetensors({n.replace("mlp", f"mlp{number}"): t for n, t in tensors.items()})
    last = sorted(files)[-1]
    files[last] = safetensors(tensors | EMBEDDING)
    counts: dict[str, int] = {}
    for dtype, shape, _ in [*list(tensors.values()) * shards, *EMBEDDING.values()]:
        counts[dtype] = counts.get(dtype, 0) + math.prod(shape)
    # the hub counts packed weights as parameters, so that their number says nothing
    info = {"safetensors": {"parameters": counts, "total": 50_000_000}}
    hub.add("acme/quantized", files, info=info)
    sizes = live.data("POST", "/api/models/preview", {"repo_id": "acme/quantized"})
    row = live.data(
        "POST", "/api/models", {"source": "huggingface", "repo_id": "acme/quantized"}, 202
    )
    events.until("model:download:complete")
    recorded = live.data("GET", f"/api/models/{row['id']}")["estimated_memory_mb"]
    shown = {size["memory_mb"] for size in sizes["estimated_sizes"].values()}
    assert len(shown) == 1
    (shown_mb,) = shown
    # headers are read of few files; of many the hub's counts are taken, which do not tell scales from weights
    assert shown_mb == recorded if shards == 1 else abs(shown_mb - recorded) <= recorded * 0.1


@pytest.mark.shows("models.2")
def test_trust_in_code_is_not_added_to_a_model_that_is_there(live: Running, events: Events) -> None:
    add_whole(live, events)
    status, code, _ = live.error("POST", "/api/models", body(trust_remote_code=True))
    assert (status, code) == (409, "MODEL_ALREADY_EXISTS")
    (row,) = live.data("GET", "/api/models")["models"]
    assert (row["trust_remote_code"], row["status"]) == (False, "ready")


def test_a_taken_name_is_refused_when_a_download_goes_on(
    live: Running, hub: LoopbackHub, events: Events
) -> None:
    hub.fault("/model.safetensors", status=404)
    row = add(live)
    events.until("model:download:error")
    hub.heal()
    add_model(live, demo.MODEL_DIR, "taken")
    status, code, _ = live.error("POST", "/api/models", body(custom_name="taken"))
    assert (status, code) == (409, "MODEL_ALREADY_EXISTS")
    assert live.data("GET", f"/api/models/{row['id']}")["status"] == "error"


def test_a_model_whose_files_were_lost_is_downloaded_again(live: Running, events: Events) -> None:
    row = add_whole(live, events)
    ready = live.data("GET", f"/api/models/{row['id']}")
    (Path(ready["local_path"]) / "model.safetensors").unlink()
    assert add(live)["id"] == row["id"]
    events.until("model:download:complete")
    live.data("POST", f"/api/models/{row['id']}/load?wait=true")


def test_deleting_a_model_that_is_downloaded_cancels_it(
    live: Running, hub: LoopbackHub, events: Events
) -> None:
    row, _ = add_held(live, hub)
    live.data("DELETE", f"/api/models/{row['id']}")
    assert live.data("GET", "/api/models")["total"] == 0
    assert live.error("GET", f"/api/models/{row['id']}")[1] == "MODEL_NOT_FOUND"


@pytest.mark.shows(
    "authentication.6 models.3 download-errors.3 download-errors.4 download-errors.5",
)
@pytest.mark.parametrize(
    ("facts", "token", "status", "code"),
    [
        (None, None, 404, "REPO_NOT_FOUND"),
        ({"gated": "manual", "tokens": ("hf_right",)}, None, 401, "GATED_MODEL_NO_TOKEN"),
        ({"gated": "manual", "tokens": ("hf_right",)}, "hf_wrong", 401, "INVALID_HUB_TOKEN"),
    ],
)
def test_a_repository_that_cannot_be_had_is_refused_at_once(
    live: Running,
    hub: LoopbackHub,
    facts: dict[str, Any] | None,
    token: str | None,
    status: int,
    code: str,
) -> None:
    if facts is not None:
        hub.add("acme/closed", DEMO, **facts)
    asked = {"repo_id": "acme/closed", "hub_token": token}
    assert live.error("POST", "/api/models/preview", asked)[:2] == (status, code)
    assert live.error("POST", "/api/models", body(**asked))[:2] == (status, code)
    assert live.data("GET", "/api/models")["total"] == 0


@pytest.mark.shows("resource-errors.2")
def test_a_model_too_large_for_the_disk_is_refused_before_anything_is_fetched(
    live: Running, hub: LoopbackHub
) -> None:
    hub.add("acme/huge", DEMO, extra=[])
    hub.repos["acme/huge"].extra.append(
        {
            "type": "file",
            "path": "model-00002-of-00002.safetensors",
            "size": 10**17,
            "oid": "0" * 40,
        }
    )
    status, code, details = live.error("POST", "/api/models", body(repo_id="acme/huge"))
    assert (status, code) == (507, "INSUFFICIENT_DISK")
    assert details["needed_mb"] > details["free_mb"]
    assert live.data("GET", "/api/models")["total"] == 0


@pytest.mark.shows("retry-after.6", "health.8", "health.9")
def test_a_hub_that_does_not_answer_opens_the_breaker_and_a_reset_closes_it(
    live: Running, hub: LoopbackHub
) -> None:
    fault = hub.fault("/api/models", status=500)
    for _ in range(live.service.settings.hub_breaker_failures):
        status, code, _ = live.error("POST", "/api/models/preview", {"repo_id": REPO})
        assert (status, code) == (503, "HUB_UNAVAILABLE")
    answer = live.http.post("/api/models/preview", json={"repo_id": REPO})
    recovery = live.service.settings.hub_breaker_recovery_s
    assert recovery - 30 < int(answer.headers["retry-after"]) <= recovery
    breakers = live.data("GET", "/api/health/circuits")
    (breaker,) = (one for one in breakers if one["name"] == "huggingface")
    assert (breaker["state"], breaker["is_open"]) == ("open", True)
    assert live.error("POST", "/api/health/circuits/nobody/reset")[:2] == (404, "BREAKER_NOT_FOUND")
    fault.times = 0
    hub.heal()
    closed = live.data("POST", "/api/health/circuits/huggingface/reset")
    assert closed["state"] == "closed"
    live.data("POST", "/api/models/preview", {"repo_id": REPO})


@pytest.mark.shows("authentication.5", "models.2")
def test_the_token_goes_to_the_hub_and_nowhere_else(
    live: Running,
    hub: LoopbackHub,
    events: Events,
    capfd: pytest.CaptureFixture[str],
) -> None:
    hub.add("acme/gated", DEMO, gated="manual", tokens=(SENTINEL,))
    live.data("POST", "/api/models/preview", {"repo_id": "acme/gated", "hub_token": SENTINEL})
    row = add(live, repo_id="acme/gated", hf_token=SENTINEL)
    told = events.until("model:download:complete")
    told.append(("record", live.data("GET", f"/api/models/{row['id']}")))
    bad = live.http.post("/api/models/preview", json={"repo_id": 7, "hub_token": SENTINEL})
    wrong = live.http.post(
        "/api/models/preview", json={"repo_id": "acme/gated", "hub_token": SENTINEL + "x"}
    )
    assert {seen.token for seen in hub.asked("acme/gated")} == {SENTINEL, SENTINEL + "x"}
    output = capfd.readouterr()
    for text in (json.dumps(told), bad.text, wrong.text, output.out, output.err):
        assert SENTINEL not in text
    for file in live.home.rglob("*"):
        assert not file.is_file() or SENTINEL.encode() not in file.read_bytes(), file


@pytest.mark.shows("models.2")
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "repo_id"),
        ({"repo_id": "http://127.0.0.1:1/x"}, "repo_id"),
        ({"repo_id": "../etc"}, "repo_id"),
        ({"repo_id": "a@b/c"}, "repo_id"),
        ({"repo_id": REPO, "revision": "../x"}, "revision"),
        ({"repo_id": REPO, "gguf_label": "Q4_K_M"}, "gguf_label"),
        ({"repo_id": REPO, "custom_name": "../x"}, "custom_name"),
    ],
)
def test_what_is_no_repository_is_refused_naming_the_field(
    live: Running, given: dict[str, Any], param: str
) -> None:
    status, code, details = live.error("POST", "/api/models", {"source": "huggingface", **given})
    assert (status, code) == (422, "VALIDATION_ERROR")
    assert details["param"] == param
