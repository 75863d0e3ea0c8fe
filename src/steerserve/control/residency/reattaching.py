"""The SAEs of a model whose engine ended by itself are attached again to its next engine, before the model serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from steerserve.control.residency.engine_state import EngineState, Return, unchanged
from steerserve.control.residency.resident import Attachment, Order, Resident, Switch
from steerserve.control.residency.restoring import Restoring
from steerserve.database.catalog import Catalog
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.messages.engine import Engine

Lost = tuple[Attachment, ...]


class Reattaching(EngineState[Lost]):
    """Owner of the attachments that crashes took."""

    def __init__(self, catalog: Catalog, restoring: Restoring) -> None:
        self._catalog = catalog
        self._restoring = restoring
        self._losses = restoring.register(self)

    def pending(self) -> list[Attachment]:
        """The SAEs that will be attached again."""
        return [attachment for _, lost in self._losses.items() for attachment in lost]

    def forget(self, sae_id: str) -> bool:
        """Take an SAE out of the losses, and return whether it was in them. If it was the last SAE of a model, this
        model comes back unlocked and without any of its lost state."""
        was_lost = False
        for model_id, lost in self._losses.items():
            rest = tuple(a for a in lost if a.sae_id != sae_id)
            if rest == lost:
                continue
            was_lost = True
            if rest:
                self._losses.replace(model_id, rest)
            else:
                self._restoring.forget_model(model_id)
        return was_lost

    def lost(self, resident: Resident) -> Lost | None:
        return tuple(resident.attachments.values()) or None

    @asynccontextmanager
    async def put_back(
        self, back: Return, loss: Callable[[], Lost | None]
    ) -> AsyncIterator[Switch]:
        """Attach the lost SAEs again, except those that were deleted meanwhile. If all were deleted, the model comes
        back unlocked.

        Raises:
            Refusal: MODEL_LOAD_FAILED naming the SAE that cannot be attached again.
        """
        if loss() is None:
            yield unchanged
            return
        registered = {row.id for row in await self._catalog.saes()}
        wanted = [attachment for attachment in loss() or () if attachment.sae_id in registered]
        if not wanted:
            self._restoring.unlock(back.model_id)
        for attachment in wanted:
            back.attached.append(await _again(back.engine, attachment))
        yield unchanged


async def hook(engine: Engine, order: Order) -> Attachment:
    """Let the engine read an SAE and hook it. The path of the SAE is resolved and checked again. Files that a node
    lacks are brought before, because an SAE that one replica cannot attach would end this replica.

    Raises:
        Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE, INSUFFICIENT_MEMORY; why a node cannot fetch
            the files.
    """
    await asyncio.to_thread(local.resolve_either, order.source.path)
    await engine.bring(order.source.path)
    facts = await engine.change(lambda state: state.attached(order.placed))
    return Attachment.from_order(order, facts[order.key])


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
