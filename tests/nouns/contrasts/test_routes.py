"""/api/features/contrast against a running service: a concept that is planted in a synthetic model is found first."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score

from tests.nouns.small import SmallModel
from tests.service import Running, running
from tests.worker.saes import Arrays, arrays, config_v6, write

PATH = "/api/features/contrast"
PLANTED, WIDTH = 11, 64
CONCEPT = " fishermen"
ROUNDING = 1e-5
"""More than the error of float32 in an activation of the model."""
WORDS = "the boats were coming home and other stood there with their baskets fin she".split()


def texts(seed: int, count: int, *, with_concept: bool) -> list[str]:
    """Sentences of random words, in some of which the concept stands at a random place."""
    draw, made = random.Random(seed), []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randint(4, 12))
        if with_concept:
            words.insert(draw.randint(1, len(words)), CONCEPT.strip())
        made.append(" ".join(words))
    return made


def planted(folder: Path, token: int, embeddings: np.ndarray) -> Arrays:
    """An SAE of the embeddings with random features, of which one fires at one token only."""
    values = arrays("standard", seed=4, d_in=32, d_sae=WIDTH)
    row = embeddings[token]
    others = np.delete(embeddings, token, axis=0) @ row
    values["W_enc"][:, PLANTED] = row
    values["b_enc"][PLANTED] = -(others.max() + row @ row) / 2
    write(
        folder,
        config_v6(
            "standard",
            d_in=32,
            d_sae=WIDTH,
            metadata={"hook_name": "blocks.0.hook_resid_pre", "model_name": "small"},
        ),
        values,
    )
    return values


class Planted(SmallModel):
    """A small model, and the planted SAE attached before its first layer."""

    def __init__(self, live: Running, folder: Path) -> None:
        super().__init__(live, folder, "{{ messages[0].content }}")
        # the pieces are " ", "fi", "she", "rme", "n"; no other word has the fourth
        self.token = self.ids(text=CONCEPT)[-2]
        weights = load_file(self.path / "model.safetensors")
        self.embeddings = weights["model.embed_tokens.weight"].astype("float64")
        self.values = planted(folder / "sae", self.token, self.embeddings)
        body = {"local_path": str(folder / "sae")}
        self.sae_id = live.data("POST", "/api/saes/download", body, 202)["sae_id"]
        live.data("POST", f"/api/saes/{self.sae_id}/attach", {"layer": 0})

    def activations(self, text: str, *, has_special: bool = False) -> np.ndarray:
        """Activations [T, d_sae] at the positions that count, in float64."""
        x = self.embeddings[self.ids(text=text)[0 if has_special else 1 :]]
        found: np.ndarray = np.maximum(x @ self.values["W_enc"] + self.values["b_enc"], 0)
        # one token has one value, whatever the last bits of products of other shapes are
        return found.round(9)

    def contrast(self, **body: Any) -> dict[str, Any]:
        job = self.live.data("POST", f"{PATH}?wait=true", body)["job"]
        assert (job["kind"], job["state"], job["error"]) == ("contrast", "done", None)
        return dict(job["result"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    folder = tmp_path_factory.mktemp("planted")
    with running(folder / "home") as live:
        yield Planted(live, folder)


BOTH = {
    "positives": texts(1, 20, with_concept=True),
    "negatives": texts(2, 15, with_concept=False),
}


def test_a_planted_concept_is_found_first(served: Planted) -> None:
    found = served.contrast(**BOTH)
    assert (found["sae_id"], found["layer"]) == (served.sae_id, 0)
    assert found["texts"] == {"positives": 20, "negatives": 15, "held_out": 6 + 4}
    first, second, *_ = found["features"]
    assert first["index"] == PLANTED
    assert (first["auc"], first["auc_held_out"]) == (1.0, 1.0)
    assert (first["share_positive"], first["share_negative"]) == (1.0, 0.0)
    assert first["p_corrected"] < 0.001
    # others fire at the same token too, among others
    assert first["auc"] >= second["auc"]
    assert len(found["features"]) == 20
    assert len(first["promotes"]) == 3
    label = {str(PLANTED): "people who fish"}
    served.live.data("POST", f"/api/saes/{served.sae_id}/labels", label)
    again = served.contrast(**BOTH)
    assert again["features"][0]["label"] == "people who fish"
    assert again["features"][1:] == found["features"][1:]
    other = served.contrast(**BOTH, seed=1)
    assert other["features"][0]["index"] == PLANTED
    assert other["features"][1:] != found["features"][1:]


def auc(positive: np.ndarray, negative: np.ndarray, rounding: float) -> float:
    """The AUC of scikit-learn, with `rounding` added to the positive texts' values that are not 0."""
    moved = np.where(positive > 0, positive + rounding, 0)
    labels = [True] * len(positive) + [False] * len(negative)
    return float(roc_auc_score(labels, np.concatenate([moved, negative])))


