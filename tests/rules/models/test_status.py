"""The statuses of a model: every move, what a restart makes of them, and what may be loaded or deleted."""

from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.rules.models import status as model_status
from steerserve.rules.models.status import Event
from steerserve.rules.residency.lock import Lock, LockedBy
from tests.refusals import refusal_of

STATUSES = ("downloading", "ready", "loading", "loaded", "error")


TABLE = """
| before      | event           | after       |
| -           | registered      | ready       |
| -           | requested       | downloading |
| error       | requested       | downloading |
| ready       | requested       | downloading |
| downloading | downloaded      | ready       |
| downloading | download_failed | error       |
| downloading | cancelled       | error       |
| downloading | restarted       | error       |
| ready       | load_began      | loading     |
| error       | load_began      | loading     |
| loading     | loaded          | loaded      |
| loading     | load_failed     | error       |
| loading     | lacked_memory   | ready       |
| loading     | lacked_engine   | ready       |
| loading     | load_abandoned  | ready       |
| loading     | restarted       | ready       |
| loaded      | unloaded        | ready       |
| loaded      | engine_ended    | ready       |
| loaded      | restarted       | ready       |
"""


@pytest.mark.shows("model-record.10", "states.1")
def test_these_and_no_other_moves_exist() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TABLE.splitlines()[2:]]
    moves = {(None if a == "-" else a, Event(event)): b for a, event, b in rows}
    assert moves == model_status.MOVES
    assert set(moves.values()) == set(STATUSES)


def test_an_event_leads_to_one_status_from_wherever_it_happens() -> None:
    for (_, event), to in model_status.MOVES.items():
        if event is not Event.RESTARTED:
            assert model_status.AFTER[event] == to


@pytest.mark.parametrize(
    ("status", "is_on_disk", "ended_by", "code", "words"),
    [
        ("downloading", False, None, "MODEL_BUSY", "downloaded"),
        ("downloading", True, None, "MODEL_BUSY", "downloaded"),
        ("error", False, None, "DOWNLOAD_FAILED", "the reason"),
        ("error", False, "HUB_UNAVAILABLE", "DOWNLOAD_FAILED", "the reason"),
        ("error", False, "DOWNLOAD_CANCELLED", "DOWNLOAD_CANCELLED", "cancelled"),
    ],
)
def test_a_model_is_not_loaded_before_its_files_are_whole(
    status: str, is_on_disk: bool, ended_by: str | None, code: str, words: str
) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        model_status.check_load(status, is_on_disk, "the reason", ended_by)
    assert refused.value.code == code


@pytest.mark.parametrize("status", ["error", "ready", "loaded"])
def test_a_model_on_the_disk_may_be_loaded(status: str) -> None:
    model_status.check_load(status, True, "the last load failed", "DOWNLOAD_CANCELLED")


@pytest.mark.parametrize(
    ("status", "is_on_disk", "goes_on"),
    [
        ("error", False, True),
        ("error", True, False),
        ("ready", True, False),
        ("ready", False, True),
        ("downloading", False, False),
        ("loaded", False, False),
    ],
)
def test_only_a_download_that_failed_or_was_lost_goes_on(
    status: str, is_on_disk: bool, goes_on: bool
) -> None:
    assert model_status.may_go_on(status, is_on_disk) is goes_on


def test_after_a_restart_nothing_is_resident_and_no_download_runs() -> None:
    after = [model_status.AFTER_RESTART.get(status, status) for status in STATUSES]
    assert after == ["error", "ready", "ready", "ready", "error"]
    assert model_status.SAE_AFTER_RESTART == {"attached": "cached", "downloading": "error"}


LOCK = Lock(1, "m", LockedBy.OPERATOR)


@pytest.mark.shows("models.5")
@pytest.mark.parametrize(
    ("status", "is_locked", "code"),
    [
        ("loaded", False, "MODEL_BUSY"),
        ("loaded", True, "MODEL_BUSY"),
        ("loading", False, "MODEL_BUSY"),
        ("ready", True, "MODEL_LOCKED"),
    ],
)
def test_a_model_in_use_or_locked_is_not_deleted(status: str, is_locked: bool, code: str) -> None:
    refusal = refusal_of(model_status.check_delete, status, LOCK if is_locked else None)
    assert refusal.code == code
    assert refusal.row.api == 409


@pytest.mark.parametrize("status", ["ready", "error"])
def test_an_idle_model_may_be_deleted(status: str) -> None:
    model_status.check_delete(status, None)
