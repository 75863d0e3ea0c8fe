"""The one resident slot: every phase, the same or another model, locked or not, leased or not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from steerserve.errors import Refusal
from steerserve.rules.residency import swap
from steerserve.rules.residency.lease import Lease
from steerserve.rules.residency.lock import Lock, LockedBy
from steerserve.rules.residency.swap import Phase, Step, View
from tests.refusals import refusal_of

SAME, ANOTHER = 1, 2
E, LG, LD, U = Phase.EMPTY, Phase.LOADING, Phase.LOADED, Phase.UNLOADING

END = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE = Lease(SAME, "resident", "nightly", "evaluation", END, END, 60, b"digest")
ASK: dict[str, Callable[[View, int], object]] = {
    "may_serve": lambda view, model_id: swap.may_serve(view, model_id, "asked for"),
    "may_serve_resident": lambda view, model_id: swap.may_serve(
        view, model_id, "asked for", may_load=False
    ),
    "may_load": swap.may_load,
    "may_unload": swap.may_unload,
    "may_lock": swap.may_lock,
    "may_lease": lambda view, model_id: swap.may_lease(view, model_id, "asked for"),
}

LOCK = Lock(SAME, "resident", LockedBy.OPERATOR)

# phase, asked for, locked: may_serve, may_load, may_unload, may_lock
TABLE = [
    (E, SAME, False, "load", "ok", "MODEL_NOT_LOADED", "MODEL_NOT_LOADED"),
    (LG, SAME, False, "join", "MODEL_BUSY", "end_load", "MODEL_NOT_LOADED"),
    (LG, ANOTHER, False, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (LD, SAME, False, "serve", "MODEL_ALREADY_LOADED", "unload", "ok"),
    (LD, ANOTHER, False, "load", "ok", "MODEL_NOT_LOADED", "MODEL_NOT_LOADED"),
    (LD, SAME, True, "serve", "MODEL_ALREADY_LOADED", "unload", "ok"),
    (LD, ANOTHER, True, "MODEL_LOCKED", "ok", "MODEL_NOT_LOADED", "MODEL_LOCKED"),
    (U, SAME, False, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY"),
    (U, ANOTHER, False, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_NOT_LOADED"),
    (U, SAME, True, "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY", "MODEL_BUSY"),
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
    return View() if phase is E else View(phase, SAME, "resident", LOCK if is_locked else None)


@pytest.mark.parametrize(("ask", "phase", "asked", "is_locked", "expected"), CASES)
def test_every_phase_has_its_answer(
    ask: str, phase: Phase, asked: int, is_locked: bool, expected: str
) -> None:
    check(ask, view(phase, is_locked), asked, expected)


@pytest.mark.parametrize("is_holder", [False, True])
def test_a_load_that_waits_for_an_unload_can_be_ended_and_the_unload_cannot(
    is_holder: bool,
) -> None:
    seen = View(U, SAME, "resident", next_id=ANOTHER, lease=LEASE, is_holder=is_holder)
    assert swap.is_loading(seen, ANOTHER)
    assert not swap.is_loading(seen, SAME)
    check("may_unload", seen, ANOTHER, "end_load")
    check("may_unload", seen, SAME, "MODEL_BUSY")


@pytest.mark.parametrize("phase", [E, LD, U])
def test_only_a_load_that_is_under_way_is_loading(phase: Phase) -> None:
    assert not swap.is_loading(view(phase), SAME)
    assert swap.is_loading(view(LG), SAME)
    assert not swap.is_loading(view(LG), ANOTHER)


def check(ask: str, seen: View, asked: int, expected: str) -> None:
    if expected.startswith("MODEL_"):
        assert refused(ask, seen, asked).code == expected
    else:
        assert (ASK[ask](seen, asked) or "ok") == expected


def refused(ask: str, seen: View, asked: int) -> Refusal:
    return refusal_of(ASK[ask], seen, asked)


@pytest.mark.parametrize(("phase", "unloading"), [(LG, False), (U, True)])
def test_busy_says_what_runs_so_that_the_time_to_retry_can_be_told(
    phase: Phase, unloading: bool
) -> None:
    refusal = swap.busy(view(phase))
    assert refusal.code == "MODEL_BUSY"
    assert refusal.details["unloading"] is unloading
    assert refusal.details["resident_model_id"] == SAME
    assert refusal.details["resident_model_name"] == "resident"


def test_a_locked_refusal_names_the_resident_model() -> None:
    refusal = refused("may_serve", view(LD, True), ANOTHER)
    assert refusal.details["resident_model_name"] == "resident"
    assert refusal.row.v1 == 409


# ---------------------------------------------------------------------- leases

# phase, asked for, locked: may_serve, may_load, may_unload, for everybody but the holder; and for the holder
LEASED = [
    (LD, SAME, False, "serve", "MODEL_ALREADY_LOADED", "MODEL_LEASED", "serve", "MODEL_ALREADY_LOADED", "unload"),
    (LD, SAME, True, "serve", "MODEL_ALREADY_LOADED", "MODEL_LEASED", "serve", "MODEL_ALREADY_LOADED", "unload"),
    (LD, ANOTHER, False, "MODEL_LEASED", "MODEL_LEASED", "MODEL_NOT_LOADED", "load", "ok", "MODEL_NOT_LOADED"),
    (LD, ANOTHER, True, "MODEL_LEASED", "MODEL_LEASED", "MODEL_NOT_LOADED", "MODEL_LOCKED", "ok", "MODEL_NOT_LOADED"),
    (U, SAME, False, *["MODEL_BUSY"] * 6),
    (U, ANOTHER, True, *["MODEL_BUSY"] * 6),
]  # fmt: skip


def leased(phase: Phase, is_locked: bool = False, *, is_holder: bool = False) -> View:
    return View(
        phase, SAME, "resident", LOCK if is_locked else None, lease=LEASE, is_holder=is_holder
    )


@pytest.mark.parametrize(("ask", "column"), [("may_serve", 3), ("may_load", 4), ("may_unload", 5)])
@pytest.mark.parametrize("row", LEASED)
def test_a_lease_stands_against_everybody_but_its_holder(
    ask: str, column: int, row: tuple[Any, ...]
) -> None:
    phase, asked, is_locked = row[:3]
    check(ask, leased(phase, is_locked), asked, row[column])
    check(ask, leased(phase, is_locked, is_holder=True), asked, row[column + 3])


@pytest.mark.parametrize(
    ("ask", "asked", "operation"),
    [("may_serve", ANOTHER, "swap"), ("may_load", ANOTHER, "load"), ("may_unload", SAME, "unload")],
)
def test_a_leased_refusal_names_the_lease_and_what_it_stands_against(
    ask: str, asked: int, operation: str
) -> None:
    refusal = refused(ask, leased(LD), asked)
    assert refusal.details == {
        "holder": "nightly",
        "reason": "evaluation",
        "expires_at": "2026-03-01T12:00:00Z",
        "leased_model_id": SAME,
        "leased_model_name": "resident",
        "operation": operation,
        "target_model_id": asked,
        "ways_out": [
            "wait until 2026-03-01T12:00:00Z",
            f"DELETE /api/models/{SAME}/lease with the id of the lease in X-Service-Lease",
            "the id of the lease in X-Service-Lease of this request",
        ],
    }
    assert "'nightly'" in refusal.message
    assert f"DELETE /api/models/{SAME}/lease" in refusal.message
    assert refusal.row.final
    assert (refusal.row.api, refusal.row.v1, refusal.row.v1_code) == (409, 409, "model_leased")


@pytest.mark.parametrize(
    ("phase", "asked", "expected"),
    [
        (E, SAME, "MODEL_NOT_RESIDENT"),
        (LG, SAME, "MODEL_BUSY"),
        (LG, ANOTHER, "MODEL_BUSY"),
        (LD, SAME, "ok"),
        (LD, ANOTHER, "MODEL_NOT_RESIDENT"),
        (U, SAME, "MODEL_BUSY"),
        (U, ANOTHER, "MODEL_BUSY"),
    ],
)
def test_only_the_resident_loaded_model_can_be_leased(
    phase: Phase, asked: int, expected: str
) -> None:
    check("may_lease", view(phase), asked, expected)
    if phase is LD:
        check("may_lease", view(phase, True), asked, expected)


@pytest.mark.parametrize(("phase", "resident"), [(E, "none"), (LD, "resident")])
def test_a_refused_lease_names_the_resident_model(phase: Phase, resident: str) -> None:
    refusal = refused("may_lease", view(phase), ANOTHER)
    assert refusal.details["requested_model"] == "asked for"
    assert refusal.details["resident_model"] == resident
    assert refusal.details["resident_model_name"] == (None if phase is E else "resident")


# ---------------------------------------------------------------------- the load policy `refuse`


@pytest.mark.parametrize("is_locked", [False, True])
@pytest.mark.parametrize(
    ("phase", "asked", "expected"),
    [
        (E, SAME, "MODEL_NOT_RESIDENT"),
        (LG, SAME, "MODEL_LOADING"),
        (LG, ANOTHER, "MODEL_NOT_RESIDENT"),
        (LD, SAME, "serve"),
        (LD, ANOTHER, "MODEL_NOT_RESIDENT"),
        (U, SAME, "MODEL_BUSY"),
        (U, ANOTHER, "MODEL_BUSY"),
    ],
)
def test_a_request_that_may_not_load_is_served_by_the_resident_model_only(
    phase: Phase, asked: int, expected: str, is_locked: bool
) -> None:
    check("may_serve_resident", view(phase, is_locked and phase is LD), asked, expected)


def test_the_model_that_comes_after_the_one_being_unloaded_is_loading() -> None:
    seen = View(U, SAME, "resident", next_id=ANOTHER)
    check("may_serve_resident", seen, ANOTHER, "MODEL_LOADING")


@pytest.mark.parametrize("is_holder", [False, True])
def test_a_request_that_may_not_load_is_told_the_resident_models_lease(is_holder: bool) -> None:
    refusal = refused("may_serve_resident", leased(LD, is_holder=is_holder), ANOTHER)
    assert refusal.details == {
        "requested_model": "asked for",
        "resident_model": "resident",
        "lease": {
            "holder": "nightly",
            "reason": "evaluation",
            "expires_at": "2026-03-01T12:00:00Z",
        },
    }
    assert "lease" not in refused("may_serve_resident", view(LD), ANOTHER).details


def test_a_locked_model_whose_engine_ended_keeps_its_place() -> None:
    view = View(lock=replace(LOCK, is_waiting=True))
    assert view.locked_id == SAME
    assert swap.may_serve(view, SAME, "resident") is Step.LOAD
    refused = refusal_of(swap.may_serve, view, ANOTHER, "other")
    assert refused.code == "MODEL_LOCKED"
    assert refused.details["locked_model_id"] == SAME
    assert refused.details["resident_model_id"] is None
    assert "its engine ended" in refused.message
    refused = refusal_of(swap.may_lock, view, ANOTHER)
    assert refused.code == "MODEL_LOCKED"
    assert refused.details["locked_model_name"] == "resident"
    assert refused.details["resident_model_name"] is None
    swap.may_load(view, ANOTHER)  # the management does not read the lock
