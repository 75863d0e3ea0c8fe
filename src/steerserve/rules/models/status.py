"""The status of a model (and of an SAE) as a state machine: its events, its moves, and the requests that each status
allows."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from steerserve.errors import Refusal
from steerserve.rules.residency.lock import Lock

ModelSource = Literal["huggingface", "local"]
ModelEngine = Literal["checkpoint", "gguf"]
SaeStatus = Literal["downloading", "cached", "attached", "error"]
ModelStatus = Literal["downloading", "ready", "loading", "loaded", "unloading", "error"]


class Event(StrEnum):
    """What happens to a registered model."""

    REGISTERED = "registered"
    """From a folder on this machine."""
    REQUESTED = "requested"
    """From the hub. The download begins, or continues after a failure or after its files were lost."""
    DOWNLOADED = "downloaded"
    DOWNLOAD_FAILED = "download_failed"
    CANCELLED = "cancelled"
    LOAD_BEGAN = "load_began"
    LOADED = "loaded"
    LOAD_FAILED = "load_failed"
    LACKED_MEMORY = "lacked_memory"
    """A load failed only because memory was lacking; the next request may try again."""
    LACKED_ENGINE = "lacked_engine"
    """A load failed because no engine could be started for it; the next request may try again."""
    LOAD_ABANDONED = "load_abandoned"
    UNLOADED = "unloaded"
    ENGINE_ENDED = "engine_ended"
    RESTARTED = "restarted"
    """The service started: nothing is resident, and no download survived."""


MOVES: dict[tuple[str | None, Event], str] = {
    (None, Event.REGISTERED): "ready",
    (None, Event.REQUESTED): "downloading",
    ("error", Event.REQUESTED): "downloading",
    ("ready", Event.REQUESTED): "downloading",
    ("downloading", Event.DOWNLOADED): "ready",
    ("downloading", Event.DOWNLOAD_FAILED): "error",
    ("downloading", Event.CANCELLED): "error",
    ("downloading", Event.RESTARTED): "error",
    ("ready", Event.LOAD_BEGAN): "loading",
    ("error", Event.LOAD_BEGAN): "loading",
    ("loading", Event.LOADED): "loaded",
    ("loading", Event.LOAD_FAILED): "error",
    ("loading", Event.LACKED_MEMORY): "ready",
    ("loading", Event.LACKED_ENGINE): "ready",
    ("loading", Event.LOAD_ABANDONED): "ready",
    ("loading", Event.RESTARTED): "ready",
    ("loaded", Event.UNLOADED): "ready",
    ("loaded", Event.ENGINE_ENDED): "ready",
    ("loaded", Event.RESTARTED): "ready",
}
"""Status and event -> next status. Other pairs do not happen. The status None is a model that is not registered yet."""

AFTER_RESTART: dict[str, str] = {
    before: after
    for (before, event), after in MOVES.items()
    if event is Event.RESTARTED and before is not None
}

SAE_AFTER_RESTART: dict[str, str] = {"attached": "cached", "downloading": "error"}


AFTER: dict[Event, str] = {
    event: to for (_, event), to in MOVES.items() if event is not Event.RESTARTED
}
"""The status after each event, from whichever status it comes."""


def after_failed_load(code: str) -> Event:
    """What a load that failed with this code means for the model."""
    transient = {
        "INSUFFICIENT_MEMORY": Event.LACKED_MEMORY,
        "ENGINE_UNAVAILABLE": Event.LACKED_ENGINE,
    }
    return transient.get(code, Event.LOAD_FAILED)


def check_load(status: str, is_on_disk: bool, reason: str | None, ended_by: str | None) -> None:
    """Whether a model of this status can be loaded. `reason` says why the status is `error`. `ended_by` is the code
    with which the download of the model ended; None where it succeeded, or was not recorded.

    Raises:
        Refusal: MODEL_BUSY while it is downloaded. DOWNLOAD_CANCELLED or DOWNLOAD_FAILED when its files are not
            complete.
    """
    if status == "downloading":
        raise Refusal("MODEL_BUSY", "the model is still being downloaded", status=status)
    if is_on_disk:
        return
    again = "POST /api/models with the same body goes on with the download"
    if ended_by == "DOWNLOAD_CANCELLED":
        raise Refusal(ended_by, f"the download of the model was cancelled; {again}", status=status)
    why = reason or "its download did not end"
    raise Refusal(
        "DOWNLOAD_FAILED", f"the model is not on this machine ({why}); {again}", status=status
    )


def check_delete(status: str, lock: Lock | None) -> None:
    """Whether a model of this status can be deleted. A model that is loaded, loading or locked cannot. `lock` is the
    lock of this model. A running download does not prevent the deletion, which cancels it.

    Raises:
        Refusal: MODEL_BUSY or MODEL_LOCKED.
    """
    if status in ("loaded", "loading", "unloading"):
        then = "try again later" if status == "unloading" else "unload it first"
        raise Refusal("MODEL_BUSY", f"the model is {status}; {then}", status=status)
    if lock is not None:
        raise lock.refusal("the model is locked")


def may_go_on(status: str, is_on_disk: bool) -> bool:
    """Whether a second request for a registered hub model continues its download. Otherwise it is a duplicate."""
    return (status, Event.REQUESTED) in MOVES and not is_on_disk
