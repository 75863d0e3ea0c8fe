"""The models and SAEs that batches need: whether they are there, and when a batch may bring them back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import structlog

from steerserve.control.bus import Bus
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.events import LoadComplete, ModelLeaving, SaeAttached
from steerserve.control.residency.resident import Attachment
from steerserve.database.catalog import Catalog
from steerserve.errors import Refusal
from steerserve.messages import Overrides
from steerserve.nouns.attachments.owner import Attachments
from steerserve.rules.events import Event
from steerserve.rules.inference.batches import AttachedSae
from steerserve.rules.residency.swap import Phase
from steerserve.rules.steering.live import key_of

log = structlog.get_logger(__name__)
PAUSE_SECONDS = 1.0
"""Seconds until a batch that waits looks again, where no event wakes it before."""
AS_STORED = "stored"


class BatchModels:
    """Says when lines for a model may run.

    A batch loads its model only into an empty slot, and not after somebody unloaded or replaced this model. It attaches
    SAEs only where they were not attached since the start of the service. So a batch goes on after a crash and after a
    restart, and undoes nothing that a person did.
    """

    def __init__(
        self, conductor: Conductor, catalog: Catalog, attachments: Attachments, bus: Bus
    ) -> None:
        self._conductor = conductor
        self._catalog = catalog
        self._attachments = attachments
        self._sent_off: set[int] = set()
        self._seen: set[str] = set()
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._told: tuple[str, int] | None = None
        bus.subscribe(self._took)

    def attached(self) -> tuple[AttachedSae, ...]:
        """The SAEs that are attached now."""
        return tuple(
            AttachedSae(
                one.sae_id,
                one.layer,
                one.order.dtype,
                one.order.is_checked and one.order.source.overrides == Overrides(),
            )
            for one in self._conductor.attachments()
        )

    async def until_ready(self, model_id: int, saes: Sequence[AttachedSae]) -> None:
        """Return once the model serves with these SAEs."""
        while not await self._is_ready(model_id, saes):
            await self.pause()

    def attachments(self, saes: Sequence[AttachedSae]) -> list[Attachment] | None:
        """The attachments of these SAEs; None where one of them is not attached now."""
        resident = self._conductor.resident
        present = {} if resident is None else resident.attachments
        if any(_key(one) not in present for one in saes):
            return None
        return [present[_key(one)] for one in saes]

    async def pause(self) -> None:
        """Wait until something about the model has changed, at most PAUSE_SECONDS."""
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await changed.wait()

    # ------------------------------------------------------------- inside

    def _took(self, event: Event) -> None:
        match event:
            case ModelLeaving():
                self._sent_off.add(event.model_id)
            case LoadComplete():
                self._sent_off.discard(event.model_id)
            case SaeAttached():
                self._seen.add(key_of(event.sae_id, event.layer))
            case _:
                return
        # those who wait have this event, and later ones wait for the next
        self._changed.set()
        self._changed = asyncio.Event()

    async def _is_ready(self, model_id: int, saes: Sequence[AttachedSae]) -> bool:
        resident = self._conductor.resident
        if resident is None:
            if model_id not in self._sent_off:
                await self._load(model_id)
            return False
        if resident.row.id != model_id or resident.phase is not Phase.LOADED:
            return False
        missing = [one for one in saes if _key(one) not in resident.attachments]
        if missing and all(one.is_plain and _key(one) not in self._seen for one in missing):
            await self._attach(missing)
        return not missing

    async def _load(self, model_id: int) -> None:
        async with self._turn:
            if self._conductor.resident is not None:
                return
            try:
                async with self._conductor.use(await self._catalog.model(model_id)):
                    self._told = None
            except Refusal as refusal:
                self._tell(model_id, refusal)

    async def _attach(self, saes: Sequence[AttachedSae]) -> None:
        async with self._turn:
            try:
                for one in saes:
                    member = (one.sae_id, one.layer)
                    await self._attachments.attach_set([member], one.dtype or AS_STORED)
            except Refusal as refusal:
                self._tell(saes[0].layer, refusal)

    def _tell(self, about: int, refusal: Refusal) -> None:
        """Log why batches wait, once for each reason."""
        if self._told != (refusal.code, about):
            self._told = (refusal.code, about)
            log.warning("batches_wait", code=refusal.code, reason=refusal.message)


def _key(sae: AttachedSae) -> str:
    return key_of(sae.sae_id, sae.layer)
