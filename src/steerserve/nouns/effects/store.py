"""Kept results of measurements of effects, and the profiles, clusters and circuits that they are evidence for."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import Encoded, UtcDateTime, circuits, metadata, profiles
from steerserve.errors import Refusal
from steerserve.nouns.effects.rules import EffectSummary, Supported
from steerserve.rules.text import UNSTORABLE, shown

effects = Table(
    "effects",
    metadata,
    Column("id", String(19), primary_key=True),
    Column("digest", String(71), nullable=False),
    Column("summary", Encoded(EffectSummary), nullable=False),
    Column("result", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("stored_bytes", Integer, nullable=False),
    UniqueConstraint("digest", name="uq_effects_digest"),
    Index("ix_effects_listed", "created_at", "id"),
    Index("ix_effects_stored_bytes", "stored_bytes"),
)
"""`result` is the whole result as JSON."""

effect_evidence = Table(
    "effect_evidence",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("effect_id", String(19), ForeignKey("effects.id", ondelete="CASCADE"), nullable=False),
    Column("profile_id", String(17), ForeignKey("profiles.id", ondelete="CASCADE")),
    Column("circuit_id", String(17), ForeignKey("circuits.id", ondelete="CASCADE")),
    UniqueConstraint("effect_id", "profile_id", "circuit_id", name="uq_effect_evidence"),
    Index("ix_effect_evidence_profile", "profile_id"),
    Index("ix_effect_evidence_circuit", "circuit_id"),
)
"""Which profile (or cluster) or which circuit a result is evidence for."""


ID_PREFIX = "effect_"
_CIRCUIT = "circ_"


@dataclass(frozen=True, slots=True)
class EffectRow:
    """A kept result without its figures. `supports` are the documents that it is evidence for."""

    id: str
    summary: EffectSummary
    created_at: datetime
    supports: tuple[Supported, ...]


def new_effect_id() -> str:
    return ID_PREFIX + secrets.token_hex(6)


class EffectStore:
    """Reads and writes results. A result is never changed, and equal results are one."""

    def __init__(
        self,
        database: Database,
        room: DocumentRoom = UNBOUNDED,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_effect_id,
    ) -> None:
        self._database = database
        self._room = room
        self._now = now
        self._new_id = new_id

    async def check_room(self) -> None:
        """Raises:
        Refusal: DOCUMENT_STORE_FULL, DATABASE_UNAVAILABLE.
        """
        async with self._database.read() as connection:
            await self._room.check_room(connection, more=1)

    async def add(self, summary: EffectSummary, text: str) -> str:
        """Keep a result, and return its id; that of the result with the same digest where there is one.

        Raises:
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK, DATABASE_UNAVAILABLE.
        """
        await self._room.check_disk(len(text))
        async with self._database.write() as connection:
            same = select(effects.c.id).where(effects.c.digest == summary.digest)
            known: str | None = await connection.scalar(same)
            if known is not None:
                return known
            new = self._new_id()
            values = {
                "id": new,
                "digest": summary.digest,
                "summary": summary,
                "result": text,
                "created_at": self._now(),
                "stored_bytes": len(text.encode()),
            }
            await connection.execute(insert(effects).values(**values))
            await self._room.check_room(connection)
        return new

    async def page(
        self, limit: int, offset: int = 0, evidence_for: str | None = None
    ) -> tuple[list[EffectRow], int]:
        """Some of the results, the newest first, and how many there are; with `evidence_for` those that are evidence
        for the document with this id.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        at, ties = effects.c, effect_evidence.c
        listed = select(at.id, at.summary, at.created_at).order_by(at.created_at.desc(), at.id)
        counted = select(func.count()).select_from(effects)
        if evidence_for is not None:
            wanted = shown(evidence_for)
            its = (ties.profile_id == wanted) | (ties.circuit_id == wanted)
            chosen = at.id.in_(select(ties.effect_id).where(its))
            listed, counted = listed.where(chosen), counted.where(chosen)
        async with self._database.read() as connection:
            rows = (await connection.execute(listed.limit(limit).offset(offset))).all()
            total = await connection.scalar(counted)
            supports = await self._supports(connection, [row.id for row in rows])
        found = [EffectRow(row.id, row.summary, row.created_at, supports[row.id]) for row in rows]
        return found, int(total or 0)

    async def get(self, effect_id: str) -> tuple[EffectRow, str]:
        """A result, and the whole of it as JSON.

        Raises:
            Refusal: EFFECT_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        row = None
        if not UNSTORABLE.search(effect_id):
            async with self._database.read() as connection:
                wanted = select(effects).where(effects.c.id == effect_id)
                row = (await connection.execute(wanted)).first()
                supports = await self._supports(connection, [effect_id])
        if row is None:
            raise _unknown(effect_id)
        return EffectRow(row.id, row.summary, row.created_at, supports[row.id]), row.result

    async def remove(self, effect_id: str) -> None:
        """Delete a result. It is evidence no more.

        Raises:
            Refusal: EFFECT_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        removed = 0
        if not UNSTORABLE.search(effect_id):
            async with self._database.write(frees=True) as connection:
                gone = delete(effects).where(effects.c.id == effect_id)
                removed = (await connection.execute(gone)).rowcount
        if not removed:
            raise _unknown(effect_id)

    async def attach(self, effect_id: str, document_id: str) -> None:
        """Make a result evidence for the profile, cluster or circuit with this id.

        Raises:
            Refusal: EFFECT_NOT_FOUND, PROFILE_NOT_FOUND, CIRCUIT_NOT_FOUND, DATABASE_UNAVAILABLE.
        """
        await self.get(effect_id)
        column, table = _place(document_id)
        async with self._database.write() as connection:
            await self._check_document(connection, table, document_id)
            ties = effect_evidence.c
            its = (ties.effect_id == effect_id, ties[column] == document_id)
            if await connection.scalar(select(ties.number).where(*its)) is None:
                values = {"effect_id": effect_id, column: document_id}
                await connection.execute(insert(effect_evidence).values(**values))

    async def detach(self, effect_id: str, document_id: str) -> None:
        """Make a result no evidence for a document.

        Raises:
            Refusal: PROFILE_NOT_FOUND, CIRCUIT_NOT_FOUND; EFFECT_NOT_FOUND for an unknown result, and for one that is
                no evidence for the document; DATABASE_UNAVAILABLE.
        """
        await self.get(effect_id)
        column, table = _place(document_id)
        ties = effect_evidence.c
        its = (ties.effect_id == effect_id, ties[column] == document_id)
        async with self._database.write(frees=True) as connection:
            await self._check_document(connection, table, document_id)
            removed = (await connection.execute(delete(effect_evidence).where(*its))).rowcount
        if not removed:
            raise Refusal(
                "EFFECT_NOT_FOUND",
                f"the effects {effect_id!r} are no evidence for {shown(document_id)!r}",
                effect_id=effect_id,
                document_id=shown(document_id),
            )

    # ------------------------------------------------------------- inside

    async def _check_document(
        self, connection: AsyncConnection, table: Table, document_id: str
    ) -> None:
        has = None
        if not UNSTORABLE.search(document_id):
            has = await connection.scalar(select(table.c.id).where(table.c.id == document_id))
        if has is None:
            raise _no_document(document_id)

    async def _supports(
        self, connection: AsyncConnection, ids: Sequence[str]
    ) -> dict[str, tuple[Supported, ...]]:
        ties = effect_evidence.c
        found: defaultdict[str, tuple[Supported, ...]] = defaultdict(tuple)
        for column, table, kind in (
            ("profile_id", profiles, profiles.c.source_kind),
            ("circuit_id", circuits, literal("circuit")),
        ):
            its = (ties[column] == table.c.id, ties.effect_id.in_(ids))
            wanted = select(ties.effect_id, kind, table.c.id, table.c.name).where(*its)
            for effect_id, said, document_id, name in await connection.execute(wanted):
                document = Supported("profile" if said == "manual" else said, document_id, name)
                found[effect_id] = (*found[effect_id], document)
        return found


def _place(document_id: str) -> tuple[str, Table]:
    """The column of the evidence that names a document, and the table that has the document."""
    is_circuit = document_id.startswith(_CIRCUIT)
    return ("circuit_id", circuits) if is_circuit else ("profile_id", profiles)


def _unknown(effect_id: str) -> Refusal:
    wanted = shown(effect_id)
    return Refusal("EFFECT_NOT_FOUND", f"no effects have the id {wanted!r}", effect_id=wanted)


def _no_document(document_id: str) -> Refusal:
    wanted = shown(document_id)
    if document_id.startswith(_CIRCUIT):
        return Refusal("CIRCUIT_NOT_FOUND", f"no circuit has the id {wanted!r}", circuit_id=wanted)
    why = f"no profile or cluster has the id {wanted!r}"
    return Refusal("PROFILE_NOT_FOUND", why, profile_id=wanted)
