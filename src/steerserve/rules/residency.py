"""The one resident slot: what a request, a load or an unload may do, given what is resident now.

Pure questions about a `View`; the conductor asks them and acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from steerserve.errors import Refusal


class Phase(StrEnum):
    """What the resident slot is doing."""

    EMPTY = "empty"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


class Step(StrEnum):
    """What a `/v1` request has to do before it is served."""

    SERVE = "serve"
    JOIN = "join"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class View:
    """The resident slot as the rules see it. `model_id` is None exactly while the phase is EMPTY."""

    phase: Phase = Phase.EMPTY
    model_id: int | None = None
    model_name: str | None = None
    is_locked: bool = False


def may_serve(view: View, model_id: int) -> Step:
    """How a `/v1` request for `model_id` goes on.

    (1) The resident model serves. (2) A request for the model being loaded waits for it. (3) A load or an unload
    in progress refuses everyone else. (4) A locked resident is not replaced. (5) Otherwise the model is loaded,
    after the resident one, if any, is unloaded.

    Raises:
        Refusal: MODEL_BUSY (3), MODEL_LOCKED (4).
    """
    if view.phase is Phase.LOADED and view.model_id == model_id:
        return Step.SERVE  # (1)
    if view.phase is Phase.LOADING and view.model_id == model_id:
        return Step.JOIN  # (2)
    if view.phase in (Phase.LOADING, Phase.UNLOADING):
        raise busy(view)  # (3)
    if view.phase is Phase.LOADED and view.is_locked:
        raise Refusal(
            "MODEL_LOCKED",
            f"model {view.model_name!r} is locked against replacement",
            **_resident(view),
        )  # (4)
    return Step.LOAD  # (5)


def may_load(view: View, model_id: int) -> None:
    """Whether the management surface may load `model_id` now. It does not read the lock.

    Raises:
        Refusal: MODEL_BUSY while a load or an unload runs, MODEL_ALREADY_LOADED.
    """
    if view.phase in (Phase.LOADING, Phase.UNLOADING):
        raise busy(view)
    if view.phase is Phase.LOADED and view.model_id == model_id:
        raise Refusal("MODEL_ALREADY_LOADED", f"model {view.model_name!r} is already loaded")


def may_unload(view: View, model_id: int) -> None:
    """Whether the management surface may unload `model_id` now. It does not read the lock.

    Raises:
        Refusal: MODEL_BUSY while a load or an unload runs, MODEL_NOT_LOADED.
    """
    if view.phase in (Phase.LOADING, Phase.UNLOADING):
        raise busy(view)
    if view.model_id != model_id:
        raise Refusal("MODEL_NOT_LOADED", "the model is not loaded", **_resident(view))


def may_lock(view: View, model_id: int) -> None:
    """A loaded model may be locked; only one is resident, so at most one is locked.

    Raises:
        Refusal: MODEL_LOCKED when another model is locked, MODEL_NOT_LOADED.
    """
    if view.model_id == model_id and view.phase is Phase.LOADED:
        return
    if view.is_locked and view.model_id != model_id:
        raise Refusal(
            "MODEL_LOCKED", f"model {view.model_name!r} is locked already", **_resident(view)
        )
    raise Refusal("MODEL_NOT_LOADED", "only a loaded model can be locked", **_resident(view))


def busy(view: View) -> Refusal:
    """The refusal while a load or an unload runs."""
    unloading = view.phase is Phase.UNLOADING
    what = "unloaded" if unloading else "loaded"
    return Refusal(
        "MODEL_BUSY",
        f"model {view.model_name!r} is being {what}; try again shortly",
        unloading=unloading,
        **_resident(view),
    )


def _resident(view: View) -> dict[str, Any]:
    return {"resident_model_id": view.model_id, "resident_model_name": view.model_name}
