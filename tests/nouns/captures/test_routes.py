"""/api/captures against a running service: the files, against hooks of the model in transformers."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from steerserve import demo
from steerserve.files import captures as files
from steerserve.nouns.captures import owner
from steerserve.nouns.captures.noun import CAPTURES
from tests.conftest import Start
from tests.loopback_hub import LoopbackHub
from tests.nouns.texts import TEXTS, contexts, cut_after
from tests.service import Running, load_demo, running

PATH = "/api/captures"
SITES = [
    {"site": "resid_post", "layers": [1, 3]},
    {"site": "hook_z", "layers": [2], "heads": [4, 0]},
]
ABLATED = {"op": "ablate", "feature": {"index": 1}}
Array = np.ndarray[Any, Any]


@pytest.fixture
def live(steered: Running) -> Iterator[Running]:
    """The service with the first demo SAE attached. Captures are deleted after the test."""
    yield steered
    for capture in steered.data("GET", PATH)["captures"]:
        steered.data("DELETE", f"{PATH}/{capture['id']}")


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """The demo model as the service holds it, in transformers."""
    made: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR, dtype="auto")
    return made.eval()


def body(**fields: Any) -> dict[str, Any]:
    return {"name": "sea", "texts": TEXTS, "sites": SITES, "context": 16} | fields


def capture(live: Running, **fields: Any) -> dict[str, Any]:
    job = live.data("POST", f"{PATH}?wait=true", body(**fields))["job"]
    assert (job["state"], job["error"], job["kind"]) == ("done", None, "capture")
    return dict(live.data("GET", f"{PATH}/{job['result']['capture_id']}"))


def folder(live: Running, capture_id: str, into: Path) -> Path:
    """The files of a capture, as a client gets them."""
    into.mkdir()
    for file in live.data("GET", f"{PATH}/{capture_id}")["files"]:
        content = live.http.get(f"{PATH}/{capture_id}/files/{file['name']}").content
        assert len(content) == file["bytes"]
        (into / file["name"]).write_bytes(content)
    return into


def tensors(path: Path) -> dict[str, Array]:
    """The rows of all shards, by the names of the tensors."""
    shards = [load_file(one) for one in sorted(path.glob("shard-*.safetensors"))]
    return {name: np.concatenate([one[name] for one in shards]) for name in shards[0]}


def index(path: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in (path / "index.jsonl").read_text().splitlines()]


def hooked(model: LlamaForCausalLM, ids: list[int]) -> dict[str, Array]:
    """The values of SITES in a pass of transformers."""
    kept: dict[str, torch.Tensor] = {}

    def after(name: str, _: Any, __: Any, output: Any) -> None:
        kept[name] = (output[0] if isinstance(output, tuple) else output)[0]

    def before(name: str, _: Any, args: Any) -> None:
        kept[name] = args[0][0]

    with ExitStack() as hooks, torch.inference_mode():
        layers = model.model.layers
        for at in (1, 3):
            hooks.callback(
                layers[at].register_forward_hook(partial(after, f"resid_post.{at}")).remove
            )
        projection = layers[2].self_attn.o_proj
        hooks.callback(projection.register_forward_pre_hook(partial(before, "z")).remove)
        model(input_ids=torch.tensor([ids]), use_cache=False)
    heads = kept.pop("z").reshape(len(ids), model.config.num_attention_heads, -1)
    kept["hook_z.2"] = heads[:, [4, 0]].reshape(len(ids), -1)
    return {name: value.float().numpy() for name, value in kept.items()}


def test_a_folder_has_the_values_of_hooks_in_transformers(
    live: Running, model: LlamaForCausalLM, tmp_path: Path
) -> None:
    made = capture(live)
    path = folder(live, made["id"], tmp_path / "capture")
    rows, lines = tensors(path), index(path)
    read = contexts(live, TEXTS, 16)
    assert lines == [
        {"text": text, "context": context, "position": position, "token": token}
        for text, context, ids in read
        for position, token in enumerate(ids)
    ]
    every = [hooked(model, ids) for _, _, ids in read]
    for name in ("resid_post.1", "resid_post.3", "hook_z.2"):
        expected = np.concatenate([one[name] for one in every])
        assert rows[name].shape == expected.shape
        # both compute in bfloat16, each with its own order of sums
        away = np.linalg.norm(rows[name] - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert (away.max() < 0.05, np.median(away) < 0.01) == (True, True)
    record = json.loads((path / "capture.json").read_text())
    tokens = sum(len(ids) - 1 for _, _, ids in read)
    assert (made["rows"], made["tokens"], made["texts"]) == (len(lines), tokens, 4)
    assert (record["rows"], record["tokens"], record["dtype"]) == (len(lines), tokens, "float32")
    assert record["texts_digest"] == made["texts_digest"]
    content = live.data("GET", "/api/models")["models"][0]["content_digest"]
    assert record["model_digest"] == made["model_digest"] == content
    assert (record["steering_state"], made["steering_state"]) == (None, None)
    for told, site in zip(made["sites"], record["sites"], strict=True):
        values = rows[site["tensor"]].astype(np.float64)
        mean = np.frombuffer(base64.b64decode(site["mean"]), "<f8")
        np.testing.assert_allclose(mean, values.mean(0), rtol=1e-9)
        assert site["norm"] == told["norm"] == pytest.approx(np.linalg.norm(values, axis=1).mean())
        assert told["width"] == values.shape[1]
        assert told["module_path"].startswith("model.layers.")


def test_shards_are_full_but_for_the_last_and_types_are_as_asked(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tensors(folder(live, capture(live)["id"], tmp_path / "whole"))
    monkeypatch.setattr(files, "MIB", 20_000)
    for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        made = capture(live, name=dtype, dtype=dtype, shard_mb=1)
        path = folder(live, made["id"], tmp_path / dtype)
        shards = sorted(path.glob("shard-*"))
        most = 20_000 // (size * sum(one["width"] for one in made["sites"]))
        counts = []
        for shard in shards:
            with safe_open(shard, framework="pt") as opened:
                counts.append(opened.get_tensor("resid_post.1").shape[0])
                assert str(opened.get_tensor("resid_post.1").dtype) == f"torch.{dtype}"
        assert len(counts) > 1
        assert counts[:-1] == [most] * (len(counts) - 1)
        assert sum(counts) == made["rows"]
        with ExitStack() as stack:
            opened = [stack.enter_context(safe_open(one, framework="pt")) for one in shards]
            read = torch.cat([one.get_tensor("hook_z.2") for one in opened])
        expected = torch.from_numpy(whole["hook_z.2"]).to(read.dtype)
        assert torch.equal(read, expected)


def test_positions_and_conversations(live: Running, tmp_path: Path) -> None:
    made = capture(live, positions="last", name="last")
    read = contexts(live, TEXTS, 16)
    lines = index(folder(live, made["id"], tmp_path / "last"))
    assert [(one["text"], one["context"], one["position"]) for one in lines] == [
        (text, context, len(ids) - 1) for text, context, ids in read
    ]
    one = {"prompt_positions": [2, 12], "exclude": {"tokens": [read[0][2][2]]}}
    made = capture(live, positions=one, name="some")
    lines = index(folder(live, made["id"], tmp_path / "some"))
    expected = [
        (text, at)
        for text, _, ids in read
        for at in (2, 12)
        if at < len(ids) and ids[at] != read[0][2][2]
    ]
    assert [(one["text"], one["position"]) for one in lines] == expected


def test_edits_of_the_request_change_what_is_captured(live: Running, tmp_path: Path) -> None:
    sae, where = demo.saes()[0], demo.saes()[0].layer
    sites = [{"site": "resid_post", "layers": [where, where - 1]}]
    plain = tensors(folder(live, capture(live, sites=sites)["id"], tmp_path / "plain"))
    edits = {"edits": [{"op": "add", "feature": {"index": 90}, "value": 40.0}]}
    made = capture(live, name="edited", sites=sites, interventions=edits)
    assert made["steering_state"] is not None
    path = folder(live, made["id"], tmp_path / "edited")
    steered = tensors(path)
    added = 40.0 * load_file(sae.path / "sae_weights.safetensors")["W_dec"][90]
    at, before = f"resid_post.{where}", f"resid_post.{where - 1}"
    np.testing.assert_allclose(steered[at], plain[at] + added, rtol=2e-2, atol=5e-2)
    assert np.array_equal(steered[before], plain[before])


def test_an_edit_of_a_capture_reads_its_source_in_another_text(
    live: Running, tmp_path: Path
) -> None:
    sites = [{"site": "resid_post", "layers": [1]}]
    source = {"text": "The sea", "positions": {"prompt_positions": [-1]}}
    edits = {"edits": [{"op": "replace", "layer": 1, "source": source}]}
    read = capture(live, sites=sites, texts=["The sea"], positions="last")
    made = capture(live, name="edited", sites=sites, texts=[TEXTS[0]], interventions=edits)
    again = capture(live, name="again", sites=sites, texts=[TEXTS[0]], interventions=edits)
    assert made["steering_state"] == again["steering_state"] is not None
    (value,) = tensors(folder(live, read["id"], tmp_path / "read"))["resid_post.1"]
    rows = tensors(folder(live, made["id"], tmp_path / "made"))["resid_post.1"]
    assert len(rows) > 1
    np.testing.assert_allclose(rows, np.broadcast_to(value, rows.shape), rtol=2e-2, atol=2e-2)


def test_ranges_of_files_are_honoured(live: Running) -> None:
    made = capture(live)
    path = f"{PATH}/{made['id']}/files/shard-00000.safetensors"
    whole = live.http.get(path)
    size = len(whole.content)
    assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
    part = live.http.get(path, headers={"Range": "bytes=100-299"})
    assert (part.status_code, part.content) == (206, whole.content[100:300])
    assert part.headers["content-range"] == f"bytes 100-299/{size}"
    end = live.http.get(path, headers={"Range": "bytes=-50"})
    assert (end.status_code, end.content) == (206, whole.content[-50:])
    beyond = live.http.get(path, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert beyond.headers["content-range"] == f"bytes */{size}"
    changed = live.http.get(path, headers={"Range": f"bytes={size}-", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, whole.content)
    wrong = live.http.get(path, headers={"Range": "bytes=9-3"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "VALIDATION_ERROR")
    several = live.http.get(path, headers={"Range": "bytes=0-1,4-5"})
    assert (several.status_code, several.headers["content-type"][:20]) == (
        206,
        "multipart/byteranges",
    )
    assert live.http.get(f"{PATH}/{made['id']}/files/..%2F..%2Fsteerserve.db").status_code == 404
    for name in ("shard-00009.safetensors", "capture.json.new", "x"):
        assert live.error("GET", f"{PATH}/{made['id']}/files/{name}")[:2] == (
            404,
            "CAPTURE_NOT_FOUND",
        )


def test_captures_are_listed_until_they_are_deleted(live: Running) -> None:
    made = capture(live, max_tokens=10)
    assert (made["tokens"], made["texts"], made["state"]) == (10, 2, "done")
    listed = live.data("GET", PATH)
    record = {name: value for name, value in made.items() if name != "files"}
    assert listed["captures"] == [record]
    assert listed["stored_bytes"] == made["stored_bytes"] > 0
    names = [one["name"] for one in made["files"]]
    assert names == ["capture.json", "index.jsonl", "shard-00000.safetensors"]
    status, code, details = live.error("POST", PATH, body(max_tokens=10))
    assert (status, code, details["capture_id"]) == (409, "CAPTURE_ALREADY_EXISTS", made["id"])
    assert live.data("DELETE", f"{PATH}/{made['id']}") == {"capture_id": made["id"]}
    assert not (live.home / "captures" / made["id"]).exists()
    for method in ("GET", "DELETE"):
        assert live.error(method, f"{PATH}/{made['id']}")[:2] == (404, "CAPTURE_NOT_FOUND")


def test_a_capture_that_was_cut_goes_on_where_it_was(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MIB", 20_000)
    whole = capture(live, shard_mb=1)
    expected = folder(live, whole["id"], tmp_path / "whole")
    live.data("DELETE", f"{PATH}/{whole['id']}")
    with monkeypatch.context() as patch:
        patch.setattr(owner, "PART", 2)
        cut_after(patch, 1)
        refused = live.error("POST", f"{PATH}?wait=true", body(shard_mb=1))
    assert refused[1] == "MODEL_NOT_LOADED"
    (stopped,) = live.data("GET", PATH)["captures"]
    assert (stopped["state"], stopped["finished_at"]) == ("stopped", None)
    assert 0 < stopped["rows"] < whole["rows"]
    told = live.http.get(f"{PATH}/{stopped['id']}/files/capture.json").json()
    assert (told["rows"], told["tokens"]) == (stopped["rows"], stopped["tokens"])
    # what a part that was cut has written is written again
    at = live.home / "captures" / stopped["id"]
    with (at / "index.jsonl").open("a") as file:
        file.write('{"text":9,"con')
    for fields, why in (
        ({"texts": ["other", *TEXTS[1:]]}, "other texts"),
        ({"dtype": "bfloat16"}, "other fields"),
        ({"interventions": {"edits": []}}, "other fields"),
    ):
        other = live.http.post(f"{PATH}?wait=true", json=body(shard_mb=1, **fields))
        assert other.json()["error"]["code"] == "CAPTURE_ALREADY_EXISTS"
        assert why in other.json()["error"]["message"]
    done = capture(live, shard_mb=1)
    assert done["id"] == stopped["id"]
    path = folder(live, done["id"], tmp_path / "done")
    assert sorted(one.name for one in at.iterdir()) == sorted(one.name for one in path.iterdir())
    assert index(path) == index(expected)
    rows = tensors(path)
    assert all(np.array_equal(rows[name], one) for name, one in tensors(expected).items())
    for told, own in zip(done["sites"], whole["sites"], strict=True):
        assert told["norm"] == pytest.approx(own["norm"], rel=1e-12)


def test_a_shard_that_was_full_when_the_service_ended_is_opened_again(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was not written, so the rows of the part are read again."""
    monkeypatch.setattr(files, "MIB", 20_000)
    whole = capture(live, shard_mb=1)
    expected = tensors(folder(live, whole["id"], tmp_path / "whole"))
    live.data("DELETE", f"{PATH}/{whole['id']}")
    monkeypatch.setattr(owner, "PART", 2)
    write, written = files.CaptureFolders.write_record, []

    def killed(self: Any, record: Any) -> None:
        written.append(record.rows)
        if len(written) == 4:  # a capture is added, its digest is noted, and two parts are written
            raise RuntimeError("the service was killed")
        write(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(files.CaptureFolders, "write_record", killed)
        assert live.http.post(f"{PATH}?wait=true", json=body(shard_mb=1)).status_code == 500
    (stopped,) = live.data("GET", PATH)["captures"]
    assert stopped["rows"] == written[2] < written[3]
    path = folder(live, capture(live, shard_mb=1)["id"], tmp_path / "done")
    assert all(np.array_equal(tensors(path)[name], one) for name, one in expected.items())


def test_a_cancelled_job_leaves_what_it_has_written(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "PART", 8)
    texts = TEXTS[:2] * 100
    expected = capture(live, texts=texts)
    path = folder(live, expected["id"], tmp_path / "whole")
    live.data("DELETE", f"{PATH}/{expected['id']}")
    job = live.data("POST", PATH, body(texts=texts), 202)["job"]
    while not (found := live.data("GET", PATH)["captures"])[0]["rows"]:
        assert found[0]["state"] == "reading"
        assert found[0]["job_id"] == job["id"]
    assert live.error("POST", PATH, body(texts=texts))[1] == "CAPTURE_ALREADY_EXISTS"
    assert live.data("DELETE", f"/api/jobs/{job['id']}")["job"]["state"] == "cancelled"
    (stopped,) = live.data("GET", PATH)["captures"]
    assert stopped["state"] == "stopped"
    assert 0 < stopped["rows"] < expected["rows"]
    done = capture(live, texts=texts)
    rows = tensors(folder(live, done["id"], tmp_path / "done"))
    for name, one in tensors(path).items():
        np.testing.assert_allclose(rows[name], one, rtol=2e-2, atol=2e-2)
    assert index(tmp_path / "done") == index(path)


def test_a_capture_that_is_deleted_while_it_is_read_is_gone(live: Running) -> None:
    job = live.data("POST", PATH, body(texts=TEXTS[:2] * 400), 202)["job"]
    (found,) = live.data("GET", PATH)["captures"]
    live.data("DELETE", f"{PATH}/{found['id']}")
    assert live.data("GET", f"/api/jobs/{job['id']}")["job"]["state"] == "cancelled"
    assert live.data("GET", PATH) == {
        "captures": [],
        "stored_bytes": 0,
        "limit_mb": live.service.owners.settings.captures_max_mb,
    }
    assert list((live.home / "captures").iterdir()) == []


def test_a_full_disk_and_a_full_store_leave_a_capture_that_goes_on(
    live: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "PART", 2)
    expected = tensors(folder(live, capture(live, name="whole")["id"], tmp_path / "whole"))
    write, count = files.CaptureWriter._write_values, []

    def full(self: Any, *args: Any) -> None:
        count.append(1)
        if len(count) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(files.CaptureWriter, "_write_values", full)
        refused = live.error("POST", f"{PATH}?wait=true", body())
    assert refused[:2] == (507, "INSUFFICIENT_DISK")
    stopped = live.data("GET", PATH)["captures"][1]
    assert (stopped["state"], stopped["rows"] > 0) == ("stopped", True)
    settings = live.service.owners.settings
    with monkeypatch.context() as patch:
        patch.setattr(settings, "captures_max_mb", 0)
        status, code, details = live.error("POST", f"{PATH}?wait=true", body())
        assert (status, code, details["limit_mb"]) == (507, "CAPTURES_FULL", 0)
        patch.setattr(settings, "captures_max_mb", 1)
        patch.setattr(owner, "MIB", 1 << 10)
        patch.setattr(settings, "activations_raw_all_mb", 1 << 20)
        assert live.error("POST", f"{PATH}?wait=true", body())[1] == "CAPTURES_FULL"
    reserve = shutil.disk_usage(live.home).free // 2**20 + 100_000
    with monkeypatch.context() as patch:
        captures = live.service.owners.owner(CAPTURES)
        room = captures._room
        patch.setattr(captures, "_room", owner.DocumentRoom(room.folder, 0, 0, reserve))
        status, code, details = live.error("POST", PATH, body())
        assert (status, code, details["reserve_mb"]) == (507, "INSUFFICIENT_DISK", reserve)
    rows = tensors(folder(live, capture(live)["id"], tmp_path / "done"))
    for name, one in expected.items():
        np.testing.assert_allclose(rows[name], one, rtol=2e-2, atol=2e-2)


@pytest.mark.local("it kills the one engine process of this machine")
def test_a_capture_outlasts_its_engine_and_its_service(start: Start, tmp_path: Path) -> None:
    texts = TEXTS[:2] * 300
    with start() as live:
        load_demo(live)
        job = live.data("POST", PATH, body(texts=texts), 202)["job"]
        while not live.data("GET", PATH)["captures"][0]["rows"]:
            pass
        resident = live.service.owners.conductor.resident
        assert resident is not None
        os.kill(resident.held().pid or 0, signal.SIGKILL)
        while (now := live.data("GET", f"/api/jobs/{job['id']}")["job"])["state"] == "running":
            pass
        assert (now["state"], now["error"]["code"]) == ("failed", "ENGINE_UNAVAILABLE")
        live.data("POST", "/api/models/1/load?wait=true")
        before = live.data("GET", PATH)["captures"][0]
        assert before["state"] == "stopped"
        live.data("POST", PATH, body(texts=texts), 202)
        while live.data("GET", PATH)["captures"][0]["rows"] == before["rows"]:
            pass
    with running(live.home) as live:
        (after,) = live.data("GET", PATH)["captures"]
        assert (after["state"], after["id"]) == ("stopped", before["id"])
        assert after["rows"] > before["rows"]
        live.data("POST", "/api/models/1/load?wait=true")
        done = capture(live, texts=texts)
        path = folder(live, done["id"], tmp_path / "capture")
        read = contexts(live, texts, 16)
        assert done["rows"] == len(index(path)) == sum(len(ids) for _, _, ids in read)
        (one,) = {rows.shape[0] for rows in tensors(path).values()}
        assert one == done["rows"]


@pytest.mark.parametrize(
    ("fields", "code", "place"),
    [
        ({"sites": [{"site": "nothing", "layers": [1]}]}, "INVALID_PARAMETER", "sites[0].site"),
        (
            {"sites": [SITES[0], {"site": "resid_mid", "layers": [9]}]},
            "INVALID_PARAMETER",
            "sites[1].layers",
        ),
        (
            {"sites": [{"site": "hook_z", "layers": [1], "heads": [99]}]},
            "INVALID_PARAMETER",
            "sites[0].heads",
        ),
        (
            {"sites": [{"site": "mlp_out", "layers": [1], "heads": [0]}]},
            "INVALID_PARAMETER",
            "sites[0].heads",
        ),
        ({"sites": [SITES[0], SITES[0]]}, "INVALID_PARAMETER", "sites[1]"),
        ({"sites": []}, "VALIDATION_ERROR", "body.sites"),
        ({"positions": "first"}, "INVALID_PARAMETER", "positions"),
        ({"positions": "generated"}, "INVALID_PARAMETER", "positions"),
        ({"positions": {"prompt_window": 3}}, "INVALID_PARAMETER", "positions.prompt_window"),
        ({"interventions": {"edits": [{}]}}, "INVALID_INTERVENTION", "interventions.edits[0].op"),
        (
            {"interventions": {"edits": [], "mode": "add"}},
            "INVALID_INTERVENTION",
            "interventions.mode",
        ),
        (
            {"interventions": {"edits": [{"op": "ablate", "feature": {"index": 99_999}}]}},
            "INVALID_FEATURE_INDEX",
            "interventions.edits[0].feature.index",
        ),
        ({"texts": None}, "VALIDATION_ERROR", "texts"),
        ({"messages": [{"role": "user", "content": "a"}]}, "VALIDATION_ERROR", "messages"),
        ({"texts": None, "repo_id": "a/b"}, "VALIDATION_ERROR", "file_path"),
        ({"revision": "main"}, "VALIDATION_ERROR", "revision"),
        ({"max_tokens": 100_000_000}, "VALIDATION_ERROR", "max_tokens"),
        ({"context": 2048}, "INVALID_PARAMETER", "context"),
        ({"texts": None, "corpus_id": "corpus_1"}, "CORPUS_NOT_FOUND", None),
        ({"texts": None, "local_path": "/nowhere.jsonl"}, "INVALID_LOCAL_PATH", None),
        ({"dtype": "int8"}, "VALIDATION_ERROR", "body.dtype"),
        ({"positions": {"tokens": [10**30]}}, "INVALID_PARAMETER", "positions.tokens[0]"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_its_place_before_anything_is_read(
    live: Running, fields: Any, code: str, place: str | None
) -> None:
    jobs = len(live.data("GET", "/api/jobs")["jobs"])
    _, told, details = live.error("POST", PATH, body(**fields))
    assert told == code
    if code == "VALIDATION_ERROR":
        name = ".".join(map(str, details["errors"][0]["loc"])).removeprefix("body.")
        assert name == (place or "").removeprefix("body.")
    else:
        assert details.get("param") == place
    assert len(live.data("GET", "/api/jobs")["jobs"]) == jobs
    assert live.data("GET", PATH)["captures"] == []


def test_values_of_a_context_that_take_too_much_memory_are_refused_with_the_arithmetic(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.service.owners.settings, "activations_raw_all_mb", 1)
    every = [{"site": "resid_post", "layers": "all"}]
    status, code, details = live.error("POST", PATH, body(sites=every, context=1024))
    width = details["numbers"]
    assert (status, code, details["param"]) == (400, "INVALID_PARAMETER", "context")
    assert (details["positions"], details["max_bytes"], width % 5) == (1024, 1 << 20, 0)
    assert capture(live, sites=every, context=1024, positions="last")["rows"] == 3


def test_a_file_and_a_corpus_are_read(live: Running, tmp_path: Path) -> None:
    expected = index(folder(live, capture(live, name="texts")["id"], tmp_path / "texts"))
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    local = {"texts": None, "local_path": str(file), "text_field": "body"}
    made = capture(live, name="file", **local)
    assert index(folder(live, made["id"], tmp_path / "file")) == expected
    read = {"name": "sea", "source": "inline", "texts": TEXTS, "context": 16}
    corpus = live.data("POST", "/api/corpora?wait=true", read)["job"]["result"]
    made = capture(live, name="corpus", texts=None, corpus_id=corpus["id"])
    assert made["source"]["corpus_id"] == corpus["id"]
    lines = index(folder(live, made["id"], tmp_path / "corpus"))
    assert [one["token"] for one in lines] == [one["token"] for one in expected]
    live.data("DELETE", f"/api/corpora/{corpus['id']}")


def test_a_file_of_the_hub_is_read_and_its_token_is_kept_nowhere(start: Start) -> None:
    token = "hf_SentinelTokenThatNobodyElseMaySee"
    lines = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS).encode()
    with LoopbackHub() as hub, start(hf_endpoint=hub.url) as live:
        load_demo(live)
        files = {"train/sea.jsonl": lines}
        hub.add("datasets/acme/sea", files, private=True, tokens=(token,))
        place = {"repo_id": "acme/sea", "file_path": "train/sea.jsonl"}
        asked = body(texts=None, text_field="body", **place)
        assert live.error("POST", f"{PATH}?wait=true", asked)[1] == "REPO_NOT_FOUND"
        made = capture(live, texts=None, text_field="body", **place, hub_token=token)
        assert (made["source"]["repo_id"], made["source"]["file_path"]) == tuple(place.values())
        read = contexts(live, TEXTS, 16)
        assert made["rows"] == sum(len(ids) for _, _, ids in read)
        said = live.http.get("/api/jobs").text + live.http.get(f"{PATH}/{made['id']}").text
        assert token not in said
        for file in live.home.rglob("*"):
            assert not file.is_file() or token.encode() not in file.read_bytes(), file


@pytest.mark.parametrize("context", [8, 64])
def test_of_a_conversation_the_messages_of_a_role_are_read(
    live: Running, tmp_path: Path, context: int
) -> None:
    """Also where a message goes on in the next context."""
    told = "The boat sailed over the waves and the whale swam near the ship"
    messages = [
        {"role": "system", "content": "You tell stories"},
        {"role": "user", "content": told},
    ]
    fields = {"texts": None, "messages": messages, "context": context}
    made = capture(live, positions={"roles": ["user"]}, **fields)
    lines = index(folder(live, made["id"], tmp_path / "capture"))
    spelled = live.data("POST", "/api/detokenize", {"ids": [one["token"] for one in lines]})
    assert spelled["text"].strip() == told
    assert len({one["context"] for one in lines}) == (1 if context == 64 else 3)
    bad = [{"role": "nobody", "content": 3}]
    assert live.error("POST", PATH, body(texts=None, messages=bad))[1] == "VALIDATION_ERROR"


def test_what_no_record_can_have_is_refused(live: Running) -> None:
    edits = {"edits": [ABLATED | {"positions": {"after_text": "\ud800"}}]}
    for field, value in (("interventions", edits), ("text_field", "\ud800")):
        sent = json.dumps(body(**{field: value}))
        json_type = {"content-type": "application/json"}
        answer = live.http.post(PATH, content=sent, headers=json_type)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "VALIDATION_ERROR")


def test_nothing_to_read_is_a_capture_without_rows(live: Running) -> None:
    for name, fields in (("empty", {"texts": [""]}), ("none", {"positions": {"tokens": [1999]}})):
        made = capture(live, name=name, **fields)
        assert (made["rows"], made["stored_bytes"]) == (0, 0)
        assert [one["name"] for one in made["files"]] == ["capture.json", "index.jsonl"]
        assert [one["norm"] for one in made["sites"]] == [None] * 3


def test_a_text_that_edits_do_not_fit_is_named(live: Running) -> None:
    edits = [ABLATED | {"positions": {"prompt_positions": [12]}}]
    asked = body(interventions={"edits": edits}, texts=[TEXTS[1], TEXTS[0]])
    _, code, details = live.error("POST", f"{PATH}?wait=true", asked)
    assert (code, details["param"]) == (
        "INVALID_PARAMETER",
        "texts[0]",
    )  # its last context is short


def test_a_capture_runs_beside_requests(live: Running) -> None:
    job = live.data("POST", PATH, body(texts=TEXTS[:2] * 50), 202)["job"]
    texts = [live.complete("The boat", max_tokens=8, temperature=0)["choices"][0]["text"]]
    while live.data("GET", f"/api/jobs/{job['id']}")["job"]["state"] in ("waiting", "running"):
        texts.append(live.complete("The boat", max_tokens=8, temperature=0)["choices"][0]["text"])
    assert live.data("GET", f"/api/jobs/{job['id']}")["job"]["state"] == "done"
    assert len(set(texts)) == 1


def test_without_a_model_nothing_is_captured(start: Start) -> None:
    with start() as live:
        assert live.error("POST", PATH, body())[1] == "MODEL_NOT_LOADED"
        assert live.data("GET", PATH)["captures"] == []
