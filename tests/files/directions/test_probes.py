"""Every format of probes against a file in the layout of its tool, and files that are refused."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from steerserve.errors import Refusal
from steerserve.files.client_paths import allow_all
from steerserve.files.directions.probes import PROBES
from steerserve.files.directions.stored import DirectionFile
from steerserve.rules.steering.probe import ReadProbe
from steerserve.rules.steering.vector import Direction, ReadOptions
from tests.files.directions.files import torch_file

WIDTH = 8
RNG = np.random.default_rng(5)
WEIGHTS = RNG.normal(size=WIDTH).astype("<f4")
X = RNG.normal(size=(16, WIDTH)) * 3 + 1
"""Values of a site at 16 tokens."""
AISTEER = {
    "format_version": 1,
    "polarity": "positives_high",
    "model_type": "llama",
    "location": "layer_output",
    "pooling": "last",
    "layer_ids": [3],
    "weight_layer_ids": [3],
    "bias": -0.25,
    "meta": {},
}
CONFIG = {"target_layer_name": "LlamaDecoderLayer", "layer_idx": 3, "hidden_size": WIDTH}


def read(name: str, data: bytes, metadata: Any = None, **options: Any) -> ReadProbe:
    beside = None if metadata is None else json.dumps(metadata).encode()
    return PROBES.read(DirectionFile(name, data, beside), ReadOptions(**options))


def refused(name: str, data: bytes, metadata: Any = None, **options: Any) -> Refusal:
    with pytest.raises(Refusal) as error:
        read(name, data, metadata, **options)
    assert error.value.code == "INVALID_PROBE"
    assert name in error.value.message
    return error.value


def scores(probe: ReadProbe, values: np.ndarray[Any, Any] = X) -> Any:
    """The scores of a probe with one layer."""
    (direction,), (bias,) = probe.directions, probe.biases
    return values @ np.array(direction.values) + bias


def npz(**changes: Any) -> bytes:
    """An H-Node probe as vLLM-Hook's ProbeArtifact writes it."""
    arrays: dict[str, Any] = {
        "weights": WEIGHTS,
        "bias": np.float32(0.5),
        "scaler_mean": RNG.normal(size=WIDTH),
        "scaler_scale": np.array([2.0, 0.0, *RNG.uniform(0.5, 2, WIDTH - 2)]),
        "best_layer": 4,
        "hidden_size": WIDTH,
        "h_node_indices": np.arange(3),
        "h_node_baselines": np.ones(3),
        "n_h_nodes": 3,
    }
    made = io.BytesIO()
    np.savez(made, **{key: one for key, one in (arrays | changes).items() if one is not None})
    return made.getvalue()


def head(**changes: Any) -> bytes:
    """The state dict of Linear(width, 1), as the trainer of hallucination probes writes it."""
    linear = torch.nn.Linear(WIDTH, 1)
    linear.weight.data = torch.from_numpy(WEIGHTS)[None].clone()
    linear.bias.data = torch.tensor([0.75])
    return torch_file(linear.state_dict() | changes)


# ------------------------------------------------------------------ formats


@pytest.mark.parametrize(
    ("location", "place"),
    [("layer_output", (3, "resid_post")), ("layer_input", (2, "resid_post"))],
)
def test_a_probe_of_aisteer_reads_where_its_json_says(
    location: str, place: tuple[int, str]
) -> None:
    data = save({"weights.3": torch.from_numpy(WEIGHTS)})
    made = read("probe.safetensors", data, AISTEER | {"location": location})
    assert made.directions == (Direction(*place, WEIGHTS.tobytes()),)
    assert (made.format, made.biases, made.model_hint) == ("aisteer360", (-0.25,), "llama")
    assert made.warnings == ()
    (warning,) = read("probe.safetensors", data, AISTEER | {"pooling": "mean"}).warnings
    assert "mean of its tokens" in warning


def test_the_input_of_the_first_layer_is_a_site_of_its_own() -> None:
    data = save({"weights.0": torch.from_numpy(WEIGHTS)})
    (direction,) = read("probe.safetensors", data, AISTEER | {"location": "layer_input"}).directions
    assert (direction.layer, direction.site) == (0, "resid_pre")


