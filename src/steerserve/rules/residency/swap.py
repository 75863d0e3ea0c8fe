"""The one resident slot: whether a request, a load or an unload may go on, given the model that is resident now.

All functions are pure questions about a `View`. The conductor asks them and acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.residency import lease as leases
from steerserve.rules.residency.lease import Lease
from steerserve.rules.residency.lock import Lock


class Phase(StrEnum):
    """The phase of the resident slot."""

    EMPTY = "empty"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


class Step(StrEnum):
    """The next step of a `/v1` request: it is served, it waits for the running load, or it begins a load."""

    SERVE = "serve"
    JOIN = "join"
    LOAD = "load"


class UnloadStep(StrEnum):
    """What an unload does: it unloads a model that serves, or it ends a load that is under way."""

    UNLOAD = "unload"
    END_LOAD = "end_load"


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """The end of an engine by itself, after which the slot is empty. `reason` is a clause."""

    model_id: int
    model_name: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"the engine of model {self.model_name!r} ended by itself ({self.reason})"


@dataclass(frozen=True, slots=True)
class View:
    """The resident slot as the rules see it. `model_id` is None exactly while the phase is EMPTY.

    `next_id` is the model that will be loaded once the resident model is unloaded; None also while that load is being
    ended. `lease` is the live lease, always a
    lease of the resident model; `is_holder` says whether the request carries the id of the lease. `lock` is the lock of
    the resident model, or of a model whose engine ended by itself and that waits to be loaded again. `engine_end` says
    why the slot is empty, where an engine has ended by itself and nobody has begun a load since.
    """

    phase: Phase = Phase.EMPTY
    model_id: int | None = None
    model_name: str | None = None
    lock: Lock | None = None
    next_id: int | None = None
    lease: Lease | None = None
    is_holder: bool = False
    engine_end: EngineEnd | None = None

    @property
    def locked_id(self) -> int | None:
        """The id of the locked model."""
        return self.lock.model_id if self.lock is not None else None


def may_serve(view: View, model_id: int, name: str, *, may_load: bool = True) -> Step:
    """How a `/v1` request for the model `model_id`, called `name`, goes on.

    (1) The resident model serves. (2) A request for the model being loaded waits for it. (3) A load or an unload
    in progress refuses everyone else. (4) A resident model that another holder leases is not replaced, locked or not.
    (5) A locked resident model is not replaced, not even by the holder of its lease, and no other model takes its place
    after its engine ended. (6) Otherwise the resident model, if there is one, is unloaded, and the model is loaded.
    (7) A request that may not load is refused wherever it would wait for a load, begin a load, or be refused because of
    another model. Only the refusal during an unload (3) comes before this refusal.

    Raises:
        Refusal: MODEL_BUSY (3), MODEL_LEASED (4), MODEL_LOCKED (5), MODEL_LOADING or MODEL_NOT_RESIDENT (7).
    """
    if view.phase is Phase.LOADED and view.model_id == model_id:
        return Step.SERVE  # (1)
    is_leaving = view.phase is Phase.UNLOADING and view.next_id != model_id
    if not may_load and not is_leaving:
        raise _not_resident(view, model_id, name)  # (7)
    if view.phase is Phase.LOADING and view.model_id == model_id:
        return Step.JOIN  # (2)
    _check_settled(view)  # (3)
    _check_lease(view, "swap", model_id)  # (4)
    if view.lock is not None and view.lock.model_id != model_id:
        raise view.lock.refusal(
            f"model {view.lock.model_name!r} is locked against replacement", **_resident(view)
        )  # (5)
    return Step.LOAD  # (6)


def _not_resident(view: View, model_id: int, name: str) -> Refusal:
    """The refusal of a request that may not load. It names the holder of a lease of the resident model."""
    is_coming = view.phase is Phase.LOADING and view.model_id == model_id
    if is_coming or view.next_id == model_id:
        return Refusal("MODEL_LOADING", f"model {name!r} is being loaded; try again shortly")
    resident = (view.model_name if view.phase is Phase.LOADED else None) or "none"
    held = "" if view.lease is None else f", leased by {view.lease.holder!r}"
    lease_details = {} if view.lease is None else {"lease": leases.summary(view.lease)}
    return Refusal(
        "MODEL_NOT_RESIDENT",
        f"model {name!r} is not resident, and the load policy is refuse; resident: {resident}{held}{_because(view)}",
        param="model",
        requested_model=name,
        resident_model=resident,
        **lease_details,
    )


def may_load(view: View, model_id: int) -> None:
    """Whether the management surface may load `model_id` now. The lock does not matter here.

    Raises:
        Refusal: MODEL_BUSY while a load or an unload runs, MODEL_ALREADY_LOADED, MODEL_LEASED by another holder.
    """
    _check_settled(view)
    if view.phase is Phase.LOADED and view.model_id == model_id:
        raise Refusal("MODEL_ALREADY_LOADED", f"model {view.model_name!r} is already loaded")
    _check_lease(view, "load", model_id)


def may_unload(view: View, model_id: int) -> UnloadStep:
    """Whether the management surface may unload `model_id` now, and how. The lock does not matter here.

    Raises:
        Refusal: MODEL_BUSY while another model is loaded or any model is unloaded, MODEL_NOT_LOADED, MODEL_LEASED by
            another holder.
    """
    if is_loading(view, model_id):
        return UnloadStep.END_LOAD
    _check_settled(view)
    if view.model_id != model_id:
        raise not_resident(view)
    _check_lease(view, "unload", model_id)
    return UnloadStep.UNLOAD


def not_resident(view: View) -> Refusal:
    """The refusal of what a model must be loaded for, where another one or none is."""
    return Refusal(
        "MODEL_NOT_LOADED", f"the model is not loaded{_because(view)}", **_resident(view)
    )


def is_loading(view: View, model_id: int) -> bool:
    """Whether a load of `model_id` is under way, also one that waits until another model is unloaded. A load can be
    ended at any moment, whoever began it."""
    if view.next_id == model_id:
        return True
    return view.phase is Phase.LOADING and view.model_id == model_id


def may_change_replicas(view: View, model_id: int) -> None:
    """Whether replicas of `model_id` may be added, drained or replaced now. The model goes on serving meanwhile, so
    neither its lease nor its lock matters.

    Raises:
        Refusal: MODEL_BUSY while a load or an unload runs, MODEL_NOT_LOADED.
    """
    _check_settled(view)
    if view.model_id != model_id:
        raise not_resident(view)


def may_lease(view: View, model_id: int, name: str) -> None:
    """Whether the model `model_id`, called `name`, can be leased now. `lease.grant` checks that no lease is live.

    Raises:
        Refusal: MODEL_BUSY while a load or an unload runs, MODEL_NOT_RESIDENT.
    """
    _check_settled(view)
    if view.model_id != model_id:
        resident = (view.model_name if view.phase is Phase.LOADED else None) or "none"
        raise Refusal(
            "MODEL_NOT_RESIDENT",
            f"model {name!r} is not resident, so it cannot be leased; resident: {resident}",
            requested_model=name,
            resident_model=resident,
            **_resident(view),
        )


def may_lock(view: View, model_id: int) -> None:
    """Whether `model_id` may be locked. Only a loaded model may be, and only one model is locked at a time.

    Raises:
        Refusal: MODEL_BUSY while the model is unloaded, MODEL_LOCKED when another model is locked, MODEL_NOT_LOADED.
    """
    if view.model_id == model_id and view.phase is Phase.LOADED:
        return
    if view.model_id == model_id and view.phase is Phase.UNLOADING:
        raise busy(view)
    if view.lock is not None and view.lock.model_id != model_id:
        raise view.lock.refusal(
            f"model {view.lock.model_name!r} is locked already,", **_resident(view)
        )
    raise Refusal(
        "MODEL_NOT_LOADED", f"only a loaded model can be locked{_because(view)}", **_resident(view)
    )


def not_loaded(view: View) -> Refusal:
    """The refusal of what needs any loaded model."""
    return Refusal("MODEL_NOT_LOADED", f"no model is loaded{_because(view)}")


def no_sae(view: View) -> Refusal:
    """The refusal of what needs any attached SAE."""
    return Refusal("SAE_NOT_ATTACHED", f"no SAE is attached{_because(view)}")


def _because(view: View) -> str:
    """The end of a refusal while the slot is empty because an engine ended."""
    if view.engine_end is None:
        return ""
    return f"; {view.engine_end.sentence}, and the next request for the model loads it again"


def _check_lease(view: View, operation: str, model_id: int) -> None:
    """Refuse the operation if another holder has the live lease.

    Raises:
        Refusal: MODEL_LEASED.
    """
    if view.lease is not None and not view.is_holder:
        raise leases.leased(view.lease, operation, model_id)


def _check_settled(view: View) -> None:
    """Raises:
    Refusal: MODEL_BUSY while a load or an unload runs.
    """
    if view.phase in (Phase.LOADING, Phase.UNLOADING):
        raise busy(view)


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
