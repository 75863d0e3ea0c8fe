"""Which characters names and free texts may have, and how untrusted texts are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerserve.rules import text

FINE = [
    "a",
    "naïve",
    "e\u0301",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u2764\ufe0f",
    "\uffff",
    " ",
]
BREAKS = ["a\tb", "a\nb", "a\r\nb"]
CONTROLS = [
    "\x00",
    "\x07",
    "\x1b",
    "\x0b",
    "\x1c",
    "\x7f",
    "\x85",
    "\x9b",
    "\u2028",
    "\u2029",
    "\ud800",
    "\udfff",
]
DIRECTIONS = [chr(code) for code in (0x202A, 0x202B, 0x202C, 0x202D, 0x202E, 0x2066, 0x2069)]


INVISIBLE = ["\u200b", "\u200d", "\u200f", "\u2060", "\ufeff", "\u00ad", "\u3164", "\U000e0041"]


@pytest.mark.parametrize("one", FINE)
def test_letters_of_every_script_and_signs_are_fine_everywhere(one: str) -> None:
    assert text.name_fault(one) is text.line_fault(one) is text.lines_fault(one) is None


@pytest.mark.parametrize("one", BREAKS)
def test_tabs_and_line_ends_are_fine_in_free_texts_only(one: str) -> None:
    assert text.lines_fault(one) is None
    assert "control characters" in (text.line_fault(one) or "")
    assert text.name_fault(one) == text.line_fault(one)


@pytest.mark.parametrize("one", CONTROLS)
def test_other_control_characters_are_fine_nowhere_and_are_named(one: str) -> None:
    for fault_of in (text.lines_fault, text.line_fault, text.name_fault):
        assert f"U+{ord(one):04X}" in (fault_of(f"a{one}b") or "")


@pytest.mark.parametrize("one", INVISIBLE)
def test_a_name_has_no_invisible_characters(one: str) -> None:
    assert f"U+{ord(one):04X}" in (text.name_fault(f"a{one}b") or "")
    assert text.line_fault(f"a{one}b") is text.lines_fault(f"a{one}b") is None


@pytest.mark.parametrize("one", ["\U0001f469\u200d\U0001f680", "\U0001f3f3\ufe0f\u200d\U0001f308"])
def test_a_joiner_between_two_emoji_is_a_part_of_one_sign(one: str) -> None:
    assert text.name_fault(one) is None
    for alone in (one[:-1], one[-1] + "\u200d", one.replace(one[-1], "a")):
        assert "U+200D" in (text.name_fault(alone) or "")


@pytest.mark.parametrize("one", DIRECTIONS)
def test_a_name_does_not_change_the_direction_of_the_text_around_it(one: str) -> None:
    assert f"U+{ord(one):04X}" in (text.name_fault(f"a{one}b") or "")
    assert text.line_fault(f"a{one}b") is None


@given(st.text(st.characters(codec=None, categories=None)))
def test_a_fine_text_can_be_stored_and_sent_and_any_text_can_be_shown(one: str) -> None:
    for fault_of in (text.lines_fault, text.line_fault, text.name_fault):
        if fault_of(one) is None:
            assert text.storable(one) == one
            assert one.encode().decode() == one
    assert len(text.shown(one)) <= text.SHOWN
    text.shown(one).encode()
    assert not text.UNSTORABLE.search(text.storable(one))
    if text.line_fault(one) is None:
        assert len(one.splitlines()) <= 1
