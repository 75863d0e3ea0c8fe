"""The statuses of a model and an SAE: what a restart makes of them, and what may be deleted."""

from __future__ import annotations

from steerserve.errors import Refusal

AFTER_RESTART: dict[str, str] = {"loading": "ready", "loaded": "ready", "downloading": "error"}
"""What a status becomes when the service starts: nothing is resident, and no download survived."""

SAE_AFTER_RESTART: dict[str, str] = {"attached": "cached", "downloading": "error"}


def check_delete(status: str, is_locked: bool) -> None:
    """A model that is loaded, loading or locked is not deleted.

    Raises:
        Refusal: MODEL_BUSY or MODEL_LOCKED.
    """
    if status in ("loaded", "loading"):
        raise Refusal("MODEL_BUSY", f"the model is {status}; unload it first", status=status)
    if is_locked:
        raise Refusal("MODEL_LOCKED", "the model is locked; unlock it first")
