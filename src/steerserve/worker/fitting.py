"""Directions that tell two groups of examples apart: differences of means, principal components, logistic regression.
All arithmetic is in float64 on the processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from steerserve.errors import Refusal
from steerserve.messages import Fit, Fitted

Floats = NDArray[np.float64]
Line = tuple[Floats, float]
"""A direction [width] and a bias: an example x is scored with x · direction + bias."""
FitOf = Callable[[Floats, Floats], Line]
"""Fits a line to positives [p, width] and negatives [q, width]."""

RANDOM_DIRECTIONS = 16
SHUFFLES, FEW_SHUFFLES = 20, 5
"""The fits to shuffled labels, and those where one fit takes long. One shuffle alone may be good by chance."""
LONG_FIT = 50_000_000
"""The rows, squared, times their width from which a principal component or a regression takes some 20 milliseconds."""
NEWTON_STEPS = 100
GRADIENT = 1e-9
"""The norm of the gradient at which a logistic regression has converged, for each example."""
SMALLEST = 1e-12
"""Principal components with a smaller eigenvalue, relative to the largest, are noise of the arithmetic."""


def fit(command: Fit) -> Fitted:
    """Fit a direction to the training examples, and score all examples along it, and along directions to compare it
    with.

    Raises:
        Refusal: INVALID_PARAMETER where the examples of both groups are alike, so that no direction is found.
    """
    states = np.frombuffer(command.states, "<f4").reshape(len(command.is_positive), -1)
    states = states.astype(np.float64)
    labels = np.array(command.is_positive, bool)
    trained = ~np.array(command.is_held_out, bool)
    random = np.random.default_rng([command.seed, command.layer])
    method = partial(METHODS[command.method], is_paired=command.is_paired)
    positives, negatives = states[trained & labels], states[trained & ~labels]
    direction, bias = method(positives, negatives)
    if not (np.isfinite(direction).all() and direction.any()):
        raise Refusal(
            "INVALID_PARAMETER",
            f"layer {command.layer}: positives and negatives are alike, so no direction is found",
            param="layers",
            layer=command.layer,
        )
    both = np.concatenate([positives, negatives])
    kept = direction.astype("<f4")
    fitted = Fitted(
        command.id,
        kept.tobytes(),
        bias,
        (states @ kept.astype(np.float64) + bias).tolist(),
        [],
        [],
        None,
        float(np.linalg.norm(states, axis=1).mean()),
    )
    if not command.is_compared:
        return fitted
    is_long = command.method != "mean_difference" and len(both) * both.size > LONG_FIT
    shuffled = [
        method(mixed[: len(positives)], mixed[len(positives) :])[0]
        for mixed in (
            random.permutation(both) for _ in range(FEW_SHUFFLES if is_long else SHUFFLES)
        )
    ]
    across = random.standard_normal((RANDOM_DIRECTIONS, states.shape[1]))
    across *= np.where(across @ (positives.mean(0) - negatives.mean(0)) < 0, -1, 1)[:, None]
    return structs.replace(
        fitted,
        shuffled=(np.array(shuffled) @ states.T).tolist(),
        random=(across @ states.T).tolist(),
        split_cosine=_split_cosine(
            method, positives, negatives, random, is_paired=command.is_paired
        ),
    )


def mean_difference(positives: Floats, negatives: Floats, *, is_paired: bool) -> Line:
    """The mean of the positives less the mean of the negatives, at its own length."""
    return positives.mean(0) - negatives.mean(0), 0.0


def principal(positives: Floats, negatives: Floats, *, is_paired: bool) -> Line:
    """The first principal component, at the length 1, pointing to the positives. Of pairs it is that of their
    differences about 0 (Zou et al., "Representation Engineering", 2023); otherwise that of all examples about the
    middle between the means of the two groups."""
    if is_paired:
        rows = positives - negatives
    else:
        middle = (positives.mean(0) + negatives.mean(0)) / 2
        rows = np.concatenate([positives, negatives]) - middle
    _, sizes, components = np.linalg.svd(rows, full_matrices=False)
    component: Floats = components[0] if sizes[0] > 0 else np.zeros(rows.shape[1])
    towards = component @ (positives.mean(0) - negatives.mean(0))
    return (-component if towards < 0 else component), 0.0


def logistic(positives: Floats, negatives: Floats, *, is_paired: bool) -> Line:
    """Logistic regression with the penalty |w|²/2 on the weights of the standardised numbers, and C = 1; the bias is
    not penalised. The standardisation is folded into weights and bias.

    The weights lie in the span of the examples, so that no more unknowns are solved for than there are examples.
    """
    x = np.concatenate([positives, negatives])
    targets = np.repeat([1.0, 0.0], [len(positives), len(negatives)])
    mean, scale = x.mean(0), x.std(0)
    scale[scale <= SMALLEST * np.abs(x).max(initial=0.0)] = 1.0
    standard = (x - mean) / scale
    values, vectors = np.linalg.eigh(standard @ standard.T)
    wanted = values > SMALLEST * max(values[-1], 0.0)
    roots = np.sqrt(values[wanted])
    known = vectors[:, wanted] * roots  # the examples in an orthonormal basis of their span
    inner, bias = _solved(known, targets)
    weights = standard.T @ (vectors[:, wanted] @ (inner / roots)) / scale
    return weights, float(bias - weights @ mean)


def unit_logistic(positives: Floats, negatives: Floats, *, is_paired: bool) -> Line:
    """The weights of `logistic` at the length 1."""
    weights, _ = logistic(positives, negatives, is_paired=is_paired)
    length = np.linalg.norm(weights)
    return (weights / length if length else weights), 0.0


METHODS = {
    "mean_difference": mean_difference,
    "pca": principal,
    "logistic": unit_logistic,
    "probe": logistic,
}


def _solved(x: Floats, targets: Floats) -> tuple[Floats, float]:
    """Weights and bias of the penalised logistic regression on x [n, r], by Newton's method with a line search."""
    design = np.column_stack([x, np.ones(len(x))])
    penalty = np.append(np.ones(x.shape[1]), 0.0)
    solution = np.zeros(design.shape[1])

    def loss(at: Floats) -> float:
        margins = design @ at
        fit = np.logaddexp(0.0, margins) - targets * margins
        return float(fit.sum() + (penalty * at * at).sum() / 2)

    for _ in range(NEWTON_STEPS):
        shares = 1 / (1 + np.exp(-np.clip(design @ solution, -500, 500)))
        gradient = design.T @ (shares - targets) + penalty * solution
        if np.linalg.norm(gradient) <= GRADIENT * len(x):
            break
        curvature = (design * (shares * (1 - shares))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        size, before = 1.0, loss(solution)
        while loss(solution - size * step) > before and size > SMALLEST:
            size /= 2
        solution = solution - size * step
    return solution[:-1], float(solution[-1])


def _split_cosine(
    method: FitOf,
    positives: Floats,
    negatives: Floats,
    random: np.random.Generator,
    *,
    is_paired: bool,
) -> float | None:
    """The cosine between the directions of two halves of the examples; None where a half has none of a group."""
    if min(len(positives), len(negatives)) < 2:
        return None
    first = random.permutation(len(positives))
    second = first if is_paired else random.permutation(len(negatives))
    (one, _), (other, _) = (
        method(positives[first[half::2]], negatives[second[half::2]]) for half in (0, 1)
    )
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths else None
