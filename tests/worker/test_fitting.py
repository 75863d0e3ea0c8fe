"""Fitted directions, against their definitions in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from steerserve.messages import Fit, Fitted
from steerserve.worker.fitting import fit
from tests.refusals import refusal_of

WIDTH = 12
Floats = NDArray[np.float64]


def examples(count: int = 20, seed: int = 1, apart: float = 1.0) -> tuple[Floats, Floats]:
    """Positives and negatives [count, WIDTH] whose means differ, with numbers of very different sizes."""
    random = np.random.default_rng(seed)
    sizes = np.logspace(-1, 2, WIDTH)
    both = random.standard_normal((2, count, WIDTH)) * sizes
    both[0] += apart * sizes * random.standard_normal(WIDTH)
    positives, negatives = both.astype("<f4").astype(np.float64)
    return positives, negatives


def fitted(positives: Floats, negatives: Floats, method: str, **changes: Any) -> Fitted:
    """The answer where every fourth example is held out."""
    states = np.concatenate([positives, negatives]).astype("<f4")
    sides = [len(positives), len(negatives)]
    asked: dict[str, Any] = {
        "layer": 2,
        "states": states.tobytes(),
        "is_positive": np.repeat([True, False], sides).tolist(),
        "is_held_out": [i % 4 == 3 for side in sides for i in range(side)],
        "is_paired": False,
        "method": method,
        "seed": 5,
    }
    return fit(Fit(**asked | changes))


def trained(examples: Floats) -> Floats:
    return examples[[i for i in range(len(examples)) if i % 4 != 3]]


def direction(answer: Fitted) -> Floats:
    return np.frombuffer(answer.direction, "<f4").astype(np.float64)


def test_a_mean_difference_is_not_normalised_and_ignores_held_out_examples() -> None:
    positives, negatives = examples()
    found = fitted(positives, negatives, "mean_difference")
    expected = trained(positives).mean(0) - trained(negatives).mean(0)
    np.testing.assert_allclose(direction(found), expected, rtol=1e-6)
    assert found.bias == 0
    every = np.concatenate([positives, negatives])
    np.testing.assert_allclose(found.scores, every @ direction(found), rtol=1e-9)
    assert found.residual_norm == pytest.approx(np.linalg.norm(every, axis=1).mean())
    positives[3::4] += 100
    moved = fitted(positives, negatives, "mean_difference")
    assert moved.direction == found.direction


def largest(rows: Floats, towards: Floats) -> Floats:
    """The first eigenvector of the second moments, pointing `towards`."""
    vector: Floats = np.linalg.eigh(rows.T @ rows)[1][:, -1]
    return vector * np.sign(vector @ towards)


def test_principal_components_of_pairs_are_those_of_their_differences() -> None:
    positives, negatives = examples()
    differences = trained(positives) - trained(negatives)
    found = fitted(positives, negatives, "pca", is_paired=True)
    expected = largest(differences, differences.mean(0))
    np.testing.assert_allclose(direction(found), expected, rtol=1e-4, atol=1e-6)


def test_principal_components_without_pairs_are_about_the_middle_of_the_groups() -> None:
    positives, negatives = examples()
    positives, negatives = trained(positives), trained(negatives)[:-4]
    middle = (positives.mean(0) + negatives.mean(0)) / 2
    found = fitted(positives, negatives, "pca", is_held_out=[False] * 26)
    rows = np.concatenate([positives, negatives]) - middle
    expected = largest(rows, positives.mean(0) - negatives.mean(0))
    np.testing.assert_allclose(direction(found), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [8, 60])
def test_a_probe_is_the_minimum_of_the_penalised_logistic_loss(count: int) -> None:
    """The loss is convex, so a point where its gradient is 0 is the one minimum: also where there are fewer examples
    than numbers, and where the groups can be separated."""
    positives, negatives = examples(count, apart=0.3)
    positives[:, 4] = negatives[:, 4] = 7.0  # never changes
    found = fitted(positives, negatives, "probe")
    x = np.concatenate([trained(positives), trained(negatives)])
    targets = np.repeat([1.0, 0.0], [len(trained(positives)), len(trained(negatives))])
    scale = np.where(x.std(0) > 0, x.std(0), 1.0)
    weights = direction(found) * scale
    bias = found.bias + direction(found) @ x.mean(0)
    standard = (x - x.mean(0)) / scale
    errors = 1 / (1 + np.exp(-(standard @ weights + bias))) - targets
    np.testing.assert_allclose(standard.T @ errors + weights, 0, atol=2e-5)
    assert errors.sum() == pytest.approx(0, abs=2e-5)
    assert weights[4] == pytest.approx(0, abs=1e-9)
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-9))
    scores = regression.fit(x, targets).decision_function(x)
    np.testing.assert_allclose(x @ direction(found) + found.bias, scores, atol=1e-4)


def test_a_logistic_vector_has_the_direction_of_the_probe_and_the_length_1() -> None:
    positives, negatives = examples()
    probe = direction(fitted(positives, negatives, "probe"))
    vector = direction(fitted(positives, negatives, "logistic"))
    np.testing.assert_allclose(vector, probe / np.linalg.norm(probe), rtol=1e-5)


def test_halves_agree_where_the_groups_lie_far_apart_and_not_where_they_are_noise() -> None:
    far = fitted(*examples(40, apart=10.0), "mean_difference").split_cosine
    assert far is not None
    assert far > 0.95
    noise = np.random.default_rng(2).standard_normal((2, 40, WIDTH))
    low = fitted(noise[0], noise[1], "mean_difference").split_cosine
    assert low is not None
    assert abs(low) < 0.7
    few = fitted(*examples(2), "mean_difference", is_held_out=[False, True, False, True])
    assert few.split_cosine is None


def test_directions_to_compare_with_depend_on_the_seed_only() -> None:
    groups = examples()
    first, again = (fitted(*groups, "mean_difference", seed=3) for _ in range(2))
    assert first == again
    other = fitted(*groups, "mean_difference", seed=4)
    assert other.direction == first.direction
    assert (other.shuffled, other.random) != (first.shuffled, first.random)


def test_shuffled_labels_are_tried_often_and_tell_nothing_on_average() -> None:
    positives, negatives = examples(60, apart=10.0)
    found = fitted(positives, negatives, "mean_difference")
    assert len(found.shuffled) == 20
    told = [np.mean(one[:60]) - np.mean(one[60:]) for one in found.shuffled]
    assert abs(np.mean(np.sign(told))) < 0.7


def test_random_directions_point_to_the_positives() -> None:
    positives, negatives = examples()
    found = fitted(positives, negatives, "mean_difference", is_held_out=[False] * 40)
    for scores in found.random:
        assert np.mean(scores[:20]) > np.mean(scores[20:])


@pytest.mark.parametrize("method", ["mean_difference", "pca", "logistic", "probe"])
def test_groups_that_are_alike_are_refused(method: str) -> None:
    alike = np.ones((4, WIDTH))
    refused = refusal_of(fitted, alike, alike, method)
    assert refused.code == "INVALID_PARAMETER"
    assert refused.param == "layers"
    assert "layer 2" in refused.message
