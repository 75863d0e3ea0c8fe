"""What a model that suggests labels is asked, and what its answers mean."""

from __future__ import annotations

import pytest

from steerserve.nouns.suggestions import rules as suggesting
from steerserve.nouns.suggestions.rules import FeatureText


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ('\nLabel: "the sea"\nbecause', "the sea"),
        ("**ships**", "ships"),
        ("  ", None),
        ("x" * 501, None),
        ("a\x00b", None),
    ],
)
def test_a_label_is_the_first_line_of_an_answer(answer: str, label: str | None) -> None:
    assert suggesting.label_of(answer) == label


@pytest.mark.parametrize(
    ("answer", "score"),
    [("1, 3", 1.0), ("none", 0.5), ("1,2,3,4", 0.5), ("2, 4", 0.0), ("texts 1 and 2", 0.5)],
)
def test_the_score_is_the_balanced_accuracy(answer: str, score: float) -> None:
    assert suggesting.balanced_accuracy(answer, [True, False, True, False]) == score


def test_one_group_has_no_score() -> None:
    assert suggesting.balanced_accuracy("1", [True]) is None


def test_the_strongest_tokens_are_marked() -> None:
    text = FeatureText(("a", " b", " c", " d"), (0.0, 4.0, 2.0, 3.0))
    assert text.marked == "a<< b>> c<< d>>"
    assert text.text == "a b c d"


def test_an_example_is_cut_around_its_largest_activation() -> None:
    values = [0.0] * 100
    values[50] = 1.0
    found = suggesting.around([str(i) for i in range(100)], values)
    assert found.pieces == tuple(str(i) for i in range(34, 67))


def test_what_is_shown_and_what_is_held_out_is_about_equally_strong() -> None:
    texts = [FeatureText(("x",), (float(i),)) for i in range(1, 8)]
    shown, held_out = suggesting.split(texts, 2)
    assert [one.largest for one in shown] == [7.0, 5.0]
    assert [one.largest for one in held_out] == [6.0, 4.0]
    mixed, truth = suggesting.mixed(held_out, ["a", "b", "c"], seed=0)
    assert sorted(mixed) == ["a", "b", "x", "x"]
    assert [text == "x" for text in mixed] == truth