def test_a_hallucination_probe_reads_the_output_of_its_block() -> None:
    made = read("probe_head.bin", head(), CONFIG)
    assert made.directions == (Direction(3, "resid_post", WEIGHTS.tobytes()),)
    assert (made.format, made.biases) == ("hallucination_probe", (0.75,))
    half = read("probe_head.bin", head(weight=torch.from_numpy(WEIGHTS)[None].bfloat16()), CONFIG)
    assert half.directions[0].values == pytest.approx(WEIGHTS, rel=0.01)
    assert read("probe_head.bin", head(), layer=5).directions[0].layer == 5


def test_a_probe_of_openinterp_has_a_direction_and_perhaps_a_bias() -> None:
    said = {"model_id": "meta/tiny", "layer": 3, "position": "end_question", "license": "mit"}
    direction = torch.from_numpy(WEIGHTS)
    made = read("truth.safetensors", save({"direction": direction}), said)
    assert made.directions == (Direction(3, "resid_post", WEIGHTS.tobytes()),)
    assert (made.biases, made.model_hint, len(made.warnings)) == ((0.0,), "meta/tiny", 1)
    tensors = {"direction": direction, "bias": torch.tensor([1.5])}
    assert read("truth.safetensors", save(tensors), said).biases == (1.5,)
    shifted = read("truth.safetensors", save(tensors), said, layer_convention="resid_pre")
    assert shifted.directions[0].layer == 2


def test_an_h_node_probe_counts_layers_from_1_and_its_score_is_the_margin() -> None:
    data = npz()
    made = read("probe.npz", data, {"model_name": "ibm/tiny", "auc_per_layer": {"4": 0.9}})
    (direction,) = made.directions
    assert (direction.layer, made.format, made.model_hint) == (3, "h_node", "ibm/tiny")
    with np.load(io.BytesIO(data)) as stored:
        scale = np.where(stored["scaler_scale"] == 0, 1.0, stored["scaler_scale"])
        margin = ((X - stored["scaler_mean"]) / scale) @ stored["weights"] + stored["bias"]
    assert scores(made) == pytest.approx(margin, abs=1e-5)


@pytest.mark.parametrize("form", ["json", "safetensors"])
@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_regression_of_scikit_learn_gives_its_decision_function(
    form: str, is_scaled: bool
) -> None:
    mean, scale = X.mean(0), X.std(0)
    stored: dict[str, Any] = {"coef": WEIGHTS[None].astype("f8"), "intercept": np.array([0.3])}
    values = X
    if is_scaled:
        stored |= {"mean": mean, "scale": scale}
        values = (X - mean) / scale
    expected = values @ WEIGHTS.astype("f8") + 0.3
    if form == "json":
        data = json.dumps({key: one.tolist() for key, one in stored.items()}).encode()
    else:
        data = save({key: torch.from_numpy(one) for key, one in stored.items()})
    made = read(f"probe.{form}", data, layer=7)
    assert (made.format, made.directions[0].layer) == ("scikit_learn", 7)
    assert scores(made) == pytest.approx(expected, abs=1e-5)


def test_what_the_service_answers_of_a_probe_is_a_file_of_it() -> None:
    places = [(1, "resid_post", 0.5), (2, "mlp_out", -1.0)]
    answered = {
        "name": "sea",
        "model_hint": "tiny",
        "layers": [{"layer": a, "site": s, "norm": 1.0, "bias": b} for a, s, b in places],
        "training": None,
        "weights": [
            {
                "layer": layer,
                "site": site,
                "dtype": "float32",
                "shape": [WIDTH],
                "data": base64.b64encode(WEIGHTS.tobytes()).decode(),
            }
            for layer, site, _ in places
        ],
    }
    made = read("sea.json", json.dumps(answered).encode())
    assert [(one.layer, one.site) for one in made.directions] == [(1, "resid_post"), (2, "mlp_out")]
    assert (made.biases, made.model_hint, made.format) == ((0.5, -1.0), "tiny", "steerserve")
    cut = answered | {"layers": answered["layers"][:1]}  # type: ignore[index]
    assert refused("sea.json", json.dumps(cut).encode()).details["key"] == "layers"


