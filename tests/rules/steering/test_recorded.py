"""Recorded edits: the sources of edits that replace values, whoever has written the record."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.rules.steering.edits import Edit, Feature, Source, Target, direction_target
from steerserve.rules.steering.recorded import check_edits
from steerserve.rules.steering.vector import Direction, packed
from tests.refusals import refusal_of

WIDE = Direction(3, "v", packed([1.0] * 8))
FEATURE = Feature("sae@1", 7)
REPLACED = direction_target("replace", 1.0)
SET = Target(factor=0.0, offset=2.0)


def edit(at: Direction | Feature, target: Target, *source: Any) -> Edit:
    return Edit(at, target, source=Source(*source))


@pytest.mark.parametrize(
    "whole",
    [
        edit(WIDE, REPLACED, 1),
        edit(WIDE, REPLACED, 4, (0, 2)),
        edit(FEATURE, SET, 2, (), (0.5, 1.5)),
    ],
)
def test_a_source_that_fits_its_edit_is_taken(whole: Edit) -> None:
    check_edits([whole], "edits")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (edit(WIDE, REPLACED, 0), "source"),
        (edit(WIDE, REPLACED, 3), "source"),
        (edit(WIDE, REPLACED, 16), "source"),
        (edit(WIDE, REPLACED, 2, (), (0.5, 1.5)), "source"),
        (edit(FEATURE, SET, 1, (), (0.5,)), "source"),
        (edit(FEATURE, SET, 2, (), (0.5,)), "source"),
        (edit(FEATURE, Target(offset=2.0), 2, (), (0.5, 1.5)), "source"),
        (edit(FEATURE, SET, 2, (), (0.5, 1e30)), "source.activations"),
        (edit(WIDE, REPLACED, 1, (-1,)), "source.heads"),
    ],
)
def test_a_source_that_does_not_fit_is_refused_by_its_place(wrong: Edit, param: str) -> None:
    refusal = refusal_of(check_edits, [wrong], "edits")
    assert refusal.param == f"edits[0].{param}"
