"""Computes the content digests of the models of this machine, in the background.

A digest needs every byte of the model: minutes for 100 GB. Threads below the priority of requests read them. Nothing
waits for a digest but the attach of an SAE, because answers that are steered tell the digest of the model.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import structlog

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.events import LoadComplete
from steerserve.control.residency.records import reason_of
from steerserve.database.catalog import Catalog, ModelRow
from steerserve.errors import Refusal
from steerserve.files import model_content
from steerserve.logs import background
from steerserve.rules.events import Event

log = structlog.get_logger(__name__)

MODELS_AT_ONCE = 4
"""Models that are read at once. More would only make the disk seek."""
ALIASES_KEPT = 8
"""Earlier digests of a content that are kept, the newest first."""
NICENESS = 10
"""How far the reading threads are below the other threads of the service, on Linux."""


class ModelContents:
    """Owner of the digests that are being computed."""

    def __init__(self, catalog: Catalog, conductor: Conductor) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._computing: dict[int, asyncio.Task[None]] = {}
        self._ends: dict[int, threading.Event] = {}
        self._threads = ThreadPoolExecutor(MODELS_AT_ONCE, "model-contents", _step_back)
        self._is_closed = False

    def begin_digest(self, row: ModelRow) -> None:
        """Compute the digest of a model of this machine, unless its record has the digest of the files as they are.
        Does not wait."""
        if row.source != "local" or row.id in self._computing or self._is_closed:
            return
        ended = self._ends[row.id] = threading.Event()
        task = self._computing[row.id] = background.start(self._compute(row.id, ended))
        task.add_done_callback(lambda _: (self._computing.pop(row.id), self._ends.pop(row.id)))

    def forget(self, model_id: int) -> None:
        """Read no further in the files of a model that was deleted."""
        if model_id in self._ends:
            self._ends[model_id].set()

    async def until_known(self, row: ModelRow) -> None:
        """Return when the record of the model has its digest, or its digest could not be computed."""
        if row.content_digest is None:
            self.begin_digest(row)
        if row.id in self._computing:
            await asyncio.shield(self._computing[row.id])

    def took(self, event: Event) -> None:
        """Look at the files of a model that was loaded: they may have changed since its last load."""
        resident = self._conductor.resident
        if isinstance(event, LoadComplete) and resident and resident.row.id == event.model_id:
            self.begin_digest(resident.row)

    async def close(self) -> None:
        """Give up the digests that are being computed. The next load of such a model begins again."""
        self._is_closed = True
        for ended in self._ends.values():
            ended.set()
        if self._computing:
            await asyncio.wait(self._computing.values())
        self._threads.shutdown()

    async def _compute(self, model_id: int, ended: threading.Event) -> None:
        """Write the digest into the record of the model. A digest of files that changed meanwhile is not written."""
        with suppress(model_content.ReadingEnded):
            try:
                row = await self._catalog.model(model_id)
                place = Path(row.local_path or "")
                stamp = await asyncio.to_thread(model_content.stamp, place)
                if row.content_digest is not None and stamp == row.content_stamp:
                    return
                if row.content_digest is not None:
                    await self._write(model_id, None, None, ())
                loop = asyncio.get_running_loop()
                content, first_version = await loop.run_in_executor(
                    self._threads, model_content.digest, place, ended
                )
                if stamp == await asyncio.to_thread(model_content.stamp, place):
                    # digests of before stay true as long as the files that count are the same
                    kept = row.content_aliases if row.content_digest == content else ()
                    aliases = tuple(dict.fromkeys((first_version, *kept)))[:ALIASES_KEPT]
                    await self._write(model_id, content, stamp, aliases)
                else:
                    log.warning("model_content_not_known", model=row.name, reason="files changed")
            except (OSError, Refusal) as error:
                # the model may be deleted, its files may be gone, or the database may be away: the model still serves
                log.warning("model_content_not_known", model_id=model_id, reason=_reason(error))

    async def _write(
        self, model_id: int, digest: str | None, stamp: str | None, aliases: Sequence[str]
    ) -> None:
        row = await self._catalog.change_model(
            model_id, content_digest=digest, content_stamp=stamp, content_aliases=aliases
        )
        self._conductor.note(row)


def _step_back() -> None:
    """Let the other threads of the service go first. Elsewhere than on Linux, this would hold for the whole process."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _reason(error: OSError | Refusal) -> str:
    return (
        error.strerror or type(error).__name__ if isinstance(error, OSError) else reason_of(error)
    )
