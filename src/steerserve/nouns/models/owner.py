"""The registered models: listing, registering from this machine, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from steerserve.control.models.contents import ModelContents
from steerserve.control.models.downloads import ModelDownloads
from steerserve.control.models.records import local_values
from steerserve.control.residency.conductor import Conductor
from steerserve.database.catalog import Catalog, ModelRow
from steerserve.files.client_paths import ClientPaths, allow_all
from steerserve.rules.models import naming, remote_code
from steerserve.rules.models import status as model_status
from steerserve.rules.models.status import AFTER, Event

__all__ = ["ModelRow", "Models"]


class Models:
    """Brings models of this machine into the catalog, and takes models out."""

    def __init__(
        self,
        catalog: Catalog,
        conductor: Conductor,
        downloads: ModelDownloads,
        contents: ModelContents,
        paths: ClientPaths,
        may_run_code: bool,
    ) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._downloads = downloads
        self._contents = contents
        self._paths = paths
        self._may_run_code = may_run_code

    async def list(self) -> Sequence[ModelRow]:
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
        is_own: bool = False,
    ) -> ModelRow:
        """Register a checkpoint folder, a GGUF file, or a folder of GGUF files. Nothing is copied. `gguf_label` chooses
        among the GGUF models of a folder. `is_own` says that the service itself asks, for a model in its own folders.
        The content digest of the record follows in the background.

        Raises:
            Refusal: REMOTE_CODE_REFUSED, INVALID_LOCAL_PATH, MODEL_ALREADY_EXISTS, VALIDATION_ERROR for the name.
        """
        if custom_name is not None:
            naming.check_name(custom_name)
        remote_code.check_wanted(trust_remote_code, is_allowed=self._may_run_code)
        check = allow_all if is_own else self._paths.check_allowed
        facts = await asyncio.to_thread(local_values, local_path, gguf_label, quantization, check)
        values: dict[str, object] = {"quantization": quantization, **facts}
        if custom_name is not None:
            values["name"] = custom_name
        row = await self._catalog.add_model(
            source="local",
            trust_remote_code=trust_remote_code,
            supports_embeddings=True,
            status=AFTER[Event.REGISTERED],
            **values,
        )
        self._contents.begin_digest(row)
        return row

    async def remove(self, model_id: int) -> ModelRow:
        """Remove a model's record and cancel its download. Files that came from the hub are removed; files of a local
        source never are.

        Raises:
            Refusal: MODEL_NOT_FOUND, MODEL_BUSY, MODEL_LOCKED.
        """
        self._check_unused(await self._catalog.model(model_id))
        with self._conductor.kept_out(model_id):
            async with self._downloads.stopped(model_id) as row:
                self._check_unused(row)
                await self._catalog.remove_model(model_id)
                self._contents.forget(model_id)
                self._conductor.restoring.forget_model(model_id)
                await self._downloads.remove_files(row)
        return row

    def _check_unused(self, row: ModelRow) -> None:
        """Check that the model may be deleted. The conductor is asked whether the model is loaded, because the record
        may have missed a change.

        Raises:
            Refusal: MODEL_BUSY, MODEL_LOCKED.
        """
        view = self._conductor.view()
        phase = view.phase.value if view.model_id == row.id else "loading"
        status = phase if self._conductor.has(row.id) else "ready"
        lock = view.lock if view.locked_id == row.id else None
        model_status.check_delete(status, lock)
