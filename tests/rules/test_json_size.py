"""Counting the values of JSON without reading it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.rules.json_size import has_more_values

VALUES: list[tuple[Any, int]] = [
    (1, 0),
    ([], 1),
    ([1, 2, 3], 3),
    ([[], [[]], {}], 7),
    ({"a": 1, "b": [2]}, 3),
    ({"text": "a, b, [c] and {d}"}, 2),
    (['a "quoted, [text]"', "\\"], 2),
    (["\\\\", ",,,", '\\",'], 3),
    ("," * 9, 0),
]


@pytest.mark.parametrize(("value", "count"), VALUES)
def test_commas_and_brackets_in_texts_are_not_values(value: Any, count: int) -> None:
    text = json.dumps(value).encode()
    assert not has_more_values(text, max(count, 1))
    if count > 1:
        assert has_more_values(text, count - 1)


def test_a_text_of_many_strings_has_many_values() -> None:
    assert has_more_values(b"[" + b'"",' * 50 + b'""]', 40)
    assert has_more_values(b'"' + b'",' * 500, 40)
