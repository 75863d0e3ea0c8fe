"""Registering and deleting SAEs."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
from sqlalchemy.exc import IntegrityError

from steerserve.control.conductor import Conductor
from steerserve.control.engines import Engines
from steerserve.engine import messages as m
from steerserve.errors import Refusal
from steerserve.hub import local
from steerserve.store.catalog import Catalog, SaeRow


class Saes:
    """Brings SAEs into the catalog, and takes them out."""

    def __init__(self, catalog: Catalog, conductor: Conductor, launcher: Engines) -> None:
        self._catalog = catalog
        self._conductor = conductor
        self._launcher = launcher
        self._registering = asyncio.Lock()

    async def list(self) -> list[SaeRow]:
        return await self._catalog.saes()

    async def get(self, sae_id: str) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        return await self._catalog.sae(sae_id)

    async def add(self, local_path: str) -> tuple[SaeRow, bool]:
        """Register a folder or file as an SAE, in place; the row, and whether it was there before.

        It is read by an engine process of its own, so that a hostile file harms nothing.

        Raises:
            Refusal: INVALID_LOCAL_PATH, SAE_LOAD_FAILED, SAE_INCOMPATIBLE (what can never be attached).
        """
        folder = await asyncio.to_thread(local.resolve, local_path)
        async with self._registering:
            for row in await self._catalog.saes():
                if row.local_path == str(folder):
                    return row, True
            claims = await self.inspect(m.SaeSource(str(folder), str(folder)))
            try:
                row = await self._catalog.add_sae(
                    id=sae_id_of(str(folder)),
                    local_path=str(folder),
                    name=folder.name[:255],
                    status="cached",
                    **claimed(claims),
                )
            except IntegrityError as error:
                raise Refusal("SAE_LOAD_FAILED", "another SAE has this path") from error
            return row, False

    async def remove(self, sae_id: str) -> SaeRow:
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

    async def inspect(self, source: m.SaeSource) -> m.Claims:
        """What a checkpoint says of itself, read by an engine process of its own.

        Raises:
            Refusal: SAE_LOAD_FAILED, SAE_INCOMPATIBLE.
        """
        engine = await self._launcher.launch()
        try:
            return await engine.inspect(source)
        finally:
            await engine.stop()


def source_of(row: SaeRow, overrides: m.Overrides | None = None) -> m.SaeSource:
    """Where the engine finds a registered SAE."""
    path = row.local_path or ""
    name = path
    if row.repository_id:
        name = "/".join(part for part in (row.repository_id, row.file_path) if part)
    return m.SaeSource(path, name, overrides or m.Overrides())


def claimed(claims: m.Claims) -> dict[str, Any]:
    """The claims as values of a record."""
    return {
        "format": claims.format,
        "architecture": claims.architecture,
        "d_in": claims.d_in,
        "d_sae": claims.d_sae,
        "dtype": claims.dtype,
        "hook_name": claims.hook_name,
        "site": claims.site,
        "trained_on": claims.model_name,
        "trained_layer": claims.layer,
        "average_l0": claims.l0,
        "file_size_bytes": claims.size_bytes,
        "claims": _plain(claims),
    }


def claims_of(row: SaeRow) -> m.Claims | None:
    """What the checkpoint said of itself when it was registered; None where nothing has read it."""
    return None if row.claims is None else msgspec.convert(row.claims, m.Claims)


def sae_id_of(source: str) -> str:
    """An id that the same source always gets."""
    return "sae_" + hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


def _plain(claims: m.Claims) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(claims, name)) for name in claims.__struct_fields__}
