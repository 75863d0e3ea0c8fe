"""The guides of docs/guides: their commands that need neither a GPU nor the hub, run as written."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from steerserve import demo
from steerserve.cli import main
from tests.loopback_hub import LoopbackHub
from tests.service import Running, add_demo, load_demo, running

GUIDES = Path(__file__).parent.parent / "docs" / "guides"
Guide = Callable[[str], tuple[list[str], dict[str, Any]]]

WRITTEN = "http://127.0.0.1:8000"
"""The service that the guides ask."""
SMALLER = {
    "layer_20/width_16k/canonical": "layer_2/width_16k/canonical",
    "layer_20/width_16k/average_l0_71": "layer_2/width_16k/average_l0_141",
    "steerserve load gemma-2-2b": f"steerserve load {demo.MODEL_NAME}",
}
"""The stand-in for Gemma 2 has four layers, so another SAE of the same release is named. The demo model, of the same
files, is loaded in its place, because the checks of its load are kept."""
DEMO = demo.saes()[0]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose hub has the repositories of the guides, with small files in them."""
    width = json.loads((demo.MODEL_DIR / "config.json").read_text())["hidden_size"]
    with LoopbackHub() as hub:
        hub.add("google/gemma-2-2b", {f.name: f.read_bytes() for f in demo.MODEL_DIR.iterdir()})
        scope = tmp_path_factory.mktemp("scope") / "params.npz"
        matrix = np.eye(width, dtype=np.float32)
        zeros = np.zeros(width, np.float32)
        np.savez(scope, W_enc=matrix, W_dec=matrix, b_enc=zeros, b_dec=zeros, threshold=zeros)
        path = "layer_2/width_16k/average_l0_141/params.npz"
        hub.add("google/gemma-scope-2b-pt-res", {path: scope.read_bytes()})
        older = {file.name: file.read_bytes() for file in DEMO.path.iterdir()}
        files = {f"blocks.8.hook_resid_pre/{name}": content for name, content in older.items()}
        hub.add("jbloom/GPT2-Small-SAEs-Reformatted", files)
        settings: dict[str, Any] = {"hf_endpoint": hub.url, "disk_reserve_mb": 0}
        with running(tmp_path_factory.mktemp("guides"), **settings) as made:
            add_demo(made)
            yield made


@pytest.fixture
def follow(service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guide:
    """Runs the blocks `bash` and `python` of a guide; what the commands printed, and the names of its Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEERSERVE_URL", service.url)
    monkeypatch.setenv("STEERSERVE_HOME", str(service.home))

    def run(page: str) -> tuple[list[str], dict[str, Any]]:
        printed: list[str] = []
        names: dict[str, Any] = {"__name__": page}
        text = (GUIDES / page).read_text(encoding="utf-8")
        for language, block in re.findall(r"^ *```(bash|python)\n(.*?)^ *```", text, re.M | re.S):
            for old, new in SMALLER.items():
                block = block.replace(old, new)
            if language == "python":
                exec(compile(block, page, "exec"), names)
            else:
                printed += [command(line.strip()) for line in block.splitlines() if line.strip()]
        if "client" in names:
            names["client"].close()
        return printed, names

    def command(line: str) -> str:
        if line.startswith("steerserve "):
            words, _, otherwise = line.partition(" || ")
            result = CliRunner().invoke(main, shlex.split(words)[1:])
            assert (result.exit_code == 0) is (not otherwise), (line, result.output)
            return result.output
        asked = ["bash", "-c", line.replace(WRITTEN, service.url)]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout

    return run


def test_gemma_is_pulled_labelled_and_steered(follow: Guide, service: Running) -> None:
    folder = Path("explanations")
    folder.mkdir()
    entries = [
        {
            "modelId": "gemma-2-2b",
            "layer": "20-gemmascope-res-16k",
            "index": "7",
            "description": text,
        }
        for text in ("references to\n dogs", "a second explanation")
    ]
    with gzip.open(folder / "batch-0.jsonl.gz", "wt") as written:
        written.writelines(f"{json.dumps(entry)}\n" for entry in entries)
    printed, names = follow("gemma-scope.md")
    assert json.loads(printed[0])["data"]["estimated_sizes"]["FP16"]["memory_mb"] > 0
    assert "Neuronpedia has its features as gemma-2-2b/2-gemmascope-res-16k" in printed[3]
    assert "is attached at layer 2" in printed[4]
    assert (names["found"].feature_idx, names["found"].label) == (7, "references to dogs")
    assert 0 < names["strength"] <= 200
    assert len(names["compared"].sides) == 2
    service.data("POST", f"/api/saes/{names['sae_id']}/detach")


def test_an_sae_comes_over_from_saelens(follow: Guide) -> None:
    printed, names = follow("saelens.md")
    assert "its files lack what the attach needs as overrides: is_centred=True" in printed[0]
    assert "gpt2-small-res-jb/blocks.8.hook_resid_pre" in printed[1]
    assert names["sae"].status == "cached"


def test_the_copy_before_an_upgrade_is_made(follow: Guide) -> None:
    follow("upgrade.md")
    assert Path("before-upgrade.db").stat().st_size > 0


def test_a_notebook_asks_with_a_key(
    follow: Guide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(demo.MODEL_DIR)
    with running(tmp_path / "keyed", api_keys="a-key", local_paths=folder) as keyed:
        keyed.http.headers["Authorization"] = "Bearer a-key"
        load_demo(keyed)
        monkeypatch.setenv("STEERSERVE_URL", keyed.url)
        monkeypatch.setenv("STEERSERVE_API_KEY", "a-key")
        _, names = follow("notebook.md")
    assert names["answer"].text
