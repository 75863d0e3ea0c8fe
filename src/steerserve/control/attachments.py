"""Attaching SAEs to the resident model and detaching them; the model is locked while any is attached."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from steerserve.control.bus import Bus, SaeAttached, SaeDetached
from steerserve.control.conductor import Conductor
from steerserve.control.resident import Attachment, Resident
from steerserve.control.saes import source_of
from steerserve.errors import Refusal
from steerserve.hub import local
from steerserve.rules import attachment as rules
from steerserve.rules.steering import key_of
from steerserve.store.catalog import SaeRow


class Attachments:
    """Edits the attachments of the resident model, one edit at a time."""

    def __init__(self, conductor: Conductor, bus: Bus) -> None:
        self._conductor = conductor
        self._bus = bus

    def compatibility(self, sae: SaeRow, layer: int) -> rules.Verdict:
        """Whether the SAE fits the loaded model at the layer.

        Raises:
            Refusal: MODEL_NOT_LOADED.
        """
        resident = self._conductor.loaded()
        _, facts = resident.running()
        if facts.is_embedding_only:
            return rules.Verdict(("the model can only embed; nothing in it is steered",), ())
        return rules.compatibility(
            _claim(sae),
            layer,
            hidden_size=facts.hidden_size,
            layers=facts.layers,
            model_names=_names(resident),
        )

    async def attach(self, sae: SaeRow, layer: int) -> Attachment:
        """Attach in the place of what was attached before; the old one stays if the new one fails.

        Raises:
            Refusal: MODEL_NOT_LOADED, SAE_ALREADY_ATTACHED, SAE_INCOMPATIBLE, SAE_LOAD_FAILED.
        """
        async with self._conductor.editing:
            resident = self._conductor.loaded()
            engine, facts = resident.running()
            key = key_of(sae.id, layer)
            if key in resident.attachments:
                raise Refusal(
                    "SAE_ALREADY_ATTACHED",
                    f"the SAE is already attached at layer {layer}",
                    sae_id=sae.id,
                    layer=layer,
                )
            verdict = self.compatibility(sae, layer)
            rules.check(verdict, _claim(sae), facts.hidden_size)
            await asyncio.to_thread(local.resolve, sae.local_path or "")
            made = await engine.attach(key, source_of(sae), layer)
            before = list(resident.attachments.values())
            try:
                self._check_there(resident)
                for old in before:
                    await self._detach_one(resident, old)
                await self._conductor.renew([old.key for old in before])
                self._check_there(resident)
            except BaseException:
                with suppress(Refusal):
                    await engine.detach(key)
                raise
            warnings = [*verdict.warnings, *made.warnings]
            warnings += [
                f"replaced {old.sae_id} at layer {old.layer}; its steering values are cleared"
                for old in before
            ]
            attached = Attachment(
                key,
                sae.id,
                layer,
                made.d_sae,
                made.memory_mb,
                made.layer_module_path,
                tuple(warnings),
                made.check,
            )
            resident.attachments[key] = attached
            resident.is_locked = True
            await self._conductor.records.sae(sae.id, "attached")
        self._bus.publish(SaeAttached(sae.id, layer, made.memory_mb))
        return attached

    async def detach(self, sae_id: str) -> int:
        """Detach every layer of an SAE after the requests in flight; the MiB that come back.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        async with self._conductor.editing:
            resident = self._conductor.resident
            found = [a for a in self._conductor.attachments() if a.sae_id == sae_id]
            if resident is None or not found:
                raise Refusal("SAE_NOT_ATTACHED", f"SAE {sae_id!r} is not attached", sae_id=sae_id)
            async with self._conductor.drained(resident):
                for attached in found:
                    await self._detach_one(resident, attached)
                await self._conductor.renew([attached.key for attached in found])
            resident.is_locked = bool(resident.attachments)
        return sum(attached.memory_mb for attached in found)

    def _check_there(self, resident: Resident) -> None:
        """Raises:
        Refusal: MODEL_NOT_LOADED when the model went away meanwhile.
        """
        engine = resident.engine
        if self._conductor.resident is not resident or engine is None or engine.ended.done():
            raise Refusal("MODEL_NOT_LOADED", "the model went away during the attach")

    async def _detach_one(self, resident: Resident, attached: Attachment) -> None:
        engine, _ = resident.running()
        await engine.detach(attached.key)
        resident.attachments.pop(attached.key, None)
        await self._conductor.records.sae(attached.sae_id, "cached")
        self._bus.publish(SaeDetached(attached.sae_id))


def _claim(sae: SaeRow) -> rules.Claim:
    return rules.Claim(sae.d_in or 0, sae.trained_layer, sae.trained_on, sae.site)


def _names(resident: Resident) -> tuple[str, ...]:
    """What the loaded model may be called by the SAE's authors."""
    row = resident.row
    path = Path(row.local_path).name if row.local_path else None
    return tuple(name for name in (row.name, row.repo_id, path) if name)
