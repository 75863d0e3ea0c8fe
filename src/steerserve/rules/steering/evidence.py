"""What the evidence rung of a circuit or an edge means, in the words of the specification.

Below rung 2 nothing says that one feature acts on another. The phrases of this module are the only words for evidence
that the service uses.
"""

from __future__ import annotations

from typing import Any

VALIDATED = 2
"""The lowest rung at which a circuit serves without an acknowledgement."""

LANGUAGE = (
    "associated",
    "suggested (attribution-supported)",
    "causally validated (edge)",
    "faithfulness-tested (circuit)",
)
"""The phrase of each rung, from 0 to 3."""

HIGHEST = len(LANGUAGE) - 1

OBSERVATION = "A firing is an observation. It says nothing about causes, and raises no rung."
"""What a firing of a cluster or of an edge is."""

_NEXT_STEPS = (
    "run attribution for its edges",
    "validate each of its edges by intervention",
    "test the faithfulness of the whole circuit",
    "nothing further",
)


def rung_of(raw: Any) -> int:
    """The rung that a document states; 0 for anything that is no rung."""
    is_rung = isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= HIGHEST
    return raw if is_rung else 0


def language(rung: int) -> str:
    """The phrase of a rung."""
    return LANGUAGE[rung]


def next_step(rung: int) -> str:
    """The test that would raise a rung."""
    return _NEXT_STEPS[rung]


def is_validated(rung: int) -> bool:
    return rung >= VALIDATED


def header(rung: int) -> str:
    """A rung as the value of a response header: an integer with its phrase as a parameter (RFC 8941)."""
    return f'{rung}; language="{language(rung)}"'