@pytest.mark.parametrize("pool", ["max", "mean", "last"])
def test_the_figures_are_those_of_the_activations(served: Planted, pool: str) -> None:
    pools = {"max": lambda a: a.max(0), "mean": lambda a: a.mean(0), "last": lambda a: a[-1]}
    # whether two means of the same values are a tie depends on the last bits of their sums
    rounding = ROUNDING if pool == "mean" else 0
    body = {**BOTH, "pool": pool, "holdout": 0, "top": 200, "min_share": 0.1}
    for has_special in (False, True):
        found = served.contrast(**body, special_tokens=has_special)
        positive, negative = (
            np.array([pools[pool](served.activations(t, has_special=has_special)) for t in group])
            for group in (BOTH["positives"], BOTH["negatives"])
        )
        shares = (positive > 0).mean(0), (negative > 0).mean(0)
        compared = np.flatnonzero(np.maximum(*shares) >= 0.1)
        assert found["compared"] == len(found["features"]) == len(compared)
        assert sorted(one["index"] for one in found["features"]) == compared.tolist()
        aucs = [one["auc"] for one in found["features"]]
        assert aucs == sorted(aucs, reverse=True)
        for one in found["features"]:
            x, y = positive[:, one["index"]], negative[:, one["index"]]
            least, most = auc(x, y, -rounding), auc(x, y, rounding)
            assert least - 1e-9 <= one["auc"] <= most + 1e-9
            assert one["mean_positive"] == pytest.approx(fmean(x), rel=1e-3, abs=1e-4)
            assert one["mean_negative"] == pytest.approx(fmean(y), rel=1e-3, abs=1e-4)
            assert one["share_positive"] == pytest.approx((x > 0).mean())
            assert one["share_negative"] == pytest.approx((y > 0).mean())
            assert one["auc_low"] <= one["auc"] <= one["auc_high"]
            assert one["auc_held_out"] is None


def test_conversations_are_read_through_the_template(served: Planted) -> None:
    bare = {**BOTH, "holdout": 0}
    # the template writes the content alone, and texts that a template makes have no special tokens added
    chats = {
        group: [[{"role": "user", "content": f"<bos>{text}"}] for text in given]
        for group, given in BOTH.items()
    }
    assert served.contrast(**chats, holdout=0)["features"] == served.contrast(**bare)["features"]
    # texts and conversations may stand in one group
    mixed: dict[str, Any] = {group: [*chats[group][:3], *BOTH[group][3:]] for group in BOTH}
    assert served.contrast(**mixed, holdout=0)["features"] == served.contrast(**bare)["features"]


@pytest.mark.parametrize(
    ("change", "status", "code", "place"),
    [
        ({"positives": ["a"]}, 422, "VALIDATION_ERROR", "positives"),
        ({"positives": "abc"}, 422, "VALIDATION_ERROR", "positives"),
        ({"negatives": ["a", [{"role": "user"}]]}, 422, "VALIDATION_ERROR", "negatives"),
        ({"pool": "sum"}, 422, "VALIDATION_ERROR", "pool"),
        ({"holdout": 1}, 422, "VALIDATION_ERROR", "holdout"),
        ({"top": 0}, 422, "VALIDATION_ERROR", "top"),
        ({"sae_id": "sae_nobody"}, 400, "SAE_NOT_ATTACHED", "sae_nobody"),
        ({"layer": 1}, 400, "SAE_NOT_ATTACHED", "1"),
        ({"negatives": ["a b", "<eos>"]}, 400, "INVALID_PARAMETER", "negatives[1]"),
        ({"positives": ["a", "b"], "negatives": ["b", "a"]}, 400, "INVALID_PARAMETER", "negatives"),
        ({"positives": ["a b", "a " * 400]}, 400, "CONTEXT_LENGTH_EXCEEDED", "positives[1]"),
    ],
)
def test_what_cannot_be_contrasted_is_refused_with_its_place(
    served: Planted, change: dict[str, Any], status: int, code: str, place: str
) -> None:
    found = served.live.error("POST", f"{PATH}?wait=true", {**BOTH, **change})
    assert found[:2] == (status, code)
    assert place in str(found[2])


def test_a_contrast_needs_a_model_and_an_attached_sae(bare: Running) -> None:
    assert bare.error("POST", PATH, BOTH)[:2] == (400, "MODEL_NOT_LOADED")
