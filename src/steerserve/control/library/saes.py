"""Registering and deleting SAEs."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy.exc import IntegrityError

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.engine.wire import messages as m
from steerserve.errors import Refusal
from steerserve.files import local
from steerserve.rules.sae_units import TOP
from steerserve.store.catalog import Catalog, SaeRow
from steerserve.store.labels import Labels

REPOSITORY = "repository"
"""The format of a record that stands for several SAEs, each with a record of its own."""

INSPECT_SECONDS = 60.0
"""What reading the headers of one SAE may take."""

Found = m.Claims | Refusal
"""What a checkpoint says of itself, or why it is refused."""


class Saes:
    """Brings SAEs into the catalog, and takes them out."""

    def __init__(
        self, catalog: Catalog, conductor: Conductor, launcher: Engines, labels: Labels
    ) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._launcher = launcher
        self._labels = labels
        self._registering = asyncio.Lock()

    async def list(self) -> list[SaeRow]:
        return await self._catalog.saes()

    async def get(self, sae_id: str) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        return await self._catalog.sae(sae_id)

    async def add(self, local_path: str) -> tuple[SaeRow, bool]:
        """Register a folder or file as an SAE, in place; the row, and whether it was there before. One whose files do not
        say all that is needed is registered too: what is missing is given when it is attached.

        It is read by an engine process of its own, so that a hostile file harms nothing.

        Raises:
            Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE (what can never be attached).
        """
        place = await asyncio.to_thread(local.resolve_either, local_path)
        async with self._registering:
            for row in await self._catalog.saes():
                if row.local_path == str(place):
                    return row, True
            claims = await self.inspect(m.SaeSource(str(place), str(place)))
            try:
                row = await self._catalog.add_sae(
                    id=sae_id_of(str(place)),
                    local_path=str(place),
                    name=place.name[:255],
                    status="cached",
                    **claimed(claims),
                )
            except IntegrityError as error:
                raise Refusal("SAE_LOAD_FAILED", "another SAE has this path") from error
            return row, False

    @property
    def editing(self) -> asyncio.Lock:
        """While it is held, nothing is attached or detached; an attach under way ends first."""
        return self._conductor.editing

    async def remove(self, *sae_ids: str) -> None:
        """Forget SAEs, all of them or none.

        Raises:
            Refusal: SAE_NOT_FOUND, SAE_ALREADY_ATTACHED.
        """
        async with self.editing:
            for sae_id in sae_ids:
                await self._catalog.sae(sae_id)
                self.check_detached(sae_id)
            await self.forget(*sae_ids)

    async def forget(self, *sae_ids: str) -> None:
        """Forget detached SAEs and the labels of their features, all of them or none; `editing` is held meanwhile."""
        await self._catalog.remove_saes(*sae_ids)
        for sae_id in sae_ids:
            await self._labels.forget(sae_id)

    def check_detached(self, sae_id: str) -> None:
        """Raises:
        Refusal: SAE_ALREADY_ATTACHED.
        """
        if any(attached.sae_id == sae_id for attached in self._conductor.attachments()):
            raise Refusal(
                "SAE_ALREADY_ATTACHED", "the SAE is attached; detach it first", sae_id=sae_id
            )

    async def inspect(self, source: m.SaeSource) -> m.Claims:
        """What a checkpoint says of itself, read by an engine process of its own.

        Raises:
            Refusal: SAE_LOAD_FAILED, SAE_INCOMPATIBLE for what can never be attached, SHUTTING_DOWN.
        """
        (found,) = await self.inspect_all([source])
        if isinstance(found, Refusal):
            raise found
        return found

    async def inspect_all(self, sources: Sequence[m.SaeSource]) -> Sequence[Found]:
        """What each checkpoint says of itself, or why it is refused; one engine reads them, and another one goes on where a
        checkpoint ended it. Cancelled, it leaves no engine behind.

        Raises:
            Refusal: SHUTTING_DOWN.
        """
        found: deque[Found] = deque()
        while len(found) < len(sources):
            if self._conductor.is_closing:
                raise Refusal("SHUTTING_DOWN", "the service is shutting down")
            launching = asyncio.ensure_future(self._launcher.launch())
            try:
                engine = await asyncio.shield(launching)
                while len(found) < len(sources) and not engine.ended.done():
                    found.append(await _inspected(engine, sources[len(found)]))
            finally:
                await (await launching).stop()
        return tuple(found)


async def _inspected(engine: Any, source: m.SaeSource) -> Found:
    """What one checkpoint says; an engine that it holds up is ended."""
    try:
        async with asyncio.timeout(INSPECT_SECONDS):
            claims: m.Claims = await engine.inspect(source)
    except TimeoutError:
        await engine.stop()
        return Refusal("SAE_LOAD_FAILED", f"it cannot be read within {INSPECT_SECONDS:.0f} seconds")
    except Refusal as refusal:
        if refusal.code == "ENGINE_UNAVAILABLE":
            return Refusal("SAE_LOAD_FAILED", "the process that read it ended")
        return refusal
    if claims.reason is not None:
        return Refusal("SAE_INCOMPATIBLE", f"it can never be attached: {claims.reason}")
    return claims


def source_of(row: SaeRow, overrides: m.Overrides | None = None) -> m.SaeSource:
    """Where the engine finds a registered SAE."""
    path = row.local_path or ""
    name = hub_name(row.repository_id, row.file_path) if row.repository_id else path
    return m.SaeSource(path, name, overrides or m.Overrides())


def hub_name(repository_id: str, file_path: str | None) -> str:
    """`owner/name/path/in/it`."""
    return "/".join(part for part in (repository_id, file_path) if part and part != TOP)


def claimed(claims: m.Claims) -> dict[str, Any]:
    """The claims as values of a record."""
    return {
        "format": claims.format,
        "architecture": claims.architecture,
        "d_in": claims.d_in,
        "d_sae": claims.d_sae,
        "dtype": claims.dtype,
        "hook_name": _short(claims.hook_name),
        "site": claims.site,
        "trained_on": _short(claims.model_name),
        "trained_layer": claims.layer,
        "average_l0": claims.l0,
        "file_size_bytes": claims.size_bytes,
        "claims": _plain(claims),
    }


def claims_of(row: SaeRow) -> m.Claims | None:
    """What the checkpoint said of itself when it was registered; None where nothing has read it."""
    if row.claims is None:
        return None
    known = m.Claims.__struct_fields__
    return m.Claims(**{name: value for name, value in row.claims.items() if name in known})


def sae_id_of(source: str) -> str:
    """An id that the same source always gets."""
    return "sae_" + hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


def _short(text: str | None) -> str | None:
    """As much of a checkpoint's text as a column holds."""
    return text[:255] if text is not None else None


def _plain(claims: m.Claims) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(claims, name)) for name in claims.__struct_fields__}
