"""What a restart makes of statuses, and when a model may be deleted."""

from __future__ import annotations

import pytest

from steerserve.errors import Refusal
from steerserve.rules import model_status

STATUSES = ("downloading", "ready", "loading", "loaded", "error")


def test_after_a_restart_nothing_is_resident_and_no_download_runs() -> None:
    after = [model_status.AFTER_RESTART.get(status, status) for status in STATUSES]
    assert after == ["error", "ready", "ready", "ready", "error"]
    assert model_status.SAE_AFTER_RESTART == {"attached": "cached", "downloading": "error"}


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
    with pytest.raises(Refusal) as refused:
        model_status.check_delete(status, is_locked)
    assert refused.value.code == code
    assert refused.value.row.api == 409


@pytest.mark.parametrize("status", ["ready", "error"])
def test_an_idle_model_may_be_deleted(status: str) -> None:
    model_status.check_delete(status, False)
