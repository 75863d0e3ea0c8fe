"""Registering and deleting models and SAEs."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from sqlalchemy.exc import IntegrityError

from steerserve.control.conductor import Conductor
from steerserve.engine.client import Launcher
from steerserve.engine.messages import Claims
from steerserve.errors import Refusal
from steerserve.hub import local
from steerserve.rules import model_status, naming
from steerserve.store.catalog import Catalog, ModelRow, SaeRow

MIB = 1 << 20


class Registry:
    """Brings checkpoints on this machine into the catalog, and takes them out."""

    def __init__(self, catalog: Catalog, conductor: Conductor, launcher: Launcher) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._launcher = launcher
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
    ) -> ModelRow:
        """Register a folder as a model, in place.

        Raises:
            Refusal: INVALID_LOCAL_PATH, MODEL_ALREADY_EXISTS, VALIDATION_ERROR for the name.
        """
        if custom_name is not None:
            naming.check_name(custom_name)
        folder = await asyncio.to_thread(lambda: local.read_model(local.resolve(local_path)))
        return await self._catalog.add_model(
            name=custom_name or folder.path.name[: naming.NAME_MAXIMUM],
            source="local",
            local_path=str(folder.path),
            quantization=quantization,
            trust_remote_code=trust_remote_code,
            num_parameters=folder.parameters,
            architecture=folder.architecture,
            dtype=folder.dtype,
            disk_size_mb=-(-folder.size_bytes // MIB),
            estimated_memory_mb=-(-folder.size_bytes // MIB),
            supports_embeddings=True,
            status="ready",
        )

    async def remove_model(self, model_id: int) -> ModelRow:
        """Forget a model. The files of a local source are never removed.

        Raises:
            Refusal: MODEL_NOT_FOUND, MODEL_BUSY, MODEL_LOCKED.
        """
        row = await self._catalog.model(model_id)
        view = self._conductor.view()
        status = "loaded" if self._conductor.has(model_id) else row.status
        model_status.check_delete(status, view.is_locked and view.model_id == model_id)
        await self._catalog.remove_model(model_id)
        return row

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


def _sae_id(source: str) -> str:
    """An id that the same source always gets."""
    return "sae_" + hashlib.blake2b(source.encode(), digest_size=6).hexdigest()
