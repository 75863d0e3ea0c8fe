"""The files of pinned answers, and how two answers are compared."""

from __future__ import annotations

from typing import Any

import pytest

from tests.net.answers import pinned
from tests.net.answers.table import CASES

BYTES_MAXIMUM = 1_500_000


def test_the_files_have_the_answers_to_all_cases_and_no_others() -> None:
    cases = [case for made in CASES.values() for case in made]
    expected = [case.id for case in cases]
    assert len(set(expected)) == len(expected)
    assert pinned.groups() == {case.group for case in cases}
    found = {f"{group}: {name}" for group in pinned.groups() for name in pinned.pinned(group)}
    assert found == set(expected)


def test_the_files_stay_small() -> None:
    sizes = [file.stat().st_size for file in pinned.FOLDER.iterdir()]
    assert sum(sizes) < BYTES_MAXIMUM


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "the whole, its next field"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, "a, its next field"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "a[0].b"),
        ({"a": [1]}, {"a": [1, 2]}, "a[1]"),
        ({"a": 1}, {"a": 1.0}, "a"),
        ({"a": 1.0}, {"a": 1.002}, "a"),
        ({"temperature": 0.5}, {"temperature": 0.50001}, "temperature"),
        ({"a": None}, {"a": False}, "a"),
        ("x ", "x", "the whole"),
    ],
)
def test_a_difference_is_told_with_its_place(expected: Any, found: Any, place: str) -> None:
    told = pinned.difference(expected, found)
    assert told is not None
    assert told.startswith(f"at {place}:\n")


@pytest.mark.parametrize(("expected", "found"), [(1.0, 1.0005), (0.0, 0.00005), ([], []), (3, 3)])
def test_floats_may_be_rounded_otherwise(expected: Any, found: Any) -> None:
    assert pinned.difference(expected, found) is None
