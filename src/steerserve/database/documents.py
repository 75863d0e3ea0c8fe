"""Saved profiles: the rows, as frozen records."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Text, delete, func, insert, select, type_coerce, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import profiles
from steerserve.errors import Refusal
from steerserve.rules.saes import provenance
from steerserve.rules.saes.provenance import Origin
from steerserve.rules.steering.cluster import Cluster, ImportedCluster
from steerserve.rules.text import UNSTORABLE, shown

_AT_ONCE = 10
"""Profiles that are read at once, each with up to a thousand values. Between two such chunks the event loop can do
other work."""


@dataclass(frozen=True, slots=True)
class SliceOf:
    """The layer of a circuit that a cluster was made of."""

    circuit_id: str
    layer: int


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
        sensing_min_k: the quorum that an operator set; None for the default.
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


_READ = [profiles.c[field.name] for field in fields(ProfileRow)]
"""The columns of a record. The document of a cluster, which may be large, is read only for an export."""


def new_profile_id() -> str:
    return "prof_" + secrets.token_hex(6)


_RECENT = 64
"""How many profiles are kept in memory."""


class Documents:
    """Reads and writes profiles. Two names are equal only if every character is equal.

    The profiles that were read or written last are kept in memory for requests that come while the database has a
    fault.
    """

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_profile_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        self._database = database
        self._room = room
        self._now = now
        self._new_id = new_id
        self._recent: dict[str, ProfileRow] = {}
        self._writes = 0

    async def page(
        self, limit: int, offset: int = 0, *, only_clusters: bool = False
    ) -> tuple[list[ProfileRow], int]:
        """Some of the profiles, or of those that are clusters, oldest first, and how many there are."""
        at = profiles.c
        scope = [at.source_kind == "cluster"] if only_clusters else []
        page = select(*_READ).where(*scope).order_by(at.created_at, at.id)
        counted = select(func.count()).select_from(profiles).where(*scope)
        records: list[ProfileRow] = []
        async with self._database.read() as connection:
            rows = (await connection.execute(page.limit(limit).offset(offset))).mappings()
            while chunk := rows.fetchmany(_AT_ONCE):
                records += [_record(row) for row in chunk]
                await asyncio.sleep(0)
            total = int(await connection.scalar(counted) or 0)
        return records, total

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
            await self._room.check(connection, more, size)

    async def profile(self, profile_id: str) -> ProfileRow:
        """Raises:
        Refusal: PROFILE_NOT_FOUND.
        """
        row = await self._find(profiles.c.id == profile_id, profile_id)
        if row is None:
            raise _unknown(profile_id)
        return row

    async def document(self, profile_id: str) -> str | None:
        """The JSON text of the document that a cluster was imported from, as it came; None for other profiles.

        Raises:
            Refusal: PROFILE_NOT_FOUND.
        """
        await self.profile(profile_id)
        wanted = select(profiles.c.document).where(profiles.c.id == profile_id)
        async with self._database.read() as connection:
            document: str | None = (await connection.execute(wanted)).scalar()
        return document

    async def profile_named(self, name: str) -> ProfileRow:
        """The profile that a request names. While the database has a fault, a profile that was in use before.

        Raises:
            Refusal: PROFILE_NOT_FOUND for the request field `profile`; DATABASE_UNAVAILABLE.
        """
        try:
            row = await self._find(profiles.c.name == name, name)
        except Refusal:
            row = next((recent for recent in self._recent.values() if recent.name == name), None)
            if row is None:
                raise
        if row is None:
            raise Refusal(
                "PROFILE_NOT_FOUND", f"no profile is named {name[:100]!r}", param="profile"
            )
        return row

    async def add_profile(self, *, own_id: str | None = None, **values: Any) -> ProfileRow:
        """Save a profile under a new id, or under its own.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS, DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(len(values.get("document") or ""))
        profile_id, now = own_id or self._new_id(), self._now()
        try:
            async with self._writing() as connection:
                await connection.execute(
                    insert(profiles).values(
                        **_columns(values), id=profile_id, created_at=now, updated_at=now
                    )
                )
                row = await self._counted(connection, profiles.c.id == profile_id)
        except IntegrityError as error:
            raise _taken(values["name"]) from error
        assert row is not None
        self._keep(row)
        return row

    async def taken_names(self, names: Sequence[str]) -> set[str]:
        """Those of the names that profiles have now."""
        wanted = select(profiles.c.name).where(profiles.c.name.in_(names))
        async with self._database.read() as connection:
            return set((await connection.execute(wanted)).scalars())

    async def add_cluster(
        self,
        imported: ImportedCluster,
        name: str,
        sae_id: str | None,
        warnings: tuple[str, ...],
        hub_ref: Mapping[str, object] | None,
        own_id: str | None = None,
        slice_of: SliceOf | None = None,
    ) -> ProfileRow:
        """Save an imported cluster under a name and under a new id, or its own. It is bound to an SAE or, with None, to
        none.

        Raises:
            Refusal: PROFILE_ALREADY_EXISTS.
        """
        return await self.add_profile(
            own_id=own_id,
            name=name,
            description=imported.description,
            model_id=imported.model_id,
            sae_id=sae_id,
            layer=imported.cluster.sae.layer,
            steering=imported.cluster.values,
            intensity=imported.intensity,
            source_kind="cluster",
            document=imported.document,
            cluster=imported.cluster,
            warnings=warnings,
            hub_ref=hub_ref,
            slice_of=slice_of.circuit_id if slice_of else None,
            slice_layer=slice_of.layer if slice_of else None,
        )

    async def slices(self, circuit_id: str, layer: int | None = None) -> list[ProfileRow]:
        """The clusters that were made of the layers of a circuit, or of one of its layers."""
        at = profiles.c
        wanted = select(*_READ).where(at.slice_of == circuit_id)
        if layer is not None:
            wanted = wanted.where(at.slice_layer == layer)
        async with self._database.read() as connection:
            return [_record(row) for row in (await connection.execute(wanted)).mappings()]

    async def change_profile(self, profile_id: str, changes: Mapping[str, object]) -> ProfileRow:
        """Replace the columns of one profile that `changes` names. Without changes, nothing is written.

        Raises:
            Refusal: PROFILE_NOT_FOUND, PROFILE_ALREADY_EXISTS; DOCUMENT_STORE_FULL for larger values.
        """
        if not changes:
            return await self.profile(profile_id)
        row = None
        if not UNSTORABLE.search(profile_id):
            is_it = profiles.c.id == profile_id
            new = {**_columns(changes), "updated_at": self._now()}
            try:
                async with self._writing() as connection:
                    await connection.execute(update(profiles).where(is_it).values(**new))
                    is_larger = not {"steering", "edits"}.isdisjoint(changes)
                    found = self._counted if is_larger else _first
                    row = await found(connection, is_it)
            except IntegrityError as error:
                raise _taken(changes.get("name")) from error
        if row is None:
            raise _unknown(profile_id)
        self._keep(row)
        return row

    async def remove_profile(self, profile_id: str) -> None:
        """Raises:
        Refusal: PROFILE_NOT_FOUND, also if another call has just removed the profile.
        """
        removed = 0
        if not UNSTORABLE.search(profile_id):
            async with self._writing(frees=True) as connection:
                done = await connection.execute(delete(profiles).where(profiles.c.id == profile_id))
                removed = done.rowcount
            self._recent.pop(profile_id, None)
        if not removed:
            raise _unknown(profile_id)

    async def _counted(
        self, connection: AsyncConnection, is_it: ColumnElement[bool]
    ) -> ProfileRow | None:
        """The profile that was just written, once its size is counted and there is room for it.

        Raises:
            Refusal: DOCUMENT_STORE_FULL.
        """
        at = profiles.c
        size = func.length(at.steering) + func.length(func.coalesce(at.document, ""))
        size += func.length(func.coalesce(at.edits, type_coerce("", Text)))
        await connection.execute(update(profiles).where(is_it).values(stored_bytes=size))
        await self._room.check(connection)
        return await _first(connection, is_it)

    async def _find(self, matches: ColumnElement[bool], wanted: str) -> ProfileRow | None:
        if UNSTORABLE.search(wanted):
            return None
        writes = self._writes
        async with self._database.read() as connection:
            row = await _first(connection, matches)
        if row is not None and writes == self._writes:
            self._keep(row)
        return row

    @asynccontextmanager
    async def _writing(self, *, frees: bool = False) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes profiles. A read that began before its end is not kept in memory."""
        try:
            async with self._database.write(frees=frees) as connection:
                yield connection
        finally:
            self._writes += 1

    def _keep(self, row: ProfileRow) -> None:
        self._recent.pop(row.id, None)
        self._recent[row.id] = row
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]


async def _first(connection: AsyncConnection, matches: ColumnElement[bool]) -> ProfileRow | None:
    found = await connection.execute(select(*_READ).where(matches))
    row = found.mappings().first()
    return _record(row) if row is not None else None


def _record(row: RowMapping) -> ProfileRow:
    values = {field.name: row[field.name] for field in fields(ProfileRow)}
    origin = values["origin"]
    values["origin"] = None if origin is None else provenance.read(origin)
    values["warnings"] = tuple(values["warnings"] or ())
    return ProfileRow(**values)


def _columns(values: Mapping[str, Any]) -> dict[str, object]:
    origin = values.get("origin")
    return {**values, "origin": asdict(origin)} if origin is not None else dict(values)


def _taken(name: object) -> Refusal:
    return Refusal("PROFILE_ALREADY_EXISTS", f"a profile is named {name!r}", name=name)


def _unknown(profile_id: str) -> Refusal:
    unknown = shown(profile_id)
    return Refusal("PROFILE_NOT_FOUND", f"no profile has the id {unknown!r}", profile_id=unknown)
