"""The sentence and the details of a refusal for the sake of a lock."""

from __future__ import annotations

import pytest

from steerserve.rules.residency.lock import Lock, LockedBy

UNLOCK = "POST /api/models/7/unlock"


@pytest.mark.parametrize(
    ("by", "sae_ids", "reason", "unlocking"),
    [
        (LockedBy.OPERATOR, (), "because an operator locked it", [UNLOCK]),
        (
            LockedBy.OPERATOR,
            ("a",),
            "because an operator locked it",
            [UNLOCK, "POST /api/saes/a/detach"],
        ),
        (
            LockedBy.ATTACHED_SAE,
            ("a",),
            "because the SAE 'a' is attached to it",
            [UNLOCK, "POST /api/saes/a/detach"],
        ),
        (
            LockedBy.ATTACHED_SAE,
            ("a", "b"),
            "because the SAEs 'a', 'b' are attached to it",
            [UNLOCK, "POST /api/saes/a/detach", "POST /api/saes/b/detach"],
        ),
    ],
)
def test_a_refusal_names_the_reason_and_the_requests_that_unlock(
    by: LockedBy, sae_ids: tuple[str, ...], reason: str, unlocking: list[str]
) -> None:
    refusal = Lock(7, "m", by, sae_ids).refusal("model 'm' is locked", resident_model_id=7)
    assert refusal.code == "MODEL_LOCKED"
    assert refusal.message.startswith(f"model 'm' is locked {reason}. {UNLOCK} unlocks it")
    assert ("detach" in refusal.message) is bool(sae_ids)
    assert refusal.details == {
        "locked_model_id": 7,
        "locked_model_name": "m",
        "locked_by": by.value,
        "attached_saes": list(sae_ids),
        "ways_out": unlocking,
        "resident_model_id": 7,
    }


def test_a_model_that_waits_for_its_next_load_says_so() -> None:
    lock = Lock(7, "m", LockedBy.OPERATOR, is_waiting=True)
    assert "its engine ended" in lock.refusal("model 'm' is locked").message
