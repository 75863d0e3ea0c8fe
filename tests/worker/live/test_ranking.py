"""Which features come first: by magnitude, and equals by index however many there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steerserve.worker.live.ranking import largest, largest_of_each

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


def test_rows_that_are_ranked_together_are_ranked_as_by_themselves() -> None:
    draw = np.random.default_rng(7)
    rows = torch.from_numpy(draw.integers(-3, 4, size=(6, 40)).astype(np.float32))
    rows[1], rows[2] = torch.arange(40), 0.0  # without equals, and equals only
    for count in (1, 10, 40, 50):
        assert largest_of_each(rows, count) == [largest(row, count) for row in rows]
