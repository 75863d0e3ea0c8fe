"""Where tokens begin in their text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerserve.rules.text_offsets import place_tokens


@pytest.mark.parametrize(
    ("text", "tokens", "texts", "offsets"),
    [
        ("", [], None, []),
        ("One day", ["One", " day"], None, [0, 3]),
        ("One day", ["<s>", "One", " day"], None, [0, 0, 3]),
        ("One day", ["One", "day"], ["One", " day"], [0, 3]),
        ("a a b", ["<s>", " a", " a", " b"], ["<s>", "a", " a", " b"], [0, 0, 1, 3]),
        ("a", [" ", "a"], ["", "a"], [0, 0]),
        (" a", [" ", " a"], [" ", "a"], [0, 1]),
        ("a</s>b", [" a", "</s>", " b"], ["a", "</s>", "b"], [0, 1, 5]),
        ("漢 漢", ["\ufffd", "\ufffd", " 漢"], None, [0, 0, 1]),
        ("aé b", ["a", "\ufffd", "\ufffd", " b"], None, [0, 1, 1, 2]),
        ("a☕☕b", ["a", "\ufffd", "\ufffd", "\ufffd", "☕", "b"], None, [0, 1, 1, 1, 1, 3]),
        ("x y", ["x", "", " y"], None, [0, 1, 1]),
        ("x</s>", ["x", "</s>"], None, [0, 1]),
    ],
)
def test_tokens_have_their_places_and_their_parts_of_the_text(
    text: str, tokens: list[str], texts: list[str] | None, offsets: list[int]
) -> None:
    assert place_tokens(text, tokens) == (texts or tokens, offsets)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(alphabet="ab ☕", min_size=1, max_size=3), max_size=20))
def test_tokens_that_are_the_text_begin_where_they_are(tokens: list[str]) -> None:
    expected = [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert place_tokens("".join(tokens), tokens) == (tokens, expected)


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=30), st.lists(st.text(max_size=4), max_size=20))
def test_offsets_never_leave_the_text_and_never_go_back(text: str, tokens: list[str]) -> None:
    texts, offsets = place_tokens(text, tokens)
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in offsets)
    assert len(texts) == len(offsets) == len(tokens)
