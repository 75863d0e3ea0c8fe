"""Attaching SAEs to the resident model and detaching them; the model is locked while any is attached.

The list of attached SAEs changes in one step, after the engine has attached and detached them. An edit that fails
changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from steerserve import messages as m
from steerserve.control.bus import Bus
from steerserve.control.client_paths import client_paths
from steerserve.control.models.contents import ModelContents
from steerserve.control.residency import free_memory
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.events import SaeAttached, SaeDetached
from steerserve.control.residency.free_memory import Read, ReadNodes
from steerserve.control.residency.reattaching import hook
from steerserve.control.residency.resident import Attachment, Order, Resident
from steerserve.control.saes import attachable
from steerserve.control.saes.attachable import AttachRequest
from steerserve.control.saes.records import origin_of, source_of
from steerserve.database.catalog import Catalog, SaeRow
from steerserve.errors import Refusal
from steerserve.messages.carried import carry_edit
from steerserve.rules.saes import attachment as rules
from steerserve.rules.saes import sets as sae_set
from steerserve.rules.saes.sets import Offender, Size
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True)
class Member:
    """One SAE of a set that was attached. `was_there` says that it was attached before the request."""

    attachment: Attachment
    was_there: bool


class Attachments:
    """Edits the attachments of the resident model, one edit at a time."""

    def __init__(
        self,
        conductor: Conductor,
        bus: Bus,
        catalog: Catalog,
        settings: Settings,
        contents: ModelContents,
        read_nodes: ReadNodes,
        read_free: Read = free_memory.read,
    ) -> None:
        self._conductor = conductor
        self._bus = bus
        self._catalog = catalog
        self._settings = settings
        self._contents = contents
        self._read_nodes = read_nodes
        self._read_free = read_free

    def compatibility(self, sae: SaeRow, layer: int) -> rules.Verdict:
        """Whether the SAE can be attached to the loaded model at the layer. Nothing is attached.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
        return attachable.verdict(self._conductor.loaded(), AttachRequest(sae, layer, None))

    async def attach(
        self,
        sae: SaeRow,
        layer: int,
        *,
        dtype: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        is_checked: bool = True,
    ) -> Attachment:
        """Attach an SAE in the place of all attached SAEs, once the requests in flight have ended. If the new SAE
        fails, the others stay attached. `overrides` are fields of `messages.Overrides`.

        Raises:
            Refusal: SAE_NOT_FOUND, MODEL_NOT_LOADED, SAE_ALREADY_ATTACHED, SAE_INCOMPATIBLE, SAE_LOAD_FAILED,
                INVALID_LOCAL_PATH, INSUFFICIENT_MEMORY.
        """
        changed = m.Overrides(**overrides or {})
        asked = AttachRequest(sae, layer, dtype, changed, is_checked)
        await self._prepare([asked])

        async def edit() -> Attachment:
            # the SAE may have been deleted or attached while this edit waited for the one before it
            row = await self._catalog.sae(sae.id)
            resident = self._conductor.loaded()
            wanted = replace(asked, sae=row)
            if wanted.key in resident.attachments:
                raise Refusal(
                    "SAE_ALREADY_ATTACHED",
                    f"the SAE is already attached at layer {layer}",
                    sae_id=row.id,
                    layer=layer,
                )
            await attachable.check_ready(self._catalog, row)
            verdict = attachable.verdict(resident, wanted)
            rules.refuse_incompatible(
                verdict, attachable.claim(wanted), resident.running()[1].hidden_size
            )
            if resident.held().fleet is not None:
                # an SAE that only some replicas can hold would end the others
                await self._check_memory(resident, [wanted])
            before = list(resident.attachments.values())
            async with self._undoing(resident) as made:
                attached = await self._hook(resident, wanted, verdict)
                made.append(_replacing(attached, before))
                await self._conductor.exchange(resident, before, made)
            await self._note(resident, before, made)
            return made[0]

        return await carry_edit(self._conductor.editing, edit)

    async def attach_set(
        self, members: Sequence[tuple[str, int]], dtype: str | None = None
    ) -> list[Member]:
        """Attach SAEs (id, layer) beside the attached SAEs: all of them or none. A member that is attached already
        stays as it is. Without `dtype` the matrices are kept in MULTISAE_ATTACH_DTYPE.

        Raises:
            Refusal: SAE_SET_INCOMPLETE, MODEL_NOT_LOADED, SAE_INCOMPATIBLE, INSUFFICIENT_MEMORY, SAE_LOAD_FAILED,
                INVALID_LOCAL_PATH. The refusal of one member names this member.
        """
        rows = await attachable.complete(self._catalog, members)
        coming = [AttachRequest(rows[sae_id], layer, dtype) for sae_id, layer in members]
        await self._prepare(coming)

        async def edit() -> list[Member]:
            rows = await attachable.complete(self._catalog, members)
            resident = self._conductor.loaded()
            kept_in = dtype or self._settings.multisae_attach_dtype
            asked = [AttachRequest(rows[sae_id], layer, kept_in) for sae_id, layer in members]
            missing = {w.key: w for w in asked if w.key not in resident.attachments}
            verdicts = {
                key: attachable.verdict(resident, wanted) for key, wanted in missing.items()
            }
            sae_set.check_members(
                [
                    Offender(wanted.sae.id, wanted.layer, "; ".join(verdicts[key].errors))
                    for key, wanted in missing.items()
                    if not verdicts[key].is_compatible
                ],
                "SAE_INCOMPATIBLE",
            )
            await self._check_memory(resident, list(missing.values()))
            async with self._undoing(resident) as made:
                for key, wanted in missing.items():
                    with attachable.naming(wanted):
                        made.append(await self._hook(resident, wanted, verdicts[key]))
                if made:
                    await self._conductor.exchange(resident, [], made)
            await self._note(resident, [], made)
            attachments = [resident.attachments[wanted.key] for wanted in asked]
            # if the set names an SAE twice, the second member counts as attached before
            return [
                Member(a, was_there=a.key not in missing or a in attachments[:number])
                for number, a in enumerate(attachments)
            ]

        return await carry_edit(self._conductor.editing, edit)

    async def detach(self, sae_id: str) -> int:
        """Detach an SAE at every layer, once the requests in flight have ended. An SAE that a crash took is not
        attached again. Returns the MiB that come back.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """

        async def edit() -> int:
            resident = self._conductor.resident
            detached = [a for a in self._conductor.attachments() if a.sae_id == sae_id]
            if resident is not None and detached:
                await self._conductor.exchange(resident, detached, [])
                await self._note(resident, detached, [])
            was_lost = self._conductor.reattaching.forget(sae_id)
            if not detached and not was_lost:
                raise Refusal("SAE_NOT_ATTACHED", f"SAE {sae_id!r} is not attached", sae_id=sae_id)
            return sum(attached.memory_mb for attached in detached)

        return await carry_edit(self._conductor.editing, edit)

    async def _prepare(self, asked: Sequence[AttachRequest]) -> None:
        """What may take minutes before an attach, so no other edit waits for it: nodes fetch the files of the SAEs, and
        the content digest of the model is computed, which answers tell once the model is steered.

        Raises:
            Refusal: why a node cannot have the files.
        """
        resident = self._conductor.resident
        if resident is not None:
            await attachable.bring(resident, asked)
            await self._contents.until_known(resident.row)

    # ------------------------------------------------------------- memory

    async def _check_memory(self, resident: Resident, wanted: Sequence[AttachRequest]) -> None:
        """Raises:
        Refusal: INSUFFICIENT_MEMORY.
        """
        engine, facts = resident.running()
        sizes = [
            Size(
                w.sae.d_in or 0,
                w.sae.d_sae or 0,
                sae_set.kept_in(w.dtype, facts.dtype) or w.sae.dtype,
            )
            for w in wanted
        ]
        if not sizes:
            return
        if engine.fleet is not None:
            rooms = await free_memory.on_nodes(resident, self._read_nodes)
            reserves = await free_memory.reserves(resident)
            sae_set.check_nodes(sizes, rooms, facts.kv_tokens, reserves)
        elif (free_mb := await self._read_free(resident)) is not None:
            reserves = await free_memory.reserves(resident)
            sae_set.check_memory(sizes, free_mb, facts.device, facts.kv_tokens, reserves)

    # ------------------------------------------------------------- the engine's part

    async def _hook(
        self, resident: Resident, wanted: AttachRequest, verdict: rules.Verdict
    ) -> Attachment:
        engine, facts = resident.running()
        outside = None
        if wanted.sae.repository_id is None:
            paths = client_paths(self._settings)
            outside = paths.warning(wanted.sae.local_path or "")
        order = Order(
            resident.row.id,
            wanted.sae.id,
            wanted.layer,
            source_of(wanted.sae, wanted.overrides),
            sae_set.kept_in(wanted.dtype, facts.dtype),
            wanted.is_checked,
            (*verdict.warnings, *([outside] if outside else ())),
            origin_of(wanted.sae),
            partial(self._catalog.ids_of_sae, wanted.sae.id),
        )
        return await hook(engine, order)

    @asynccontextmanager
    async def _undoing(self, resident: Resident) -> AsyncIterator[list[Attachment]]:
        """If the block fails, the engine detaches every attachment that the block put into the list. An engine that
        cannot do so is ended, because it would hold an SAE that nobody knows of."""
        engine, _ = resident.running()
        made: list[Attachment] = []
        try:
            yield made
        except BaseException:
            try:
                if made:
                    keys = [attachment.key for attachment in made]
                    await engine.change(lambda state: state.detached(*keys))
            except Refusal:
                engine.lose("the engine could not take an SAE back")
            raise

    async def _note(
        self, resident: Resident, old: Sequence[Attachment], new: Sequence[Attachment]
    ) -> None:
        """Write the statuses of the SAEs into their records, and publish the events."""
        still = {attachment.sae_id for attachment in resident.attachments.values()}
        for sae_id in dict.fromkeys(attachment.sae_id for attachment in old):
            if sae_id not in still:
                await self._conductor.records.sae(sae_id, "cached")
            self._bus.publish(SaeDetached(sae_id))
        for attachment in new:
            await self._conductor.records.sae(attachment.sae_id, "attached")
            self._bus.publish(
                SaeAttached(attachment.sae_id, attachment.layer, attachment.memory_mb)
            )


def _replacing(attached: Attachment, before: Sequence[Attachment]) -> Attachment:
    """The attachment with warnings that name the SAEs that it replaces."""
    warnings = [
        f"replaced {old.sae_id} at layer {old.layer}; its steering values are cleared"
        for old in before
    ]
    return replace(attached, warnings=(*attached.warnings, *warnings))
