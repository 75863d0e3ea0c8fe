"""Which features come first: by magnitude, and equals by index however many there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steerserve.worker.observers.ranking import largest

MANY = 5000


@pytest.mark.parametrize("count", [1, 7, 300, MANY, 2 * MANY])
@pytest.mark.parametrize("kinds", [1, 3, MANY])
def test_the_largest_are_those_of_a_stable_sort_by_magnitude(count: int, kinds: int) -> None:
    draw = np.random.default_rng(kinds)
    values = (draw.integers(-kinds, kinds + 1, size=MANY) / 4).astype(np.float32)
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    expected = [(int(place), float(values[place])) for place in order]
    assert largest(torch.from_numpy(values), count) == expected


def test_values_that_are_no_numbers_come_first_and_none_is_lost() -> None:
    found = largest(torch.tensor([1.0, torch.nan, -torch.inf, 0.0]), 4)
    assert [place for place, _ in found] == [1, 2, 0, 3]
