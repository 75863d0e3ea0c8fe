"""Loads that do not fit, and the card that a load names: refused with the figures, before anything is unloaded."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from tests.service import Running, add_model, load_demo

TIB = 1 << 40


def giant(folder: Path) -> Path:
    """The demo model with a tensor more, of two TiB that take no disk."""
    shutil.copytree(demo.MODEL_DIR, folder)
    name = "model.layers.0.mlp.huge.weight"
    tensor = {"dtype": "BF16", "shape": [TIB // 1024, 1024], "data_offsets": [0, 2 * TIB]}
    raw = json.dumps({name: tensor}).encode()
    with (folder / "huge.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + 2 * TIB)
    return folder


@pytest.fixture
def live(bare: Running) -> Running:
    load_demo(bare)
    return bare


@pytest.mark.shows("states.3", "resource-errors.1")
def test_a_model_that_does_not_fit_is_refused_with_every_figure(
    live: Running, tmp_path: Path
) -> None:
    huge = add_model(live, giant(tmp_path / "giant"), "giant")
    status, code, details = live.error("POST", f"/api/models/{huge}/load")
    assert (status, code) == (507, "INSUFFICIENT_MEMORY")
    (card,) = details["per_card"]
    assert set(card) >= {
        *("device", "name", "free_mb", "weights_mb", "kv_mb", "working_mb", "staging_mb"),
        *("context_mb", "needed_mb"),
    }
    parts = ("weights_mb", "kv_mb", "working_mb", "staging_mb", "context_mb")
    assert card["needed_mb"] == sum(card[part] for part in parts) > card["free_mb"]
    assert card["weights_mb"] >= 2 << 20
    assert details["working_memory"]["method"] in ("traced", "estimated")
    assert details["short_devices"] == [card["device"]] == ["cpu"]
    assert details["min_context_tokens"] == details["model_max_context_tokens"] > 0
    assert details["rebalance_passes"] == 0
    assert details["can_ever_fit"] is False
    refused = live.http.post(f"/api/models/{huge}/load")
    assert refused.headers["x-should-retry"] == "false"
    # nothing was touched: the resident model serves, and the other one may be tried again
    assert live.complete("One day", max_tokens=1)["choices"]
    assert live.data("GET", f"/api/models/{huge}")["status"] == "ready"

    answer = live.http.post("/v1/completions", json={"model": "giant", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "insufficient_memory")
    assert answer.headers["retry-after"] == str(live.service.settings.retry_after_memory_s)
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["details"]["can_ever_fit"] is False
    assert live.data("GET", "/api/health/detailed")["model_name"] == demo.MODEL_NAME


@pytest.mark.local("a cluster chooses the cards, and refuses a load that names one")
@pytest.mark.shows("resource-errors.4")
@pytest.mark.parametrize("gpu", [0, "3", "GPU-12345678-1234-1234-1234-123456789abc"])
def test_a_card_that_is_not_there_is_not_found(shared: Running, tmp_path: Path, gpu: Any) -> None:
    other = add_model(shared, demo.MODEL_DIR, f"on-{gpu}", quantization="Q4")
    try:
        status, code, details = shared.error("POST", f"/api/models/{other}/load", {"gpu": gpu})
        assert (status, code) == (404, "GPU_NOT_FOUND")
        assert details["visible"] == []
        assert shared.data("GET", f"/api/models/{other}")["status"] == "ready"
    finally:
        shared.data("DELETE", f"/api/models/{other}")


def test_a_host_without_cards_is_where_everything_goes(bare: Running) -> None:
    model_id = add_model(bare, demo.MODEL_DIR)
    for gpu in (None, "auto", " ALL "):
        row = bare.data("POST", f"/api/models/{model_id}/load?wait=true", {"gpu": gpu})
        assert row["status"] == "loaded"
        assert row["gpu_indices"] == []
        assert row["placement"]["mode"] == "single"
        assert row["placement"]["devices"] == ["cpu"]
        (listed,) = bare.data("GET", "/api/models")["models"]
        assert listed["placement"] == row["placement"]
        health = bare.data("GET", "/api/health/detailed")
        assert health["model_placement"] == row["placement"]
        bare.data("POST", f"/api/models/{model_id}/unload")
        assert bare.data("GET", f"/api/models/{model_id}")["placement"] is None


@pytest.mark.shows("model-record.5", "models.2", "models.16", "models.17")
@pytest.mark.parametrize("quantization", ["Q8", "Q4"])
def test_a_model_is_quantized_as_it_loads(bare: Running, quantization: str) -> None:
    model_id = add_model(bare, demo.MODEL_DIR, "small", quantization=quantization)
    row = bare.data("POST", f"/api/models/{model_id}/load?wait=true")
    assert (row["quantization"], row["status"]) == (quantization, "loaded")
    asked = {"model": "small", "prompt": "One day", "max_tokens": 8, "temperature": 0}
    answer = bare.post("/v1/completions", asked).json()
    assert answer["usage"]["completion_tokens"] == 8
    assert f"/{quantization}:" in answer["system_fingerprint"]
    scored = bare.post("/v1/completions", {**asked, "max_tokens": 1, "logprobs": 2}).json()
    assert len(scored["choices"][0]["logprobs"]["top_logprobs"][0]) == 2
    sae = demo.saes()[0]
    body = {"local_path": str(sae.path)}
    sae_id = bare.data("POST", "/api/saes/download", body, 202)["sae_id"]
    bare.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    feature = demo.proof()["feature_idx"]
    bare.data("POST", "/api/saes/steering", {"feature_idx": feature, "value": 60.0})
    steered = bare.post("/v1/completions", asked).json()
    assert steered["choices"][0]["text"] != answer["choices"][0]["text"]
