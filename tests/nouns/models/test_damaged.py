"""Hostile checkpoints: each is refused by name before its weights are read, and the service goes on."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from steerserve.engines.checkpoint import tokenizer
from tests.engines import damaged
from tests.service import Running, add_model, running
from tests.worker import models


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damaged.make(tmp_path_factory.mktemp("sound") / "model")


@pytest.mark.parametrize("name", damaged.UNREADABLE)
def test_a_checkpoint_that_lies_is_refused_when_it_is_registered(
    shared: Running, sound: Path, tmp_path: Path, name: str
) -> None:
    folder = damaged.copy(sound, tmp_path / "lying", damaged.UNREADABLE[name])
    body = {"source": "local", "local_path": str(folder)}
    status, code, _ = shared.error("POST", "/api/models", body)
    assert (status, code) == (400, "INVALID_LOCAL_PATH")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("damaged"), kv_cache_mb=1, torch_threads=1) as live:
        yield live


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service in which a load may take a few seconds."""
    home = tmp_path_factory.mktemp("hasty")
    with running(home, kv_cache_mb=1, torch_threads=1, load_timeout=4) as live:
        yield live


def load(live: Running, folder: Path) -> dict[str, Any]:
    """The error of a load."""
    number = add_model(live, folder, folder.name)
    answer = live.http.post(f"/api/models/{number}/load?wait=true").json()
    return dict(answer["error"] or {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hidden", "the configuration describes 1280311296 parameters"),
        ("hanging", "'loading_tokenizer'"),
        ("doubled text", "'loading_tokenizer'"),
    ],
)
def test_what_a_checkpoint_costs_before_its_weights_are_read_is_bounded(
    hasty: Running, sound: Path, tmp_path: Path, name: str, reason: str
) -> None:
    folder = damaged.copy(sound, tmp_path / name.replace(" ", "_"), damaged.UNLOADABLE[name])
    error = load(hasty, folder)
    assert error["code"] == "MODEL_LOAD_FAILED"
    assert reason in error["message"]


def test_a_text_on_which_the_tokenizer_hangs_is_refused_and_others_are_served(
    live: Running, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = {"type": "Sequence", "normalizers": damaged.doubling("~")}
    damage = damaged.tokenizer(normalizer=growing)
    assert load(live, damaged.copy(sound, tmp_path / "growing", damage)) == {}
    body = {"model": "growing", "prompt": "fine", "max_tokens": 4, "temperature": 0}
    before = live.post("/v1/completions", body).json()["choices"]
    monkeypatch.setattr(tokenizer, "ENCODE_SECONDS", 0.5)
    for path, field in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        status, error = live.v1_error(path, {"model": "growing", field: "a~b"})
        assert (status, error["code"], error["param"]) == (400, "invalid_parameter", field)
        assert error["message"].startswith("the model's tokenizer ")
    monkeypatch.undo()
    assert live.post("/v1/completions", body).json()["choices"] == before


def test_a_failed_load_names_the_tensor_and_the_two_shapes(
    live: Running, sound: Path, tmp_path: Path
) -> None:
    damage = damaged.config(intermediate_size=8)
    error = load(live, damaged.copy(sound, tmp_path / "narrow", damage))
    assert error["code"] == "MODEL_LOAD_FAILED"
    assert "in another shape" in error["message"]
    assert "model.layers.0.mlp.down_proj.weight [" in error["message"]
    assert ", not [" in error["message"]


def test_a_failed_load_names_the_tensors_that_cannot_be_put_together(
    live: Running, tmp_path: Path
) -> None:
    folder = models.save("mixtral", tmp_path / "experts")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if ".experts.1." in name)
    save_file(tensors | {name: tensors[name][:-1].contiguous()}, file, {"format": "pt"})
    error = load(live, folder)
    assert error["code"] == "MODEL_LOAD_FAILED"
    assert "model.layers.0.mlp.experts." in error["message"]
    assert "equal size" in error["message"]


def test_layers_that_the_configuration_leaves_out_are_warned_of(
    live: Running, sound: Path, tmp_path: Path
) -> None:
    folder = damaged.copy(sound, tmp_path / "short", damaged.config(num_hidden_layers=1))
    assert load(live, folder) == {}
    listed = live.data("GET", "/api/models")["models"]
    (record,) = [one for one in listed if one["status"] == "loaded"]
    (warning,) = record["warnings"]
    assert "config.json names 1 layers" in warning
    assert warning in live.data("GET", "/api/health/inference")["limitations"]


def test_layers_of_another_module_are_no_layers_that_are_left_out(
    live: Running, sound: Path, tmp_path: Path
) -> None:
    folder = damaged.copy(sound, tmp_path / "seeing", damaged.config())
    file = folder / "model.safetensors"
    tower = {"vision_tower.encoder.layers.26.weight": torch.zeros(2)}
    save_file(load_file(file) | tower, file, {"format": "pt"})
    assert load(live, folder) == {}
    listed = live.data("GET", "/api/models")["models"]
    assert [one["warnings"] for one in listed if one["status"] == "loaded"] == [[]]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_byte_order_mark_is_refused_when_the_model_is_registered(
    shared: Running, sound: Path, tmp_path: Path, name: str
) -> None:
    def mark(folder: Path) -> None:
        (folder / name).write_bytes(BOM_UTF8 + (folder / name).read_bytes())

    folder = damaged.copy(sound, tmp_path / "marked", mark)
    body = {"source": "local", "local_path": str(folder)}
    error = shared.http.post("/api/models", json=body).json()["error"]
    assert error["code"] == "INVALID_LOCAL_PATH"
    assert error["message"].startswith(f"{name} begins with a byte order mark")


@pytest.mark.parametrize("inside", ["", "model.safetensors"])
def test_a_model_is_refused_as_an_sae_in_one_sentence(
    shared: Running, sound: Path, inside: str
) -> None:
    body = {"local_path": str(sound / inside)}
    answer = shared.http.post("/api/saes/download", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "SAE_INCOMPATIBLE")
    assert error["message"] == (
        "the path is of a model (LlamaForCausalLM), not of an SAE; POST /api/models registers it"
    )
