"""The words for evidence: four exact phrases, and the word "causal" nowhere below rung 2."""

from __future__ import annotations

from typing import Any

import pytest

from steerserve.rules.steering import evidence

PHRASES = {
    0: "associated",
    1: "suggested (attribution-supported)",
    2: "causally validated (edge)",
    3: "faithfulness-tested (circuit)",
}


@pytest.mark.shows("steering-dial.13", "steering-dial.14", "steering-dial.15", "steering-dial.16")
@pytest.mark.parametrize("rung", PHRASES)
def test_each_rung_has_the_exact_phrase_of_the_specification(rung: int) -> None:
    assert evidence.language(rung) == PHRASES[rung]


def test_there_are_four_rungs() -> None:
    assert evidence.HIGHEST == 3
    assert dict(enumerate(evidence.LANGUAGE)) == PHRASES


@pytest.mark.parametrize("rung", [0, 1])
def test_nothing_said_below_rung_2_has_the_word_causal(rung: int) -> None:
    said = (evidence.language(rung), evidence.next_step(rung), evidence.header(rung))
    assert not any("causal" in text.lower() for text in said)


@pytest.mark.shows("limits.22")
@pytest.mark.parametrize(("rung", "is_validated"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_circuit_needs_an_acknowledgement_below_rung_2(rung: int, is_validated: bool) -> None:
    assert evidence.is_validated(rung) is is_validated


@pytest.mark.parametrize("raw", [None, "2", 2.0, True, -1, 4, [], {}])
def test_an_unreadable_rung_counts_as_0(raw: Any) -> None:
    assert evidence.rung_of(raw) == 0


@pytest.mark.parametrize("rung", PHRASES)
def test_a_readable_rung_counts_as_it_is(rung: int) -> None:
    assert evidence.rung_of(rung) == rung


@pytest.mark.parametrize("rung", PHRASES)
def test_the_header_is_an_integer_with_its_quoted_phrase(rung: int) -> None:
    assert evidence.header(rung) == f'{rung}; language="{PHRASES[rung]}"'