def test_the_file_beside_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "probe_head.bin").write_bytes(head())
    (tmp_path / "probe_config.json").write_text(json.dumps(CONFIG))
    _, file = PROBES.load(str(tmp_path / "probe_head.bin"), allow_all)
    assert PROBES.read(file, ReadOptions()).directions[0].layer == 3
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(Refusal, match=r"adapter_model\.safetensors"):
        PROBES.load(str(tmp_path / "probe_head.bin"), allow_all)
    (tmp_path / "probe.safetensors").write_bytes(save({"weights.3": torch.from_numpy(WEIGHTS)}))
    (tmp_path / "probe.json").write_text(json.dumps(AISTEER))
    _, file = PROBES.load(str(tmp_path / "probe.safetensors"), allow_all)
    assert PROBES.read(file, ReadOptions()).biases == (-0.25,)


# ------------------------------------------------------------------ refusals

ONE = save({"weights.3": torch.from_numpy(WEIGHTS)})
REGRESSION = {"coef": [WEIGHTS.tolist()], "intercept": [0.0]}


def as_json(**changes: Any) -> bytes:
    return json.dumps(REGRESSION | changes).encode()


@pytest.mark.parametrize(
    ("name", "data", "metadata", "options", "said"),
    [
        ("probe.safetensors", ONE, None, {}, "probe.json"),
        ("probe.safetensors", ONE, AISTEER | {"location": "logits"}, {}, "layer_output"),
        ("probe.safetensors", ONE, AISTEER | {"polarity": "positives_low"}, {}, "positives_high"),
        ("probe.safetensors", ONE, AISTEER | {"bias": None}, {}, "bias"),
        ("probe.safetensors", ONE, AISTEER | {"bias": float("nan")}, {}, "not finite"),
        ("probe.safetensors", ONE, AISTEER, {"layer": 2}, "layer"),
        ("probe.safetensors", save({"weights.x": torch.ones(3)}), AISTEER, {}, "name a layer"),
        (
            "probe.safetensors",
            save({"weights.1": torch.ones(3), "weights.2": torch.ones(3)}),
            AISTEER,
            {},
            "sums",
        ),
        ("other.safetensors", save({"layer3": torch.ones(3)}), None, {}, "direction"),
        ("probe_head.bin", head(), None, {}, "probe_config.json"),
        ("probe_head.bin", head(), CONFIG | {"hidden_size": 9}, {}, "9"),
        ("probe_head.bin", head(weight=torch.ones(2, WIDTH)), CONFIG, {}, "one output"),
        ("probe_head.bin", torch_file({"net.0.weight": torch.ones(2, 2)}), CONFIG, {}, "weight"),
        ("probe_head.bin", head(extra=torch.ones(2)), CONFIG, {}, "more than one"),
        ("probe.npz", npz(scaler_mean=None), None, {}, "scaler_mean"),
        ("probe.npz", npz(best_layer=1.5), None, {}, "whole number"),
        ("probe.npz", npz(best_layer=0), None, {"layer_offset": -1}, "before the first layer"),
        ("probe.npz", npz()[:200], None, {}, "archive"),
        ("probe.json", as_json(), None, {}, "layer"),
        ("probe.json", as_json(coef=[[1.0], [2.0]]), None, {"layer": 1}, "coef"),
        ("probe.json", as_json(intercept=[0.0, 1.0]), None, {"layer": 1}, "one output"),
        ("probe.json", as_json(mean=[1.0]), None, {"layer": 1}, "mean"),
        ("probe.json", as_json(mean=WIDTH * [1e308]), None, {"layer": 1}, "mean"),
        ("probe.json", as_json(mean=[1e400, *(WIDTH - 1) * [-1e400]]), None, {"layer": 1}, "mean"),
        ("probe.json", as_json(coef=[WIDTH * [10**400]]), None, {"layer": 1}, "coef"),
        ("probe.json", as_json(coef=[["a"]]), None, {"layer": 1}, "coef"),
        ("probe.json", as_json(coef=[[0.0] * 3]), None, {"layer": 1}, "zeros"),
        ("probe.json", b'{"vector": [1]}', None, {}, "coef"),
        ("model.joblib", pickle.dumps({"coef_": [1.0]}), None, {}, "pickle"),
        ("probe.bin", b"\x01\x02", None, {}, "no known format"),
        ("probe.bin", b"", None, {}, "empty"),
    ],
)
def test_a_file_that_is_no_probe_is_refused_by_name(
    name: str, data: bytes, metadata: Any, options: Any, said: str
) -> None:
    assert said in refused(name, data, metadata, **options).message
