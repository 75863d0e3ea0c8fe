"""The one resident slot: every phase, the same or another model, locked or not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from steerserve.errors import Refusal
from steerserve.rules import residency
from steerserve.rules.residency import Phase, View

SAME, ANOTHER = 1, 2
E, LG, LD, U = Phase.EMPTY, Phase.LOADING, Phase.LOADED, Phase.UNLOADING

# phase, asked for, locked: may_serve, may_load, may_unload, may_lock
TABLE = [
    (E, SAME, False, "load", "ok", "MODEL_NOT_LOADED", "MODEL_NOT_LOADED"),
    (LG, SAME, False, "join", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (LG, ANOTHER, False, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (LD, SAME, False, "serve", "MODEL_ALREADY_LOADED", "ok", "ok"),
    (LD, ANOTHER, False, "load", "ok", "MODEL_NOT_LOADED", "MODEL_NOT_LOADED"),
    (LD, SAME, True, "serve", "MODEL_ALREADY_LOADED", "ok", "ok"),
    (LD, ANOTHER, True, "MODEL_LOCKED", "ok", "MODEL_NOT_LOADED", "MODEL_LOCKED"),
    (U, SAME, False, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (U, ANOTHER, False, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (U, SAME, True, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (U, ANOTHER, True, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_LOCKED"),
]
ASKS: list[tuple[str, int]] = [
    ("may_serve", 3),
    ("may_load", 4),
    ("may_unload", 5),
    ("may_lock", 6),
]
CASES = [
    pytest.param(ask, row[0], row[1], row[2], row[column], id=f"{ask}-{row[0]}-{row[1]}-{row[2]}")
    for (ask, column), row in itertools.product(ASKS, TABLE)
]


def view(phase: Phase, is_locked: bool = False) -> View:
    return View() if phase is E else View(phase, SAME, "resident", is_locked)


@pytest.mark.parametrize(("ask", "phase", "asked", "is_locked", "expected"), CASES)
def test_every_phase_has_its_answer(
    ask: str, phase: Phase, asked: int, is_locked: bool, expected: str
) -> None:
    question: Callable[[View, int], object] = getattr(residency, ask)
    if expected.startswith("MODEL_"):
        with pytest.raises(Refusal) as refused:
            question(view(phase, is_locked), asked)
        assert refused.value.code == expected
    else:
        answer = question(view(phase, is_locked), asked)
        assert (answer or "ok") == expected


@pytest.mark.parametrize(("phase", "unloading"), [(LG, False), (U, True)])
def test_busy_says_what_runs_so_that_the_time_to_retry_can_be_told(
    phase: Phase, unloading: bool
) -> None:
    refusal = residency.busy(view(phase))
    assert refusal.code == "MODEL_BUSY"
    assert refusal.details["unloading"] is unloading
    assert refusal.details["resident_model_id"] == SAME
    assert refusal.details["resident_model_name"] == "resident"


def test_a_locked_refusal_names_the_resident_model() -> None:
    with pytest.raises(Refusal) as refused:
        residency.may_serve(view(LD, True), ANOTHER)
    assert refused.value.details["resident_model_name"] == "resident"
    assert refused.value.row.v1 == 409
