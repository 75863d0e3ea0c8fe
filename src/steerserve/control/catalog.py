"""Registering and deleting models and SAEs."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy.exc import IntegrityError

from steerserve.control.conductor import Conductor
from steerserve.control.downloads import HubModels, checkpoint_values, gguf_values
from steerserve.control.engines import Engines
from steerserve.engine.messages import Claims
from steerserve.errors import Refusal
from steerserve.hub import gguf as gguf_files
from steerserve.hub import local
from steerserve.rules import gguf, model_status, naming
from steerserve.rules.model_status import AFTER, Event
from steerserve.store.catalog import Catalog, ModelRow, SaeRow

MIB = 1 << 20


class Registry:
    """Brings checkpoints on this machine into the catalog, and takes them out."""

    def __init__(
        self,
        catalog: Catalog,
        conductor: Conductor,
        launcher: Engines,
        hub_models: HubModels,
    ) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._launcher = launcher
        self._hub_models = hub_models
        self._registering = asyncio.Lock()

    async def models(self) -> list[ModelRow]:
        return await self._catalog.models()

    async def model(self, model_id: int) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND.
        """
        return await self._catalog.model(model_id)

    async def saes(self) -> list[SaeRow]:
        return await self._catalog.saes()

    async def sae(self, sae_id: str) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        return await self._catalog.sae(sae_id)

    async def add_model(
        self,
        local_path: str,
        *,
        quantization: str,
        custom_name: str | None,
        trust_remote_code: bool,
        gguf_label: str | None = None,
    ) -> ModelRow:
        """Register a checkpoint folder, or a GGUF file or folder, in place. `gguf_label` chooses among a folder's GGUF
        models.

        Raises:
            Refusal: INVALID_LOCAL_PATH, MODEL_ALREADY_EXISTS, VALIDATION_ERROR for the name.
        """
        if custom_name is not None:
            naming.check_name(custom_name)
        found = await asyncio.to_thread(_local, local_path, gguf_label, quantization)
        values: dict[str, Any] = {"quantization": quantization, **found}
        if custom_name is not None:
            values["name"] = custom_name
        return await self._catalog.add_model(
            source="local",
            trust_remote_code=trust_remote_code,
            supports_embeddings=True,
            status=AFTER[Event.REGISTERED],
            **values,
        )

    async def remove_model(self, model_id: int) -> ModelRow:
        """Forget a model; its download is cancelled, and the files of a hub model are removed. Those of a local source
        never are.

        Raises:
            Refusal: MODEL_NOT_FOUND, MODEL_BUSY, MODEL_LOCKED.
        """
        self._check_unused(await self._catalog.model(model_id))
        with self._conductor.kept_out(model_id):
            async with self._hub_models.settled(model_id) as row:
                self._check_unused(row)
                await self._catalog.remove_model(model_id)
                await self._hub_models.remove(row)
        return row

    def _check_unused(self, row: ModelRow) -> None:
        """What is loaded the conductor knows; the record may have missed a note of it."""
        view = self._conductor.view()
        phase = view.phase.value if view.model_id == row.id else "loading"
        status = phase if self._conductor.has(row.id) else "ready"
        model_status.check_delete(status, view.is_locked and view.model_id == row.id)

    async def add_sae(self, local_path: str) -> tuple[SaeRow, bool]:
        """Register a folder as an SAE, in place; the row, and whether it was there before.

        The folder is read by an engine process of its own, so that a hostile file harms nothing.

        Raises:
            Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE (a site without a hook).
        """
        folder = await asyncio.to_thread(local.resolve, local_path)
        async with self._registering:
            for row in await self._catalog.saes():
                if row.local_path == str(folder):
                    return row, True
            claims = await self._inspect(folder)
            try:
                row = await self._catalog.add_sae(
                    id=_sae_id(str(folder)),
                    local_path=str(folder),
                    name=folder.name[:255],
                    format=claims.format,
                    architecture=claims.architecture,
                    d_in=claims.d_in,
                    d_sae=claims.d_sae,
                    dtype=claims.dtype,
                    hook_name=claims.hook_name,
                    site=claims.site,
                    trained_on=claims.model_name,
                    trained_layer=claims.layer,
                    average_l0=claims.l0,
                    file_size_bytes=claims.size_bytes,
                    status="cached",
                )
            except IntegrityError as error:
                raise Refusal("SAE_LOAD_FAILED", "another SAE has this path") from error
            return row, False

    async def remove_sae(self, sae_id: str) -> SaeRow:
        """Forget an SAE. The files of a local source are never removed.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_ALREADY_ATTACHED.
        """
        # an attach under way ends first
        async with self._conductor.editing:
            row = await self._catalog.sae(sae_id)
            if any(attached.sae_id == sae_id for attached in self._conductor.attachments()):
                raise Refusal(
                    "SAE_ALREADY_ATTACHED", "the SAE is attached; detach it first", sae_id=sae_id
                )
            await self._catalog.remove_sae(sae_id)
        return row

    async def _inspect(self, folder: Path) -> Claims:
        engine = await self._launcher.launch()
        try:
            return await engine.inspect(str(folder))
        finally:
            await engine.stop()


def _local(named: str, label: str | None, quantization: str) -> dict[str, Any]:
    """What lies at a path of this machine, as the values of a record.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    if named.lower().endswith(".gguf"):
        return _gguf(local.resolve_file(named), label)
    path = local.resolve(named)
    if label is not None or not (path / "config.json").exists():
        with suppress(gguf_files.GGUFError):
            if gguf_files.listing(path).variants:
                return _gguf(path, label)
    return {"name": path.name[: naming.NAME_MAXIMUM], **checkpoint_values(path, quantization)}


def _gguf(path: Path, label: str | None) -> dict[str, Any]:
    """A GGUF model, called by its file or folder and its label.

    Raises:
        Refusal: INVALID_LOCAL_PATH.
    """
    try:
        files = gguf_files.entry(path, label)
    except gguf_files.GGUFError as error:
        raise Refusal("INVALID_LOCAL_PATH", str(error), local_path=str(path)[:500]) from error
    named = gguf.classify(files[0].name)
    values = gguf_values(files, named.label)
    tag = f":{values['gguf_label']}"
    return values | {"name": named.base[: naming.NAME_MAXIMUM - len(tag)] + tag}


def _sae_id(source: str) -> str:
    """An id that the same source always gets."""
    return "sae_" + hashlib.blake2b(source.encode(), digest_size=6).hexdigest()
