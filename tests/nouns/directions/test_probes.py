"""/api/probes against a running service: probes of other tools, and what they read of an answer."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.files.directions.files import torch_file
from tests.loopback_hub import LoopbackHub
from tests.service import Running, running

PATH = "/api/probes"
LAYER, BIAS = 2, 0.75


@pytest.fixture
def live(steered: Running) -> Iterator[Running]:
    """The service; probes and vectors are deleted after the test."""
    yield steered
    for noun in ("probes", "vectors"):
        for one in steered.data("GET", f"/api/{noun}")[noun]:
            steered.data("DELETE", f"/api/{noun}/{one['id']}")


@pytest.fixture
def weights(live: Running) -> torch.Tensor:
    """Weights of the width of the demo model."""
    body = {"name": "width", "positives": ["The sea", "A boat"], "negatives": ["A cow", "Bread"]}
    trained = live.data("POST", f"{PATH}/train?wait=true", body | {"holdout": 0})["job"]["result"]
    live.data("DELETE", f"{PATH}/{trained['id']}")
    return torch.randn(trained["width"], generator=torch.Generator().manual_seed(3))


def folder(home: Path, weights: torch.Tensor) -> dict[str, Path]:
    """Files of several tools in their layouts. All of them read the stream after block LAYER."""
    home.mkdir()
    (home / "probe.safetensors").write_bytes(save({f"weights.{LAYER + 1}": weights}))
    said = {"polarity": "positives_high", "location": "layer_input", "bias": BIAS}
    (home / "probe.json").write_text(json.dumps(said))
    linear = torch.nn.Linear(len(weights), 1)
    linear.weight.data, linear.bias.data = weights[None].clone(), torch.tensor([BIAS])
    (home / "probe_head.bin").write_bytes(torch_file(linear.state_dict()))
    config = {"hidden_size": len(weights), "layer_idx": LAYER, "target_layer_name": "Block"}
    (home / "probe_config.json").write_text(json.dumps(config))
    return {"aisteer": home / "probe.safetensors", "head": home / "probe_head.bin"}


def readings(live: Running, *ids: str) -> list[dict[str, Any]]:
    answer = live.complete(
        "The boats came back to the", max_tokens=6, temperature=0, return_readings=list(ids)
    )
    return list(answer["service"]["readings"])


def test_probes_of_other_tools_read_what_a_vector_of_their_weights_reads(
    live: Running, weights: torch.Tensor, tmp_path: Path
) -> None:
    files = folder(tmp_path / "probes", weights)
    data = base64.b64encode(weights.numpy().tobytes()).decode()
    vector = {"source": "inline", "directions": [{"layer": LAYER, "data": data}]}
    vector_id = live.data("POST", "/api/vectors", {"name": "plain", **vector}, 201)["id"]
    ids = []
    for name, file in files.items():
        body = {"name": name, "source": "local", "local_path": str(file)}
        record = live.data("POST", PATH, body, 201)
        assert (record["source"]["kind"], record["training"]) == ("local", None)
        assert [(one["layer"], one["site"]) for one in record["layers"]] == [(LAYER, "resid_post")]
        ids.append(record["id"])
    inline = [{"layer": LAYER, "data": data, "bias": BIAS}]
    ids.append(
        live.data("POST", PATH, {"name": "own", "source": "inline", "weights": inline}, 201)["id"]
    )
    plain, *found = readings(live, vector_id, *ids)
    norm = float(weights.norm())
    for one in found:
        expected = [projection * norm + BIAS for projection in plain["values"]]
        assert one["values"] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_probe_is_uploaded_with_the_file_beside_it_and_moves_to_another_service(
    live: Running, weights: torch.Tensor, tmp_path: Path
) -> None:
    file = folder(tmp_path / "probes", weights)["head"]
    sent = {"file": (file.name, file.read_bytes())}
    beside = {"metadata": ("probe_config.json", (file.parent / "probe_config.json").read_bytes())}
    answer = live.http.post(PATH, data={"name": "sent"}, files=sent | beside)
    record = answer.json()["data"]
    assert (answer.status_code, record["source"]["kind"]) == (201, "upload")
    whole = live.data("GET", f"{PATH}/sent")
    (stored,) = whole["weights"]
    assert struct.unpack(f"<{len(weights)}f", base64.b64decode(stored["data"])) == tuple(weights)
    document = {"file": ("sent.json", json.dumps(whole).encode())}
    moved = live.http.post(PATH, data={"name": "moved"}, files=document).json()["data"]
    assert moved["content_digest"] == record["content_digest"]
    alone = live.http.post(PATH, data={"name": "alone"}, files=sent)
    assert (alone.status_code, alone.json()["error"]["code"]) == (422, "INVALID_PROBE")
    assert live.error("GET", f"{PATH}/alone")[:2] == (404, "PROBE_NOT_FOUND")


def test_a_probe_of_the_hub_is_read_with_the_file_beside_it(
    tmp_path: Path,
) -> None:
    file = folder(tmp_path / "probes", torch.ones(4))["head"]
    names = ("probe_head.bin", "probe_config.json")
    files = {f"sea/{name}": (file.parent / name).read_bytes() for name in names}
    body = {"source": "huggingface", "file_path": "sea/probe_head.bin"}
    with LoopbackHub() as hub, running(tmp_path / "home", hf_endpoint=hub.url) as live:
        hub.add("acme/probes", files)
        hub.add("acme/adapted", files | {"sea/adapter_model.safetensors": b""})
        here = body | {"name": "sea", "repository_id": "acme/probes"}
        record = live.data("POST", PATH, here, 201)
        assert record["layers"][0]["layer"] == LAYER
        assert record["source"]["file"] == "sea/probe_head.bin"
        refused = live.error("POST", PATH, body | {"name": "x", "repository_id": "acme/adapted"})
        assert refused[:2] == (422, "INVALID_PROBE")


def test_an_imported_probe_decides_where_an_edit_acts(
    live: Running, weights: torch.Tensor, tmp_path: Path
) -> None:
    file = folder(tmp_path / "probes", weights)["aisteer"]
    body = {"name": "gate", "source": "local", "local_path": str(file)}
    gate = live.data("POST", PATH, body, 201)["id"]
    values = readings(live, gate)[0]["values"]
    feature = {"op": "add", "feature": {"index": 90}, "value": 40.0, "positions": "generated"}

    def text(above: float) -> str:
        edit = feature | {"when": {"probe": gate, "above": above}}
        answer = live.complete(
            "The boats came back to the",
            max_tokens=6,
            temperature=0,
            interventions={"edits": [edit]},
        )
        return str(answer["choices"][0]["text"])

    plain = live.complete("The boats came back to the", max_tokens=6, temperature=0)
    assert text(max(values) + 1000) == plain["choices"][0]["text"]
    assert text(min(values) - 1000) != plain["choices"][0]["text"]


def test_a_bad_import_is_refused_and_leaves_nothing(live: Running, tmp_path: Path) -> None:
    assert live.error("POST", PATH, {"name": "x", "source": "local"})[:2] == (
        422,
        "VALIDATION_ERROR",
    )
    nowhere = {"name": "x", "source": "local", "local_path": str(tmp_path / "nothing.npz")}
    assert live.error("POST", PATH, nowhere)[1] == "INVALID_LOCAL_PATH"
    named = {
        "name": "probe_x",
        "source": "inline",
        "weights": [{"layer": 1, "data": "", "bias": 0}],
    }
    assert live.error("POST", PATH, named)[1] == "VALIDATION_ERROR"
    assert live.error("POST", PATH, named | {"name": "x"})[1] == "INVALID_PROBE"
    assert live.data("GET", PATH)["total"] == 0
