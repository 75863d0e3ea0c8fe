"""What people read about a text that is no JSON."""

from __future__ import annotations

import pytest

from steerserve.rules.json_faults import fault_of


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "the text is empty"),
        (b" \n", "the text is empty"),
        (b'{\n  "a": 1,\n  "b" 2}', "expecting ':' delimiter at line 3, column 7"),
        (b'{"a": "NaN",\n "b": NaN}', "NaN at line 2, column 7 is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity at line 1, column 7 is no number of JSON"),
        (b'{"a": "\xe9"}', "byte 0xe9 at line 1, column 8 is not UTF-8; send UTF-8"),
        (b"[" * 100_000, "its objects and lists are nested too deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number in it has too many digits"),
    ],
)
def test_a_fault_is_named_with_its_place(text: bytes, fault: str) -> None:
    assert fault_of(text).startswith(fault)
