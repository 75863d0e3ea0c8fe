"""What an engine that ended by itself took along: its SAEs, their steering and its lock, put back when its model is loaded
again. Until then the lock holds: no request loads another model in its place.

A model that was steered is never served unsteered because of a crash: it serves once everything is back, or its load
fails. An operator takes an SAE out of it by detaching or deleting that SAE, values by clearing the steering or ending the
profile that they are of, and all of it by loading another model or deleting this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from steerserve.control.residency.resident import Attachment, Order, Resident, Switch
from steerserve.engine.wire.engine import Engine
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.rules.steering import Live
from steerserve.store.catalog import Catalog

log = structlog.get_logger(__name__)


async def hook(engine: Engine, order: Order) -> Attachment:
    """Have the engine read an SAE and hook it; its path is resolved and checked again.

    Raises:
        Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE, INSUFFICIENT_MEMORY.
    """
    await asyncio.to_thread(local.resolve_either, order.source.path)
    made = await engine.attach(order.key, order.source, order.layer, order.dtype, order.is_checked)
    return Attachment.of(order, made)


class Steers(Protocol):
    """The owner of the live values."""

    def snapshot(self) -> Live: ...
    async def restore(
        self, engine: Engine, keys: Collection[str], read: Callable[[], Live], switch: Switch
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Lost:
    """What the model `name` had when its engine ended."""

    name: str
    attachments: tuple[Attachment, ...]
    steering: Live
    is_locked: bool


class Restoring:
    """Owner of what crashes took, by model. It is kept in memory only: a restart of the service begins with nothing."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lost: dict[int, Lost] = {}
        self.steering: Steers | None = None

    def pending(self) -> list[Attachment]:
        """What will be attached again."""
        return [attachment for lost in self._lost.values() for attachment in lost.attachments]

    def remember(self, resident: Resident) -> None:
        """Note what the resident has, at the moment its engine ended."""
        attachments = tuple(resident.attachments.values())
        if (attachments or resident.is_locked) and self.steering is not None:
            row, live = resident.row, self.steering.snapshot()
            self._lost[row.id] = Lost(row.name, attachments, live, resident.is_locked)

    def locked(self) -> tuple[int, str] | None:
        """Id and name of a model that is locked and waits to be loaded again."""
        for model_id, lost in self._lost.items():
            if lost.is_locked:
                return model_id, lost.name
        return None

    def keep_only(self, model_id: int) -> None:
        """An operator loads this model: what the others had is forgotten."""
        self._lost = {model: lost for model, lost in self._lost.items() if model == model_id}

    def forget(self, sae_id: str) -> bool:
        """Leave an SAE out of what is put back; whether it was in it."""
        before = self.pending()
        for model, lost in list(self._lost.items()):
            rest = tuple(a for a in lost.attachments if a.sae_id != sae_id)
            if rest:
                self._lost[model] = replace(lost, attachments=rest)
            elif lost.attachments:
                del self._lost[model]
        return len(self.pending()) < len(before)

    def forget_model(self, model_id: int) -> None:
        """The model was deleted; its id may be given to another one."""
        self._lost.pop(model_id, None)

    def unlock(self, model_id: int) -> None:
        """The model comes back unlocked."""
        if model_id in self._lost:
            unlocked = replace(self._lost.pop(model_id), is_locked=False)
            if unlocked.attachments:
                self._lost[model_id] = unlocked

    def edit(self, step: Callable[[Live], Live]) -> bool:
        """Take a step on the values that wait for their model; whether it changed any."""
        after = {
            model: replace(lost, steering=step(lost.steering)) for model, lost in self._lost.items()
        }
        is_change = any(after[m].steering is not lost.steering for m, lost in self._lost.items())
        self._lost = after
        return is_change

    async def attach(self, resident: Resident, engine: Engine) -> list[Attachment]:
        """Give the new engine the SAEs that its model had; what is attached then.

        Raises:
            Refusal: MODEL_LOAD_FAILED naming the SAE that cannot be attached again.
        """
        lost = self._lost.get(resident.row.id)
        wanted = await self._registered(lost.attachments) if lost else []
        return [await _again(engine, attachment) for attachment in wanted]

    async def steer(
        self,
        resident: Resident,
        engine: Engine,
        attached: Sequence[Attachment],
        switch: Callable[[bool], None],
    ) -> None:
        """Give the new engine the values that these SAEs had, then `switch`, which is told whether the model was locked,
        and forget what was lost, in one step.

        Raises:
            Refusal: what the engine or `switch` refuses; then all of it still waits.
        """
        model_id = resident.row.id
        lost = self._lost.get(model_id)
        if lost is None or self.steering is None:
            switch(False)
            return

        def put_back() -> None:
            gone = self._lost[model_id]
            # with the last SAE that was deleted meanwhile its lock went too
            switch(gone.is_locked and bool(attached or not gone.attachments))
            del self._lost[model_id]

        if attached:
            keys = [attachment.key for attachment in attached]
            # read when it is its turn: an edit may come before it
            await self.steering.restore(
                engine, keys, lambda: self._lost[model_id].steering, put_back
            )
        else:
            put_back()
        log.info("restored", model=resident.row.name, saes=len(attached))

    # ------------------------------------------------------------- inside

    async def _registered(self, attachments: Sequence[Attachment]) -> list[Attachment]:
        """Those whose SAE was not deleted meanwhile: who deletes one does not want it back."""
        known = {row.id for row in await self._catalog.saes()}
        return [attachment for attachment in attachments if attachment.sae_id in known]


async def _again(engine: Engine, before: Attachment) -> Attachment:
    """Raises:
    Refusal: MODEL_LOAD_FAILED.
    """
    try:
        made = await hook(engine, before.order)
        if made.d_sae != before.d_sae:
            raise Refusal(
                "SAE_INCOMPATIBLE",
                f"its files hold another SAE by now, of {made.d_sae} features; it had {before.d_sae}",
            )
    except Refusal as refusal:
        raise Refusal(
            "MODEL_LOAD_FAILED",
            f"the model had SAE {before.sae_id} at layer {before.layer} when its engine ended, and it cannot be "
            f"attached again ({refusal.message}); detach the SAE to load the model without it",
            cause=refusal.code,
            sae_id=before.sae_id,
            layer=before.layer,
        ) from refusal
    return made
