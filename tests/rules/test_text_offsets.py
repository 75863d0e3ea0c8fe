"""Where tokens begin in their text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.rules.text_offsets import text_offsets


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        ("", [], []),
        ("One day", ["One", " day"], [0, 3]),
        ("One day", ["<s>", "One", " day"], [0, 0, 3]),
        ("One day", ["One", "day"], [0, 3]),
        ("aé b", ["a", "\ufffd", "\ufffd", " b"], [0, 1, 1, 2]),
        ("a☕☕b", ["a", "\ufffd", "\ufffd", "\ufffd", "☕", "b"], [0, 1, 1, 1, 1, 3]),
        ("x y", ["x", "", " y"], [0, 1, 1]),
        ("x</s>", ["x", "</s>"], [0, 1]),
    ],
    ids=["empty", "plain", "special", "no blanks", "parts", "doubled", "unknown", "written"],
)
def test_offsets(text: str, tokens: list[str], offsets: list[int]) -> None:
    assert text_offsets(text, tokens) == offsets


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(alphabet="ab ☕", min_size=1, max_size=3), max_size=20))
def test_tokens_that_are_the_text_begin_where_they_are(tokens: list[str]) -> None:
    expected = [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert text_offsets("".join(tokens), tokens) == expected


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=30), st.lists(st.text(max_size=4), max_size=20))
def test_offsets_never_leave_the_text_and_never_go_back(text: str, tokens: list[str]) -> None:
    offsets = text_offsets(text, tokens)
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)
    assert len(offsets) == len(tokens)
