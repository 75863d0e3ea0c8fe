"""The lock of a model: why `/v1` requests may not replace the model, and which requests unlock it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from steerserve.errors import Refusal


class LockedBy(StrEnum):
    """Why a model is locked."""

    ATTACHED_SAE = "attached_sae"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of one model. `sae_ids` are the SAEs attached to that model. `is_waiting` says that the engine of the
    model ended by itself, so that the model is not resident and waits to be loaded again."""

    model_id: int
    model_name: str
    by: LockedBy
    sae_ids: tuple[str, ...] = ()
    is_waiting: bool = False

    @property
    def reason(self) -> str:
        """Why the model is locked, as the end of a sentence."""
        if self.by is LockedBy.OPERATOR or not self.sae_ids:
            return "because an operator locked it"
        named = ", ".join(repr(sae_id) for sae_id in self.sae_ids)
        if len(self.sae_ids) == 1:
            return f"because the SAE {named} is attached to it"
        return f"because the SAEs {named} are attached to it"

    @property
    def unlocking(self) -> list[str]:
        """The requests that unlock the model: the unlocking itself, or one detaching request for each attached SAE."""
        return [
            f"POST /api/models/{self.model_id}/unlock",
            *(f"POST /api/saes/{sae_id}/detach" for sae_id in self.sae_ids),
        ]

    def refusal(self, what: str, **details: Any) -> Refusal:
        """The refusal of a request because of this lock. `what` is the beginning of its message, before the reason."""
        waiting = (
            "; its engine ended, and it is loaded again when it is asked for"
            if self.is_waiting
            else ""
        )
        ways = f"POST /api/models/{self.model_id}/unlock unlocks it"
        if self.sae_ids:
            ways += ", and so does detaching its last SAE (POST /api/saes/{id}/detach)"
        return Refusal(
            "MODEL_LOCKED",
            f"{what} {self.reason}{waiting}. {ways}",
            locked_model_id=self.model_id,
            locked_model_name=self.model_name,
            locked_by=self.by.value,
            attached_saes=list(self.sae_ids),
            ways_out=self.unlocking,
            **details,
        )
