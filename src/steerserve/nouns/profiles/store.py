"""Saved profiles: the rows, as frozen records."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Text, func, select, type_coerce
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.stored import Kind, StoredRows
from steerserve.database.tables import profiles
from steerserve.errors import Refusal
from steerserve.nouns.clusters.rules import Cluster
from steerserve.rules.bounds import PROFILES_KEPT
from steerserve.rules.saes import provenance
from steerserve.rules.saes.provenance import Origin


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One saved profile. `steering` is sorted by feature index. `edits` are those of `interventions`, as
    JSON. `origin` has the facts about the SAE and the model from an imported document. A cluster is a profile of the
    kind `cluster`.

    Attributes:
        cluster: the facts of a cluster's document; None for other profiles.
        warnings: the warnings of the import or of the last activation.
        hub_ref: the `repo_id`, `revision` and `path` of a document that came from the hub.
        sensing_enabled: whether an operator wants the cluster to be sensed.
        sensing_min_k: the quorum that an operator set, 0 for all sensable members; None where no operator set one.
    """

    id: str
    name: str
    description: str | None
    model_id: str | None
    sae_id: str | None
    layer: int | None
    steering: dict[int, float]
    intensity: float
    source_kind: str
    origin: Origin | None
    cluster: Cluster | None
    warnings: tuple[str, ...]
    hub_ref: dict[str, object] | None
    sensing_enabled: bool
    sensing_min_k: int | None
    created_at: datetime
    updated_at: datetime
    edits: list[dict[str, object]] | None = None


def new_profile_id() -> str:
    return "prof_" + secrets.token_hex(6)


class ProfileStore(StoredRows[ProfileRow]):
    """Reads and writes profiles. The document of a cluster, which may be large, is read only for an export.

    The profiles that were read or written last are kept in memory for the requests that name them: a read of the
    database would come between their arrivals, and some must be served while the database has a fault.
    """

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_profile_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        super().__init__(database, profiles, ProfileRow, "profile", now, new_id, room)
        self._recent: dict[str, ProfileRow] = {}
        self._writes = 0
        self._kept_at = 0

    async def page(
        self, limit: int, offset: int = 0, *, only_clusters: bool = False
    ) -> tuple[list[ProfileRow], int]:
        """Some of the profiles, or of those that are clusters, oldest first, and how many there are."""
        scope = [profiles.c.source_kind == "cluster"] if only_clusters else []
        return await self._page(ProfileRow, limit, offset, *scope)

    async def sensed(self) -> list[tuple[str, str]]:
        """The id and the name of each cluster whose sensing is enabled, oldest first."""
        at = profiles.c
        wanted = select(at.id, at.name).where(at.source_kind == "cluster", at.sensing_enabled)
        async with self._database.read() as connection:
            rows = await connection.execute(wanted.order_by(at.created_at, at.id))
            return [(profile_id, name) for profile_id, name in rows]

    async def check_room(self, more: int, size: int) -> None:
        """Check that there is room for `more` documents of `size` bytes in all.

        Raises:
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(size)
        async with self._database.read() as connection:
            await self._room.check_room(connection, more, size)

    async def profile_named(self, name: str) -> ProfileRow:
        """The profile that a request names, from memory where it was in use before.

        Raises:
            Refusal: PROFILE_NOT_FOUND for the request field `profile`; DATABASE_UNAVAILABLE.
        """
        self._forget_changed()
        recent = (one for one in self._recent.values() if one.name == name)
        row = next(recent, None)
        if row is not None:
            return self._keep(row)
        row = await self._find(profiles.c.name == name, name)
        if row is None:
            raise Refusal(
                "PROFILE_NOT_FOUND", f"no profile is named {name[:100]!r}", param="profile"
            )
        return row

    async def add_profile(self, *, own_id: str | None = None, **values: Any) -> ProfileRow:
        """Save a profile or a cluster, whose columns are `values`, under a new id, or under its own.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        return self._keep(await self._save(_columns(values), own_id))

    async def slices(self, circuit_id: str, layer: int | None = None) -> list[ProfileRow]:
        """The clusters that were made of the layers of a circuit, or of one of its layers."""
        at = profiles.c
        scope = [] if layer is None else [at.slice_layer == layer]
        return await self._all(ProfileRow, at.slice_of == circuit_id, *scope)

    async def change_profile(self, profile_id: str, changes: Mapping[str, object]) -> ProfileRow:
        """Replace the columns of one profile that `changes` names. Without changes, nothing is written.

        Raises:
            Refusal: PROFILE_NOT_FOUND, PROFILE_ALREADY_EXISTS; DOCUMENT_STORE_FULL for larger values.
        """
        if not changes:
            return await self.row(profile_id)
        is_larger = not {"steering", "edits"}.isdisjoint(changes)
        return self._keep(await self._change(profile_id, _columns(changes), counts=is_larger))

    async def remove(self, row_id: str) -> None:
        await super().remove(row_id)
        self._recent.pop(row_id, None)

    def _size(self) -> ColumnElement[int]:
        at = profiles.c
        size = func.length(at.steering) + func.length(func.coalesce(at.document, ""))
        return size + func.length(func.coalesce(at.edits, type_coerce("", Text)))

    async def _find(self, is_it: ColumnElement[bool], wanted: str) -> ProfileRow | None:
        self._forget_changed()
        before = self._writes, self._kept_at
        row = await super()._find(is_it, wanted)
        self._forget_changed()
        if row is not None and before == (self._writes, self._kept_at):
            self._keep(row)
        return row

    def _forget_changed(self) -> None:
        """Keep no profile in memory that another owner has changed."""
        if self._kept_at != self._database.foreign_writes:
            self._kept_at = self._database.foreign_writes
            self._recent.clear()

    @asynccontextmanager
    async def _writing(self, *, frees: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes profiles. A read that began before its end is not kept in memory."""
        try:
            async with self._database.write(frees=frees) as connection:
                yield connection
        finally:
            self._writes += 1

    def _keep(self, row: ProfileRow) -> ProfileRow:
        self._recent.pop(row.id, None)
        self._recent[row.id] = row
        if len(self._recent) > PROFILES_KEPT:
            del self._recent[next(iter(self._recent))]
        return row

    def _made(self, kind: type[Kind], row: RowMapping) -> Kind:
        made = super()._made(kind, row)
        assert isinstance(made, ProfileRow)
        origin = None if row["origin"] is None else provenance.read(row["origin"])
        return replace(made, origin=origin, warnings=tuple(row["warnings"] or ()))


def _columns(values: Mapping[str, Any]) -> dict[str, object]:
    origin = values.get("origin")
    return {**values, "origin": asdict(origin)} if origin is not None else dict(values)
