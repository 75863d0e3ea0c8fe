"""/api/vectors/train and /api/probes against a running service, and the same figures by the library's model and the
definitions in float64."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import NormalDist, variance
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from tests.nouns.small import LAYERS, SmallModel
from tests.service import Running, running
from tests.worker.saes import arrays, config_v6, write

TRAIN, PROBES = "/api/vectors/train", "/api/probes"
Floats = NDArray[np.float64]

SEA = "the boats were coming home and the fishermen stood there".split()
LAND = "other people were with their baskets in a field of corn".split()


def texts(words: Sequence[str], count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(words, 3 + int(draw.integers(6)))) for _ in range(count)]


POSITIVES, NEGATIVES = texts(SEA, 16, 1), texts(LAND, 12, 2)
GROUPS = {"positives": POSITIVES, "negatives": NEGATIVES}
PAIRS = [
    {"prompt": "he said ", "positive": one, "negative": other}
    for one, other in zip(POSITIVES, NEGATIVES, strict=False)
]


class Trained(SmallModel):
    """A small model, and what is trained on it."""

    def __init__(self, live: Running, folder: Path) -> None:
        super().__init__(live, folder)
        self._names = 0

    def train(self, path: str = TRAIN, **body: Any) -> dict[str, Any]:
        self._names += 1
        unmeasured = {"measure": False} if path == TRAIN else {}
        body = {"name": f"trained {self._names}"} | unmeasured | body
        job = self.live.data("POST", f"{path}?wait=true", body)["job"]
        assert (job["state"], job["error"], job["progress"]) == ("done", None, 1.0)
        return dict(job["result"])

    def states(self, ids: Sequence[int], positions: Sequence[int]) -> Floats:
        """The stream [layers, width] as the mean over positions."""
        with torch.no_grad():
            streams, _ = self.reference.streams(list(ids))
        found: Floats = torch.stack([s[list(positions)].mean(0) for s in streams]).double().numpy()
        return found

    def last(self, group: Sequence[str]) -> Floats:
        """The stream [texts, layers, width] at the last token of each text."""
        return np.stack([self.states(self.ids(text=text), [-1]) for text in group])

    def directions(self, vector: str) -> list[Floats]:
        exported = self.live.data("GET", f"/api/vectors/{vector}/export?format=json")
        return [numbers(one["data"]) for one in exported["directions"]]


def numbers(data: str) -> Floats:
    return np.frombuffer(base64.b64decode(data), "<f4").astype(np.float64)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("trained")
    with running(folder / "home") as live:
        yield Trained(live, folder)


def wins(positives: Floats, negatives: Floats) -> Floats:
    """Of each pair of a positive and a negative whether the positive is larger; ties count half."""
    x, y = positives[:, None], negatives[None]
    won: Floats = (x > y) + (x == y) / 2
    return won


def test_a_mean_difference_is_that_of_the_states_at_the_last_token(served: Trained) -> None:
    record = served.train(**GROUPS, holdout=0)
    positives, negatives = served.last(POSITIVES), served.last(NEGATIVES)
    found = served.directions(record["id"])
    expected = positives.mean(0) - negatives.mean(0)
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-3, atol=1e-5)
    training = record["training"]
    assert record["source"]["kind"] == "trained"
    halves = [one["split_cosine"] for one in training["layers"]]
    assert training["best_layer"] == halves.index(max(halves))
    assert (training["positives"], training["negatives"], training["held_out"]) == (16, 12, 0)
    assert training["pairs"] is None
    every = np.concatenate([positives, negatives])
    lengths = np.linalg.norm(every, axis=2).mean(0)
    for layer, told in enumerate(training["layers"]):
        assert told["layer"] == layer
        assert told["norm"] == pytest.approx(np.linalg.norm(expected[layer]), rel=1e-3)
        assert told["norm_over_residual"] == pytest.approx(told["norm"] / lengths[layer], rel=1e-3)
        assert told["auc_held_out"] is None
        assert told["auc_shuffled"] is None
    assert served.live.data("GET", f"/api/vectors/{record['id']}")["training"] == training
    # an export brings its training back, wherever it is imported
    exported = served.live.http.get(f"/api/vectors/{record['id']}/export").content
    sent = {"files": {"file": ("v.json", exported)}, "data": {"name": "brought back"}}
    again = served.live.http.post("/api/vectors", **sent).json()["data"]
    assert (again["training"], again["content_digest"]) == (training, record["content_digest"])
    moved = {"files": sent["files"], "data": {"name": "moved", "layer_offset": "1"}}
    other = served.live.http.post("/api/vectors", **moved).json()["data"]
    assert other["training"] is None
    assert any("training" in warning for warning in other["warnings"])


def test_figures_are_those_of_the_held_out_texts(served: Trained) -> None:
    """Which texts are held out is not said. They are those whose absence gives the direction."""
    record = served.train(**GROUPS, holdout=0.2, seed=3)
    assert record["training"]["held_out"] == 3 + 2
    found = served.directions(record["id"])
    positives, negatives = served.last(POSITIVES), served.last(NEGATIVES)
    held = held_out(found, positives, negatives)
    for layer, told in enumerate(record["training"]["layers"]):
        x, y = (group[list(out), layer] @ found[layer] for group, out in held)
        won = wins(x, y)
        auc = roc_auc_score([True] * len(x) + [False] * len(y), np.concatenate([x, y]))
        spread = variance(won.mean(1)) / len(x) + variance(won.mean(0)) / len(y)
        half = NormalDist().inv_cdf(0.975) * math.sqrt(spread)
        assert told["auc_held_out"] == pytest.approx(auc)
        assert told["auc_low"] == pytest.approx(max(0, auc - half))
        assert told["auc_high"] == pytest.approx(min(1, auc + half))
        squares = ((x - x.mean()) ** 2).sum() + ((y - y.mean()) ** 2).sum()
        separation = (x.mean() - y.mean()) / math.sqrt(squares / (len(x) + len(y) - 2))
        assert told["separation"] == pytest.approx(separation, rel=1e-3)
        assert -1 <= told["split_cosine"] <= 1
        assert 0 <= told["auc_shuffled"] <= told["auc_shuffled_most"] <= 1
        assert 0 <= told["auc_random"] <= 1
    told = record["training"]["layers"]
    best = max(told, key=lambda one: (one["auc_held_out"], one["separation"], -one["layer"]))
    assert record["training"]["best_layer"] == best["layer"]
    equals = [one["layer"] for one in told if one["auc_held_out"] >= best["auc_low"]]
    assert record["training"]["equal_layers"] == equals
    again = served.train(**GROUPS, holdout=0.2, seed=3)
    assert again["content_digest"] == record["content_digest"]
    assert again["training"] == record["training"]
    assert served.train(**GROUPS, holdout=0.2, seed=4)["content_digest"] != again["content_digest"]


@pytest.mark.parametrize("holdout", [0.25, 0])
def test_edits_of_a_trained_vector_without_layers_act_at_its_best_layer(
    served: Trained, holdout: float
) -> None:
    record = served.train(**GROUPS, holdout=holdout)
    best, live = record["training"]["best_layer"], served.live
    add = {"op": "add", "vector": record["id"], "value": 1.0}

    def text(**edit: Any) -> tuple[str, Any]:
        body = {"interventions": {"edits": [add | edit]}, "return_steering_report": True}
        answer = live.complete(POSITIVES[0], model="small", temperature=0, max_tokens=8, **body)
        return answer["choices"][0]["text"], answer["steering_report"]

    said, told = text()
    assert (said, told) == text(layers=[best])
    assert json.dumps(told) != json.dumps(text(layers=[0, 1])[1])

    # what is stored is stored with the layer
    put = live.data("PUT", "/api/interventions", {"edits": [add]})
    assert put["edits"] == [add | {"layers": [best]}]
    live.data("DELETE", "/api/interventions")
    profile = live.data("POST", "/api/profiles", {"name": record["name"], "edits": [add]}, 201)
    path = f"/api/profiles/{profile['id']}"
    assert profile["edits"] == [add | {"layers": [best]}]
    changed = live.data("PATCH", path, {"edits": [add | {"value": 2.0}]})
    assert changed["edits"] == [add | {"value": 2.0, "layers": [best]}]

    # a profile that an earlier version saved has no layers, and acts at all
    exported = live.data("GET", f"{path}/export")
    del exported["edits"][0]["layers"]
    older = live.data("POST", "/api/profiles/import", exported | {"name": "older"}, 201)
    steered = live.complete(POSITIVES[0], model="small@older", temperature=0, max_tokens=8)
    assert steered["choices"][0]["text"] == text(value=2.0, layers=[0, 1])[0]
    for made in (profile, older):
        live.data("DELETE", f"/api/profiles/{made['id']}")


def held_out(
    found: Sequence[Floats], positives: Floats, negatives: Floats
) -> list[tuple[Floats, tuple[int, ...]]]:
    """Each group with its held-out texts, 3 of the positives and 2 of the negatives."""

    def means(group: Floats, out: int) -> list[tuple[tuple[int, ...], Floats]]:
        every = combinations(range(len(group)), out)
        return [(held, np.delete(group[:, 0], held, axis=0).mean(0)) for held in every]

    best: Any = (math.inf, None, None)
    second = means(negatives, 2)
    for first, mean in means(positives, 3):
        for other, less in second:
            error = np.abs(mean - less - found[0]).max()
            best = min(best, (error, first, other), key=lambda one: one[0])
    assert best[0] < 1e-4
    return [(positives, best[1]), (negatives, best[2])]


def test_completions_of_pairs_are_read_behind_their_prompt(served: Trained) -> None:
    record = served.train(pairs=PAIRS, read="mean_completion", holdout=0, layers=[1])
    sides = []
    for side in ("positive", "negative"):
        states = []
        for pair in PAIRS:
            before, whole = (served.ids(text=t) for t in ("he said ", "he said " + pair[side]))
            shared = next(
                (i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b),
                len(before),
            )
            # a token that begins in the prompt and ends behind it is one of the completion
            states.append(served.states(whole, range(shared, len(whole))))
        sides.append(np.stack(states)[:, 1])
    expected = sides[0].mean(0) - sides[1].mean(0)
    (found,) = served.directions(record["id"])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert record["layers"][0]["layer"] == 1
    assert (record["training"]["pairs"], record["training"]["best_layer"]) == (12, 1)
    assert record["training"]["read"] == "mean_completion"


def test_conversations_go_through_the_template(served: Trained) -> None:
    chats = {
        name: [
            [{"role": "user", "content": "say"}, {"role": "assistant", "content": text}]
            for text in group
        ]
        for name, group in GROUPS.items()
    }
    record = served.train(**chats, holdout=0, read={"index": -2})
    positives, negatives = (
        np.stack([served.states(served.ids(messages=chat), [-2]) for chat in group])
        for group in chats.values()
    )
    expected = positives.mean(0) - negatives.mean(0)
    np.testing.assert_allclose(
        np.stack(served.directions(record["id"])), expected, rtol=1e-3, atol=1e-5
    )
    assert record["training"]["read"] == {"index": -2}
    whole = served.train(**chats, holdout=0, read="mean_completion", layers=[0])
    contents = [
        served.states(
            ids, range(len(ids) - len(served.ids(text=text, add_special_tokens=False)), len(ids))
        )
        for group, plain in zip(chats.values(), GROUPS.values(), strict=True)
        for text, ids in (
            (text, served.ids(messages=c)) for text, c in zip(plain, group, strict=True)
        )
    ]
    split = np.stack(contents)[:, 0]
    expected = split[:16].mean(0) - split[16:].mean(0)
    found = served.directions(whole["id"])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_texts_and_conversations_may_stand_in_one_group(served: Trained) -> None:
    chat = [{"role": "user", "content": "the fishermen"}]
    mixed = [POSITIVES[0], chat, POSITIVES[1]]
    record = served.train(positives=mixed, negatives=NEGATIVES, holdout=0, read={"index": -1})
    states = [served.states(served.ids(text=text), [-1]) for text in POSITIVES[:2]]
    states.append(served.states(served.ids(messages=chat), [-1]))
    expected = np.mean(states, axis=0) - served.last(NEGATIVES).mean(0)
    found = served.directions(record["id"])
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["pca", "logistic"])
def test_other_methods_tell_the_groups_apart_with_the_length_1(
    served: Trained, method: str
) -> None:
    record = served.train(**GROUPS, method=method, read="mean", special_tokens=True)
    assert [one["norm"] for one in record["layers"]] == pytest.approx([1, 1], rel=1e-5)
    assert record["training"]["method"] == record["source"]["format"] == method
    positives, negatives = served.last(POSITIVES), served.last(NEGATIVES)
    found = served.directions(record["id"])
    for layer in range(LAYERS):
        towards = (positives.mean(0) - negatives.mean(0))[layer] @ found[layer]
        assert towards > 0


def test_the_nearest_features_of_an_attached_sae_are_told(served: Trained, tmp_path: Path) -> None:
    values = arrays("standard", seed=4, d_in=32, d_sae=64)
    metadata = {"hook_name": "blocks.1.hook_resid_post", "model_name": "small"}
    write(tmp_path / "sae", config_v6("standard", d_in=32, d_sae=64, metadata=metadata), values)
    live = served.live
    sae_id = live.data("POST", "/api/saes/download", {"local_path": str(tmp_path / "sae")}, 202)[
        "sae_id"
    ]
    live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": 1})
    record = served.train(**GROUPS, layers=[1])
    (found,) = served.directions(record["id"])
    decoder = values["W_dec"].astype(np.float64)
    cosines = decoder @ found / np.linalg.norm(decoder, axis=1) / np.linalg.norm(found)
    near = record["training"]["neighbours"]
    assert [one["sae_id"] for one in near] == [sae_id] * 10
    assert [one["index"] for one in near] == np.argsort(-cosines)[:10].tolist()
    assert [one["cosine"] for one in near] == pytest.approx(np.sort(cosines)[::-1][:10], abs=1e-4)
    live.data("POST", f"/api/saes/{sae_id}/detach")


def test_a_probe_is_listed_shown_and_deleted(served: Trained) -> None:
    live = served.live
    record = served.train(f"{PROBES}/train", **GROUPS, name="the sea", holdout=0)
    assert record["id"].startswith("probe_")
    assert live.data("GET", PROBES) == {"probes": [record], "total": 1}
    shown = live.data("GET", f"{PROBES}/the sea")
    assert shown == record | {"weights": shown["weights"]}
    positives, negatives = served.last(POSITIVES), served.last(NEGATIVES)
    x = np.concatenate([positives, negatives])
    targets = np.repeat([1.0, 0.0], [len(positives), len(negatives)])
    for layer, (place, told) in enumerate(zip(record["layers"], shown["weights"], strict=True)):
        weights = numbers(told["data"])
        assert (told["layer"], told["site"]) == (layer, "resid_post")
        assert place["norm"] == pytest.approx(np.linalg.norm(weights))
        # the gradient of the penalised loss over the standardised numbers is 0 there
        mean, scale = x[:, layer].mean(0), x[:, layer].std(0)
        standard = (x[:, layer] - mean) / scale
        scores = x[:, layer] @ weights + place["bias"]
        errors = 1 / (1 + np.exp(-scores)) - targets
        np.testing.assert_allclose(standard.T @ errors + weights * scale, 0, atol=5e-3)
        assert errors.sum() == pytest.approx(0, abs=5e-3)
    assert live.error("POST", f"{PROBES}/train", {**GROUPS, "name": "the sea"})[:2] == (
        409,
        "PROBE_ALREADY_EXISTS",
    )
    assert live.data("DELETE", f"{PROBES}/{record['id']}") == {"probe_id": record["id"]}
    assert live.error("GET", f"{PROBES}/the sea")[:2] == (404, "PROBE_NOT_FOUND")
    assert live.error("DELETE", f"{PROBES}/{record['id']}")[:2] == (404, "PROBE_NOT_FOUND")


def test_a_probe_in_a_condition_acts_where_its_score_is_beyond_the_bound(served: Trained) -> None:
    live = served.live
    record = served.train(f"{PROBES}/train", **GROUPS, name="of the sea", layers=[0], holdout=0)
    shown = live.data("GET", f"{PROBES}/{record['id']}")
    weights, bias = numbers(shown["weights"][0]["data"]), record["layers"][0]["bias"]
    prompt = "the boats were with their baskets"
    ids = served.ids(text=prompt)
    scores = [served.states(ids, [at])[0] @ weights + bias for at in range(len(ids))]
    ranked = sorted(scores)
    bound = (ranked[len(ids) // 2] + ranked[len(ids) // 2 - 1]) / 2
    row = base64.b64encode(np.ones(32, "<f4").tobytes()).decode()

    def acted(name: str, **when: float) -> tuple[int, int]:
        edit = {
            "op": "add",
            "vector": {"layer": 1, "data": row},
            "value": 0.5,
            "positions": {"prompt_window": [0, len(ids)]},
            "when": {"probe": name, **when},
        }
        body = {
            "model": "small",
            "prompt": prompt,
            "max_tokens": 1,
            "return_steering_report": True,
            "interventions": {"edits": [edit]},
        }
        answer = live.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        (told,) = answer.json()["steering_report"]["edits"]
        return told["evaluated"], told["acted"]

    above = sum(score > bound for score in scores)
    assert 0 < above < len(ids)
    assert acted("of the sea", above=bound) == (len(ids), above)
    assert acted(record["id"], below=bound) == (len(ids), len(ids) - above)
    body = {
        "model": "small",
        "prompt": "a",
        "interventions": {
            "edits": [
                {
                    "op": "ablate",
                    "vector": {"layer": 1, "data": row},
                    "when": {"probe": "nobody", "above": 0},
                }
            ]
        },
    }
    refused = live.http.post("/v1/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (404, "probe_not_found")
    assert error["param"] == "interventions.edits[0].when.probe"
    live.data("DELETE", f"{PROBES}/{record['id']}")


ALIKE = {
    "positives": ["a b"] * 3,
    "negatives": ["a c"] * 3,
    "read": {"index": 0},
    "special_tokens": True,
}
"""Texts that differ behind the position that is read."""
GROUPLESS = {"positives": None, "negatives": None}


@pytest.mark.parametrize(
    ("change", "status", "code", "place"),
    [
        ({"positives": None}, 422, "VALIDATION_ERROR", "positives"),
        ({"pairs": PAIRS}, 422, "VALIDATION_ERROR", "positives"),
        ({"negatives": ["a"]}, 422, "VALIDATION_ERROR", "negatives"),
        ({"name": "vec_mine"}, 422, "VALIDATION_ERROR", "name"),
        ({"layers": "some"}, 422, "VALIDATION_ERROR", "layers"),
        ({"read": {"index": 1.5}}, 422, "VALIDATION_ERROR", "read"),
        ({"method": "guess"}, 422, "VALIDATION_ERROR", "method"),
        ({"layers": [1, LAYERS]}, 400, "INVALID_PARAMETER", "layers[1]"),
        ({"site": "nowhere"}, 400, "INVALID_PARAMETER", "site"),
        ({"read": "mean_completion"}, 400, "INVALID_PARAMETER", "positives[0]"),
        ({"read": {"index": 3}, "negatives": ["a b c d", "a"]}, 400, "INVALID_PARAMETER", "negat"),
        ({"negatives": ["a b", "<eos>"]}, 400, "INVALID_PARAMETER", "negatives[1]"),
        ({"positives": ["a b", "a " * 400]}, 400, "CONTEXT_LENGTH_EXCEEDED", "positives[1]"),
        (ALIKE, 400, "INVALID_PARAMETER", "layers"),
        ({"positives": ["a", "b"], "negatives": ["b", "a"]}, 400, "INVALID_PARAMETER", "negatives"),
        (
            {**GROUPLESS, "pairs": [*PAIRS, {"positive": "a", "negative": "a"}]},
            400,
            "INVALID_PARAMETER",
            f"pairs[{len(PAIRS)}].negative",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_place(
    served: Trained, change: dict[str, Any], status: int, code: str, place: str
) -> None:
    body = {"name": "refused", **GROUPS, **change}
    body = {name: value for name, value in body.items() if value is not None}
    found = served.live.error("POST", f"{TRAIN}?wait=true", body)
    assert found[:2] == (status, code)
    assert place in str(found[2])
    assert served.live.error("GET", "/api/vectors/refused")[:2] == (404, "VECTOR_NOT_FOUND")


def test_of_thousands_of_wrong_messages_only_the_first_is_named(served: Trained) -> None:
    groups = {"positives": [[{"role": "user"}] * 30] * 500, "negatives": NEGATIVES}
    status, code, details = served.live.error("POST", f"{PROBES}/train", {"name": "a", **groups})
    assert (status, code) == (422, "VALIDATION_ERROR")
    places = [one["loc"] for one in details["errors"]]
    assert len(places) == 2  # neither a text nor a conversation
    assert all(place[:3] == ["body", "positives", 0] for place in places)


def test_a_training_needs_a_model(bare: Running) -> None:
    assert bare.error("POST", TRAIN, {"name": "calm", **GROUPS})[:2] == (400, "MODEL_NOT_LOADED")
    assert bare.data("GET", PROBES) == {"probes": [], "total": 0}
