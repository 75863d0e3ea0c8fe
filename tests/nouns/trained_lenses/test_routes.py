"""/api/lenses on the demo model: lenses of this machine and of a hub on a loopback port."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from steerserve import demo
from tests.loopback_hub import LoopbackHub
from tests.service import Running, load_demo, running

LENSES = "/api/lenses"
WAIT = f"{LENSES}?wait=true"
TEXT = "The old fisherman went down to the"
SENTINEL = "hf_SentinelTokenThatNobodyElseMaySee"


@pytest.fixture(scope="module")
def live(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    settings: dict[str, Any] = {"hf_endpoint": hub.url, "disk_reserve_mb": 0}
    with running(home, hub_breaker_failures=100, **settings) as made:
        load_demo(made)
        yield made


@pytest.fixture(scope="module")
def tuned() -> dict[str, bytes]:
    """The files of a tuned lens of the demo model, whose maps change nothing."""
    model = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR)
    width, layers = model.config.hidden_size, model.config.num_hidden_layers
    weight: Tensor = model.get_output_embeddings().weight.detach().float()
    config = {
        "base_model_name_or_path": "tiny",
        "d_model": width,
        "num_hidden_layers": layers,
        "bias": True,
        "unembed_hash": hashlib.sha256(
            np.array_str(weight.numpy(), precision=1).encode()
        ).hexdigest(),
        "lens_type": "linear_tuned_lens",
    }
    maps = {f"{i}.weight": torch.zeros(width, width) for i in range(layers)}
    maps |= {f"{i}.bias": torch.zeros(width) for i in range(layers)}
    return {"config.json": json.dumps(config).encode(), "params.pt": saved(maps)}


def saved(value: object) -> bytes:
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()


def written(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def add(live: Running, name: str, **fields: Any) -> dict[str, Any]:
    job = live.data("POST", WAIT, {"name": name, **fields})["job"]
    assert (job["kind"], job["state"]) == ("lens", "done")
    return dict(job["result"])


def left(live: Running) -> list[str]:
    """The files of lenses that are on this machine."""
    cache = live.service.settings.lens_cache_dir
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_a_lens_of_this_machine_is_registered_read_and_deleted(
    live: Running, tuned: dict[str, bytes], tmp_path: Path
) -> None:
    folder = written(tmp_path / "lens", tuned)
    lens = add(live, "identity", source="local", local_path=str(folder))
    config = json.loads(tuned["config.json"])
    assert lens["id"].startswith("lens_")
    assert (lens["kind"], lens["model_hint"]) == ("tuned", "tiny")
    assert lens["layers"] == list(range(config["num_hidden_layers"] - 1))
    assert (lens["width"], lens["model_layers"]) == (config["d_model"], config["num_hidden_layers"])
    assert lens["unembed_hash"] == config["unembed_hash"]
    assert lens["source"]["local_path"] == str(folder)
    assert live.data("GET", f"{LENSES}/identity") == lens
    assert live.data("GET", LENSES) == {"lenses": [lens], "total": 1}
    plain = live.data("POST", "/api/lens", {"text": TEXT})
    for kind in (lens["id"], "identity"):
        found = live.data("POST", "/api/lens", {"text": TEXT, "kind": kind})
        assert (found["kind"], found["lens_id"]) == ("tuned", lens["id"])
        for one, same in zip(found["layers"], plain["layers"], strict=True):
            assert [[t["token_id"] for t in at] for at in one["positions"]] == [
                [t["token_id"] for t in at] for at in same["positions"]
            ]
    assert (plain["kind"], plain["lens_id"]) == ("logit", None)
    again = {"name": "other", "source": "local", "local_path": str(folder)}
    assert live.error("POST", WAIT, again)[:2] == (409, "LENS_ALREADY_EXISTS")
    same = {"name": "identity", "source": "local", "local_path": str(tmp_path)}
    assert live.error("POST", LENSES, same)[:2] == (409, "LENS_ALREADY_EXISTS")
    assert live.data("DELETE", f"{LENSES}/identity") == {"lens_id": lens["id"]}
    # its files stay where they are
    assert (folder / "params.pt").exists()
    for method, path, body in (
        ("GET", f"{LENSES}/{lens['id']}", None),
        ("DELETE", f"{LENSES}/identity", None),
        ("POST", "/api/lens", {"text": TEXT, "kind": lens["id"]}),
    ):
        assert live.error(method, path, body)[:2] == (404, "LENS_NOT_FOUND")


def test_a_lens_of_a_space_is_fetched_and_its_files_go_with_it(
    live: Running, hub: LoopbackHub, tuned: dict[str, bytes]
) -> None:
    files = {f"lens/tiny/{name}": content for name, content in tuned.items()}
    repo = hub.add(
        "spaces/acme/tuned-lens", {"app.py": b"print()", **files}, private=True, tokens=(SENTINEL,)
    )
    place = {"source": "huggingface", "repository_id": "acme/tuned-lens", "file_path": "lens/tiny"}
    token = {"hub_token": SENTINEL}
    # a model of this name is another repository
    assert live.error("POST", WAIT, {"name": "a", **place, **token})[1] == "REPO_NOT_FOUND"
    place["repository_type"] = "space"
    lens = add(live, "hubbed", **place, **token, model_hint="tiny-stories")
    assert lens["model_hint"] == "tiny-stories"
    source = {"kind": "huggingface", "local_path": None, "revision": repo.sha}
    assert lens["source"] == {**source, **{k: v for k, v in place.items() if k != "source"}}
    assert [Path(name).name for name in left(live)] == ["config.json", "params.pt"]
    assert live.data("POST", "/api/lens", {"text": TEXT, "kind": "hubbed"})["kind"] == "tuned"
    assert live.error("POST", WAIT, {"name": "b", **place, **token})[:2] == (
        409,
        "LENS_ALREADY_EXISTS",
    )
    said = live.http.get("/api/jobs").text + live.http.get(LENSES).text
    assert SENTINEL not in said
    live.data("DELETE", f"{LENSES}/{lens['id']}")
    assert left(live) == []
    assert not any(live.service.settings.lens_cache_dir.rglob("*--*"))


def test_a_file_of_a_repository_is_a_jacobian_lens(live: Running, hub: LoopbackHub) -> None:
    width = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR).config.hidden_size
    file = "tiny/jlens/tiny_jacobian_lens.pt"
    hub.add("acme/jlens", {file: saved({"J": {1: torch.eye(width)}})})
    lens = add(live, "j", source="huggingface", repository_id="acme/jlens", file_path=file)
    assert (lens["kind"], lens["layers"], lens["model_layers"]) == ("jacobian", [1], None)
    found = live.data("POST", "/api/lens", {"text": TEXT, "kind": "j"})
    assert found["kind"] == "jacobian"
    status, code, details = live.error(
        "POST", "/api/lens", {"text": TEXT, "kind": "j", "layers": [0]}
    )
    assert (status, code, details["param"]) == (400, "INVALID_PARAMETER", "layers[0]")
    live.data("DELETE", f"{LENSES}/j")
    assert left(live) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"unembed_hash": "0" * 64}, "output embedding"),
        ({"d_model": 8}, "width 8"),
        ({"num_hidden_layers": 2}, "2 layers"),
    ],
)
def test_a_lens_of_another_model_is_refused_by_its_name(
    live: Running, tuned: dict[str, bytes], tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    config = json.loads(tuned["config.json"]) | change
    width, layers = config["d_model"], config["num_hidden_layers"]
    maps = {f"{i}.weight": torch.zeros(width, width) for i in range(layers)}
    files = {"config.json": json.dumps(config).encode(), "params.pt": saved(maps)}
    folder = written(tmp_path / "lens", files)
    lens = add(live, "foreign", source="local", local_path=str(folder))
    answer = live.http.post("/api/lens", json={"text": TEXT, "kind": "foreign"})
    error = answer.json()["error"]
    live.data("DELETE", f"{LENSES}/foreign")
    assert (answer.status_code, error["code"]) == (409, "LENS_MISMATCH")
    assert why in error["message"]
    assert "'foreign'" in error["message"]
    assert (error["details"]["lens_id"], error["details"]["param"]) == (lens["id"], "kind")


def test_a_failed_or_cancelled_import_leaves_nothing(
    live: Running, hub: LoopbackHub, tuned: dict[str, bytes]
) -> None:
    hub.add("acme/broken", tuned | {"params.pt": b"PK nothing"})
    body = {"name": "broken", "source": "huggingface", "repository_id": "acme/broken"}
    assert live.error("POST", WAIT, body)[:2] == (422, "INVALID_LENS")
    assert left(live) == []
    repo = hub.add("acme/slow", tuned)
    fault = hub.fault(f"GET /acme/slow/resolve/{repo.sha}/params.pt", hold=10)
    slow = {"name": "slow", "source": "huggingface", "repository_id": "acme/slow"}
    job = live.data("POST", LENSES, slow, 202)["job"]
    assert fault.held.wait(30)
    # the same files are registered once
    assert live.error("POST", WAIT, slow | {"name": "slower"})[1] == "LENS_ALREADY_EXISTS"
    assert live.data("DELETE", f"/api/jobs/{job['id']}")["job"]["state"] == "cancelled"
    fault.release.set()
    hub.heal()
    assert left(live) == []
    assert live.data("GET", LENSES)["total"] == 0


def test_a_request_keeps_the_lens_that_is_deleted_meanwhile(
    live: Running, hub: LoopbackHub, tuned: dict[str, bytes]
) -> None:
    hub.add("acme/kept", tuned)
    add(live, "kept", source="huggingface", repository_id="acme/kept")
    long = {"text": "One day " * 60, "kind": "kept", "top": 1}
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(live.http.post, "/api/lens", json=long) for _ in range(8)]
        deleted = pool.submit(live.http.delete, f"{LENSES}/kept")
        assert deleted.result().status_code == 200
        # each request found the lens with its files, or found none
        statuses = {one.result().status_code for one in asked}
    assert statuses <= {200, 404}
    assert left(live) == []


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({}, 422, "VALIDATION_ERROR", "name"),
        ({"name": "logit"}, 422, "VALIDATION_ERROR", "name"),
        ({"name": "lens_1"}, 422, "VALIDATION_ERROR", "name"),
        ({"name": "a", "source": "inline"}, 422, "VALIDATION_ERROR", None),
        ({"name": "a", "local_path": None}, 422, "VALIDATION_ERROR", "local_path"),
        ({"name": "a", "file_path": "x"}, 422, "VALIDATION_ERROR", "file_path"),
        ({"name": "a", "local_path": "/nowhere"}, 400, "INVALID_LOCAL_PATH", None),
        ({"name": "a", "local_path": str(demo.MODEL_DIR)}, 422, "INVALID_LENS", None),
        (
            {"name": "a", "source": "huggingface", "local_path": None, "repository_id": "a/../b"},
            422,
            "VALIDATION_ERROR",
            "repository_id",
        ),
    ],
)
def test_what_is_no_lens_is_not_registered(
    live: Running, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    whole = {"source": "local", "local_path": "/tmp", **body}
    found = live.error("POST", WAIT, {k: v for k, v in whole.items() if v is not None})
    assert found[:2] == (status, code)
    if param is not None:
        assert param in json.dumps(found[2])
    assert live.data("GET", LENSES)["total"] == 0


def test_a_repository_without_a_lens_is_refused_with_what_is_missing(
    live: Running, hub: LoopbackHub, tuned: dict[str, bytes]
) -> None:
    hub.add("acme/half", {"lens/a/config.json": tuned["config.json"]})
    body = {
        "name": "half",
        "source": "huggingface",
        "repository_id": "acme/half",
        "file_path": "lens/a",
    }
    status, code, details = live.error("POST", WAIT, body)
    assert (status, code, details["missing"]) == (422, "INVALID_LENS", ["lens/a/params.pt"])
    assert live.error("POST", WAIT, body | {"repository_id": "acme/none"})[1] == "REPO_NOT_FOUND"
