"""Registering and deleting models."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from steerserve.control.library.model_downloads import (
    ModelDownloads,
    checkpoint_values,
    gguf_values,
)
from steerserve.control.residency.conductor import Conductor
from steerserve.errors import Refusal
from steerserve.files import gguf as gguf_files
from steerserve.files import local
from steerserve.rules import gguf, model_status, naming
from steerserve.rules.model_status import AFTER, Event
from steerserve.store.catalog import Catalog, ModelRow


class Models:
    """Brings checkpoints on this machine into the catalog, and takes them out."""

    def __init__(
        self,
        catalog: Catalog,
        conductor: Conductor,
        downloads: ModelDownloads,
    ) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._downloads = downloads

    async def list(self) -> list[ModelRow]:
        return await self._catalog.models()

    async def get(self, model_id: int) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND.
        """
        return await self._catalog.model(model_id)

    async def add(
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

    async def remove(self, model_id: int) -> ModelRow:
        """Forget a model; its download is cancelled, and the files of a hub model are removed. Those of a local source
        never are.

        Raises:
            Refusal: MODEL_NOT_FOUND, MODEL_BUSY, MODEL_LOCKED.
        """
        self._check_unused(await self._catalog.model(model_id))
        with self._conductor.kept_out(model_id):
            async with self._downloads.settled(model_id) as row:
                self._check_unused(row)
                await self._catalog.remove_model(model_id)
                self._conductor.restoring.forget_model(model_id)
                await self._downloads.remove(row)
        return row

    def _check_unused(self, row: ModelRow) -> None:
        """What is loaded the conductor knows; the record may have missed a note of it."""
        view = self._conductor.view()
        phase = view.phase.value if view.model_id == row.id else "loading"
        status = phase if self._conductor.has(row.id) else "ready"
        model_status.check_delete(status, view.locked_id == row.id)


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
