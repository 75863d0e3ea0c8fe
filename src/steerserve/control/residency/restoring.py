"""Keeps the state that an engine lost when it ended by itself, until its model is loaded again. Each owner of state in
the engine keeps its own part (`engine_state.py`). This file keeps the lock, and puts all parts back.

A crash never makes a steered model serve without its steering: the model serves once every owner has put its part back,
or its load fails. Until then the lock holds, and no request loads another model in its place. An operator can give up
parts of the lost state: an SAE by detaching or deleting it, steering values by clearing the steering or ending their
profile, the lock by unlocking the model, and everything by loading another model or deleting this model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from steerserve.control.residency.engine_state import EngineState, Loss, Losses, Return
from steerserve.control.residency.occupant import Occupant
from steerserve.control.residency.resident import Switch
from steerserve.messages.engine import Engine
from steerserve.rules.residency.lock import Lock

log = structlog.get_logger(__name__)


class Restoring:
    """Owner of the states that crashes took, by model. They are kept in memory only, so a restart of the service
    forgets them."""

    def __init__(self) -> None:
        self._states: list[tuple[EngineState[Any], Losses[Any]]] = []
        # the locks of models that wait to be loaded again
        self._locked: dict[int, Lock] = {}

    def register(self, state: EngineState[Loss]) -> Losses[Loss]:
        """Register an owner whose state is put back after a crash. States are put back in the order of their
        registration."""
        losses: Losses[Loss] = Losses()
        self._states.append((state, losses))
        return losses

    def remember(self, occupant: Occupant) -> None:
        """Note the states and the lock of a model at the moment when its engine ended by itself."""
        model_id = occupant.row.id
        for state, losses in self._states:
            loss = state.lost(occupant)
            if loss is not None:
                losses.replace(model_id, loss)
        lock = occupant.lock_state
        if lock is not None:
            self._locked[model_id] = replace(lock, is_waiting=True)

    def lock(self) -> Lock | None:
        """The lock of a model that waits to be loaded again."""
        return next(iter(self._locked.values()), None)

    def unlock(self, model_id: int) -> None:
        """Forget the lock of the model, so that it comes back unlocked."""
        self._locked.pop(model_id, None)

    def keep_only(self, model_id: int) -> None:
        """Forget what every other model lost. Called when an operator loads this model."""
        known = {other for _, losses in self._states for other, _ in losses.items()}
        for other in (known | self._locked.keys()) - {model_id}:
            self.forget_model(other)

    def forget_model(self, model_id: int) -> None:
        """Forget everything that the model lost. Called when the model, or the last SAE that it lost, was deleted."""
        for _, losses in self._states:
            losses.forget(model_id)
        self._locked.pop(model_id, None)

    @asynccontextmanager
    async def putting_back(self, occupant: Occupant, engine: Engine) -> AsyncIterator[Switch]:
        """Give the new engine of a model the states that its owners have, and those that its last engine lost. The
        switch lets the model serve with these states, and forgets the losses.

        Raises:
            Refusal: what an owner refuses. The losses are kept for the next load.
        """
        model_id = occupant.row.id
        back = Return(model_id, engine)
        async with AsyncExitStack() as held:
            switches = [
                await held.enter_async_context(
                    state.put_back(back, partial(losses.loss_of, model_id))
                )
                for state, losses in self._states
            ]
            was_lost = any(model_id in losses for _, losses in self._states)

            def switch() -> None:
                lock = self._locked.get(model_id)
                # values can be set from here on, but no request is served before the load is reported as over
                occupant.serve(back.attached, lock.by if lock is not None else None)
                for step in switches:
                    step()
                self.forget_model(model_id)
                if was_lost or lock is not None:
                    log.info("restored", model=occupant.row.name, saes=len(back.attached))

            yield switch

    @asynccontextmanager
    async def parting(self, gone: Sequence[str]) -> AsyncIterator[Switch]:
        """Tell every owner that the SAEs of these keys are detached or, without keys, that SAEs are attached. The
        switch changes the states of all owners in one step."""
        async with AsyncExitStack() as held:
            switches = [
                await held.enter_async_context(state.part(gone)) for state, _ in self._states
            ]

            def switch() -> None:
                for step in switches:
                    step()

            yield switch
