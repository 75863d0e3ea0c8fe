"""SAE files that are unusual or contradict themselves: read, or refused with the names of the file and the field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from steerserve import demo
from tests.service import Running, add_model

SAE = demo.saes()[0]
WEIGHTS = "sae_weights.safetensors"


FVU = 0.2
"""Of the SAE in `SAE` as it is, with room; an SAE whose tensors are mixed up is far above it."""


@pytest.fixture
def free(shared: Running) -> Iterator[Running]:
    """The shared service with the demo model loaded; afterwards only the SAEs of the demo are registered."""
    before = {sae["id"] for sae in shared.data("GET", "/api/saes")["saes"]}
    yield shared
    for sae in shared.data("GET", "/api/saes")["saes"]:
        if sae["status"] == "attached":
            shared.data("POST", f"/api/saes/{sae['id']}/detach")
        if sae["id"] not in before:
            shared.data("DELETE", f"/api/saes/{sae['id']}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(SAE.path, tmp_path / "sae", ignore=shutil.ignore_patterns("labels*"))
    )


def configure(folder: Path, metadata: dict[str, Any] | None = None, **fields: Any) -> None:
    """Change fields of an SAE's configuration."""
    config = json.loads((folder / "cfg.json").read_text())
    config |= fields
    config["metadata"] |= metadata or {}
    (folder / "cfg.json").write_text(json.dumps(config))


def register(live: Running, place: Path) -> dict[str, Any]:
    """Register what lies at a place; its record."""
    made = live.data("POST", "/api/saes/download", {"local_path": str(place)}, 202)
    return dict(live.data("GET", f"/api/saes/{made['sae_id']}"))


def attach(live: Running, sae_id: str, **fields: Any) -> Any:
    return live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": SAE.layer, **fields})


def refusal(live: Running, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """Code and message of a refused request."""
    error = live.http.post(path, json=body).json()["error"]
    return error["code"], error["message"]


def test_upper_case_file_names_are_read(free: Running, folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.upper())
    sae = register(free, folder)
    assert (sae["format"], sae["is_loadable"]) == ("saelens", True)
    assert attach(free, sae["id"])["check"]["fvu"] < FVU


def test_names_that_differ_in_letter_case_only_are_refused(free: Running, folder: Path) -> None:
    shutil.copy(folder / "cfg.json", folder / "CFG.json")
    (folder / "cfg.json").rename(folder / "Cfg.json")
    code, message = refusal(free, "/api/saes/download", {"local_path": str(folder)})
    assert code == "SAE_LOAD_FAILED"
    assert "CFG.json" in message
    assert "Cfg.json" in message


@pytest.mark.parametrize(
    "wrap",
    [
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: name.replace("encoder", "encoder._orig_mod").replace("bias", "module.bias"),
    ],
    ids=["data parallel", "compiled", "both", "compiled within"],
)
def test_names_behind_the_prefixes_of_pytorch_are_read(
    free: Running, folder: Path, wrap: Callable[[str], str]
) -> None:
    weights = load_file(folder / WEIGHTS)
    names = {"encoder.weight": weights["W_enc"].T, "encoder.bias": weights["b_enc"]}
    names |= {"decoder.weight": weights["W_dec"].T, "bias": weights["b_dec"]}
    place = folder.parent / "sae.pt"
    torch.save({wrap(name): tensor.contiguous() for name, tensor in names.items()}, place)
    sae = register(free, place)
    assert (sae["d_in"], sae["d_sae"]) == tuple(weights["W_enc"].shape)
    said = {"activation": "topk", "k": 24, "subtract_b_dec": True, "site": "resid_post"}
    assert attach(free, sae["id"], overrides=said)["check"]["fvu"] < FVU


@pytest.mark.parametrize("field", ["d_in", "d_sae"])
def test_a_configuration_that_contradicts_the_tensors_is_refused(
    free: Running, folder: Path, field: str
) -> None:
    true = json.loads((folder / "cfg.json").read_text())[field]
    configure(folder, **{field: 32})
    code, message = refusal(free, "/api/saes/download", {"local_path": str(folder)})
    assert code == "SAE_LOAD_FAILED"
    for part in ("cfg.json", f"{field} 32", WEIGHTS, str(true)):
        assert part in message


@pytest.mark.parametrize("name", ["blocks.2.ln2.hook_normalized", "blocks.2.ln1.hook_normalized"])
def test_a_site_behind_a_layer_norm_is_refused_by_name(
    free: Running, folder: Path, name: str
) -> None:
    configure(folder, {"hook_name": name, "hf_hook_name": None})
    sae = register(free, folder)
    code, message = refusal(free, f"/api/saes/{sae['id']}/attach", {"layer": SAE.layer})
    assert code == "SAE_INCOMPATIBLE"
    assert name in message
    assert "gain" in message


@pytest.mark.shows("attach-response.5", "saes.15", "states.9")
def test_a_model_named_as_the_sae_says_is_no_other_model(
    free: Running, folder: Path, tmp_path: Path
) -> None:
    configure(folder, {"model_name": "m100"})
    sae = register(free, folder)
    (loaded,) = (m for m in free.data("GET", "/api/models")["models"] if m["status"] == "loaded")
    copy = shutil.copytree(demo.MODEL_DIR, tmp_path / "copy")
    for name, warned in (("m100", False), ("m101", True)):
        model_id = add_model(free, copy, name)
        free.data("POST", f"/api/models/{model_id}/load?wait=true")
        warnings = " ".join(attach(free, sae["id"])["warnings"])
        assert ("trained on" in warnings) is warned
        assert ("'m100'" in warnings and "'m101'" in warnings) is warned
        free.data("POST", f"/api/saes/{sae['id']}/detach")
        free.data("POST", f"/api/models/{loaded['id']}/load?wait=true")
        free.data("DELETE", f"/api/models/{model_id}")
