"""GGUF control vectors are what llama.cpp itself makes of the same file: the service steers a checkpoint, llama.cpp the
GGUF model with the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from steerserve import demo
from tests import gguf, llama_cpp
from tests.files.directions.files import gguf_file
from tests.llama_cpp import ControlVector
from tests.service import Running, add_model, running

pytestmark = [
    pytest.mark.local("its model has another precision than that of the shared services"),
    pytest.mark.skipif(
        llama_cpp.library() is None,
        reason="only wheels of xllamacpp for Linux export these functions",
    ),
]

NAME = "twin"
LAYERS = range(1, 5)
"""The blocks of the demo model that a control vector can steer: all but block 0."""
RANGES = [*((layer, layer) for layer in LAYERS), (1, 4)]
TOKENS = 16
TOP = 20
BOUND = 0.02
"""The most by which a log-probability may differ, in nats: llama.cpp keeps keys and values in float16."""


@dataclass(frozen=True, slots=True)
class Twins:
    live: Running
    model: Path
    width: int
    prompt: list[int]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """A service with the demo model in float32, and the GGUF file of that model."""
    folder = tmp_path_factory.mktemp("twins")
    checkpoint = shutil.copytree(demo.MODEL_DIR, folder / NAME)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    weights = checkpoint / "model.safetensors"
    save_file({key: value.float() for key, value in load_file(weights).items()}, weights)
    model = gguf.write_twin(checkpoint, folder / f"{NAME}.gguf")
    with running(tmp_path_factory.mktemp("home")) as live:
        model_id = add_model(live, checkpoint, NAME)
        live.data("POST", f"/api/models/{model_id}/load?wait=true")
        told = live.data("POST", "/api/tokenize", {"text": "Once upon a time there was a"})
        yield Twins(live, model, config["hidden_size"], told["ids"])


def directions(width: int) -> dict[str, np.ndarray]:
    """A direction for each layer, long enough that each changes the text."""
    source = np.random.default_rng(8)
    return {f"direction.{at}": source.normal(scale=6, size=width).astype("<f4") for at in LAYERS}


def steered(twins: Twins, *edits: dict[str, Any]) -> tuple[list[int], list[dict[int, float]]]:
    """The tokens of the service's greedy answer, and the most probable log-probabilities before each."""
    answer = twins.live.complete(
        twins.prompt,
        model=NAME,
        max_tokens=TOKENS,
        temperature=0,
        interventions={"edits": list(edits)},
        return_logprobs={"top": TOP, "of": ["steered"]},
    )
    entries = answer["service"]["logprobs"]
    tops = [
        {one["token_id"]: one["logprob"] for one in entry["steered"]["top"]} for entry in entries
    ]
    return [entry["token_id"] for entry in entries], tops


@pytest.mark.parametrize("writer", ["repeng", "service"])
def test_each_layer_alone_and_all_together_write_what_llama_cpp_writes(
    twins: Twins, tmp_path: Path, writer: str
) -> None:
    data = gguf_file(tmp_path, directions(twins.width))
    made = twins.live.http.post(
        "/api/vectors", data={"name": writer}, files={"file": ("calm.gguf", data)}
    )
    vector = made.json()["data"]["id"]
    if writer == "service":
        data = twins.live.http.get(f"/api/vectors/{vector}/export?format=gguf").content
    file = tmp_path / "read-by-llama.gguf"
    file.write_bytes(data)
    controls = [None, *(ControlVector(str(file), first, last) for first, last in RANGES)]
    truths = llama_cpp.continued(twins.model, twins.prompt, TOKENS, controls)
    add = {"op": "add", "vector": vector, "value": 1}
    asked = [[], *([add | {"layers": {"from": a, "to": b}}] for a, b in RANGES)]
    for edits, truth in zip(asked, truths, strict=True):
        tokens, tops = steered(twins, *edits)
        assert tokens == truth.tokens, edits
        for top, logprobs in zip(tops, truth.logprobs, strict=True):
            assert len(top) == TOP
            expected = [logprobs[token] for token in top]
            np.testing.assert_allclose(list(top.values()), expected, atol=BOUND, rtol=0)
    # no layer writes what another writes, so a vector at the layer beside its own is found
    assert len({tuple(truth.tokens) for truth in truths}) == len(truths)
