"""What an engine that ended by itself took along: its SAEs and their steering, put back when its model is loaded again.

A model that was steered is never served unsteered because of a crash: it serves once everything is back, or its load
fails. An operator takes an SAE out of it by detaching or deleting that SAE, and all of it by loading another model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from steerserve.control.engines import Engine
from steerserve.control.resident import Attachment, Resident
from steerserve.engine import messages as m
from steerserve.errors import Refusal
from steerserve.hub import local
from steerserve.rules.steering import Live
from steerserve.store.catalog import Catalog

log = structlog.get_logger(__name__)


async def hook(
    engine: Engine,
    key: str,
    source: m.SaeSource,
    layer: int,
    dtype: str | None,
    is_checked: bool,
) -> m.Attached:
    """Have the engine read an SAE and hook it; its path is resolved and checked again.

    Raises:
        Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE, INSUFFICIENT_MEMORY.
    """
    await asyncio.to_thread(local.resolve_either, source.path)
    return await engine.attach(key, source, layer, dtype, is_checked)


class Steers(Protocol):
    """The owner of the live values."""

    def snapshot(self) -> Live: ...
    async def restore(self, live: Live) -> None: ...


@dataclass(frozen=True, slots=True)
class Lost:
    """What one model had when its engine ended."""

    attachments: tuple[Attachment, ...]
    steering: Live
    is_locked: bool


class Restoring:
    """Owner of what crashes took, by model. It is kept in memory only: a restart of the service begins with nothing."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lost: dict[int, Lost] = {}
        self.steering: Steers | None = None

    def pending(self) -> list[tuple[int, Attachment]]:
        """What will be attached again, with the id of its model."""
        return [(model, a) for model, lost in self._lost.items() for a in lost.attachments]

    def remember(self, resident: Resident) -> None:
        """Note what the resident has, at the moment its engine ended."""
        attachments = tuple(resident.attachments.values())
        if attachments and self.steering is not None:
            live = self.steering.snapshot()
            self._lost[resident.row.id] = Lost(attachments, live, resident.is_locked)

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
            else:
                del self._lost[model]
        return len(self.pending()) < len(before)

    async def attach(self, resident: Resident, engine: Engine) -> list[Attachment]:
        """Give the new engine the SAEs that its model had; what is attached then.

        Raises:
            Refusal: MODEL_LOAD_FAILED naming the SAE that cannot be attached again.
        """
        lost = self._lost.get(resident.row.id)
        wanted = await self._registered(lost.attachments) if lost else []
        return [await self._attach(engine, attachment) for attachment in wanted]

    async def steer(self, resident: Resident) -> None:
        """Put the values back that the attached SAEs had, and forget what was lost.

        Raises:
            Refusal: what the engine refuses.
        """
        lost = self._lost.get(resident.row.id)
        if lost is None:
            return
        resident.is_locked = lost.is_locked and bool(resident.attachments)
        if resident.attachments and self.steering is not None:
            await self.steering.restore(lost.steering)
        self._lost.pop(resident.row.id, None)
        log.info("restored", model=resident.row.name, saes=len(resident.attachments))

    # ------------------------------------------------------------- inside

    async def _registered(self, attachments: Sequence[Attachment]) -> list[Attachment]:
        """Those whose SAE was not deleted meanwhile: who deletes one does not want it back."""
        known = {row.id for row in await self._catalog.saes()}
        return [attachment for attachment in attachments if attachment.sae_id in known]

    async def _attach(self, engine: Engine, before: Attachment) -> Attachment:
        try:
            made = await hook(
                engine,
                before.key,
                before.source,
                before.layer,
                before.asked_dtype,
                before.is_checked,
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
        return replace(
            before,
            memory_mb=made.memory_mb,
            dtype=made.dtype,
            layer_module_path=made.layer_module_path,
        )
