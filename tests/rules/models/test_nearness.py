"""Whether a way of computing a model is as near to float32 as another one."""

from __future__ import annotations

import math

import pytest

from steerserve.rules.models.nearness import (
    Checked,
    Distance,
    Exactness,
    Functions,
    RefusedFunction,
    Shapes,
    StepTimes,
    distance_of,
    is_module_near,
    is_near,
    is_right,
)

OWN = Distance(0.02, 0.04)

SHAPES = Shapes(1, 1, None)


def test_a_distance_is_the_mean_and_the_value_that_one_in_a_hundred_exceeds() -> None:
    assert distance_of([1.0] * 298 + [5.0, 9.0]) == Distance(312 / 300, 1.0)
    assert distance_of([1.0] * 297 + [4.0, 5.0, 9.0]).high == 1.0
    assert distance_of([1.0] * 296 + [4.0, 5.0, 6.0, 9.0]).high == 4.0


def test_what_is_no_number_is_near_to_nothing() -> None:
    found = distance_of([0.01, math.nan])
    assert found.mean == math.inf
    assert not any(ask(found, OWN, "bfloat16") for ask in (is_near, is_module_near, is_right))


@pytest.mark.parametrize(
    ("ask", "mean", "high"),
    [(is_near, 1.1, 1.25), (is_module_near, 1.5, 2.0), (is_right, 4.0, 4.0)],
)
def test_the_mean_and_the_quantile_each_have_their_bound(ask, mean, high) -> None:  # type: ignore[no-untyped-def]
    def judged(by_mean: float, by_high: float) -> bool:
        found = Distance(OWN.mean * mean * by_mean, OWN.high * high * by_high)
        return ask(found, OWN, "bfloat16")

    assert judged(0.99, 0.99)
    assert not judged(1.01, 0.99)
    assert not judged(0.99, 1.01)


@pytest.mark.parametrize(
    ("dtype", "near", "off"),
    [("float32", 3e-6, 2e-5), ("float16", 9e-4, 2e-3), ("bfloat16", 7e-3, 9e-3)],
)
def test_a_rounding_is_never_too_far(dtype: str, near: float, off: float) -> None:
    exact = Distance(0.0, 0.0)
    assert is_near(Distance(near, near), exact, dtype)
    assert not is_near(Distance(off, off), exact, dtype)


def test_what_is_slower_or_less_exact_is_told_by_name() -> None:
    refused = [RefusedFunction("layers.7.mlp", Distance(0.09, 0.2), Distance(0.01, 0.02))]
    exactness = Exactness(300, Distance(0.05, 0.1), Distance(0.01, 0.02), is_near=False)
    functions = Functions(3, 1, refused, StepTimes(21.04, 18.3))
    assert Checked("/m", True, functions, exactness, SHAPES).odd() == [
        "/m: layers.7.mlp keeps the library's code: the fast function is 0.09 from float32, the library's code 0.01",
        "/m: a token takes 21 ms, with the refused functions 18.3 ms",
        "/m: served 0.05 from float32, where the library's own pass is 0.01 from it",
    ]
    near = Exactness(300, Distance(0.01, 0.02), Distance(0.01, 0.02), is_near=True)
    assert Checked("/m", True, Functions(3, 1), near, SHAPES).odd() == []
