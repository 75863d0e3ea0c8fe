"""Corpora: their records, the parts that were read of them, and the results for each feature."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    LargeBinary,
    String,
    Table,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import Json, UtcDateTime, metadata
from steerserve.errors import Refusal
from steerserve.rules.text import shown
from steerserve.rules.units import MIB

corpora = Table(
    "corpora",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("name", String(120), nullable=False),
    Column("model", String(255), nullable=False),
    Column("asked", Json, nullable=False),
    Column("digest", String(64)),
    Column("parts", Integer, nullable=False, default=0),
    Column("next_text", BigInteger, nullable=False, default=0),
    Column("next_token", BigInteger, nullable=False, default=0),
    Column("tokens", BigInteger, nullable=False, default=0),
    Column("counted", BigInteger, nullable=False, default=0),
    Column("stored_bytes", BigInteger, nullable=False, default=0),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    UniqueConstraint("name", name="uq_corpora_name"),
)

corpus_saes = Table(
    "corpus_saes",
    metadata,
    Column("corpus_id", String(20), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("key", String(64), nullable=False),
    Column("sae_id", String(50), nullable=False),
    Column("layer", Integer, nullable=False),
    Column("site", String(50), nullable=False),
    Column("d_sae", Integer, nullable=False),
    Column("maxima", LargeBinary, nullable=False),
    Column("counts", LargeBinary, nullable=False),
)

corpus_parts = Table(
    "corpus_parts",
    metadata,
    Column("corpus_id", String(20), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("contexts", LargeBinary, nullable=False),
)

corpus_activations = Table(
    "corpus_activations",
    metadata,
    Column("corpus_id", String(20), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("sae", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""What was read of each part, until the corpus is done. `sae` is the number of the SAE in `corpus_saes`."""

corpus_features = Table(
    "corpus_features",
    metadata,
    Column("corpus_id", String(20), primary_key=True),
    Column("sae", Integer, primary_key=True, autoincrement=False),
    Column("feature", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)


ID_PREFIX = "corpus_"
AT_ONCE = 500
"""The features that one transaction writes."""


@dataclass(frozen=True, slots=True)
class ReadSae:
    """An SAE of a corpus. `number` is its place among them, and `key` names the content of the SAE and of the model.
    `maxima` and `counts` have a number for each feature, float32 and uint32: the largest activation, and at how many
    tokens it fires. They are empty until the corpus is done."""

    number: int
    key: str
    sae_id: str
    layer: int
    site: str
    d_sae: int
    maxima: bytes = b""
    counts: bytes = b""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a corpus is read: `parts` parts, up to the token `next_token` of the text `next_text`."""

    parts: int = 0
    next_text: int = 0
    next_token: int = 0
    tokens: int = 0
    counted: int = 0


@dataclass(frozen=True, slots=True)
class CorpusRow:
    """One corpus. `asked` is what the request said about it. `digest` is that of its texts, once they were looked at.
    `finished_at` is None until its results are there."""

    id: str
    name: str
    model: str
    asked: dict[str, Any]
    digest: str | None
    parts: int
    next_text: int
    next_token: int
    tokens: int
    counted: int
    stored_bytes: int
    created_at: datetime
    finished_at: datetime | None


class CorpusStore:
    """Reads and writes corpora, which together take at most `most_mb` MiB."""

    def __init__(
        self,
        database: Database,
        most_mb: int,
        room: DocumentRoom = UNBOUNDED,
        now: Clock = utc_now,
    ) -> None:
        self._database = database
        self.most_mb = most_mb
        self._room = room
        self._now = now

    # ------------------------------------------------------------- records

    async def all(self) -> list[CorpusRow]:
        """All corpora, oldest first."""
        listed = select(corpora).order_by(corpora.c.created_at, corpora.c.id)
        async with self._database.read() as connection:
            return [_record(row) for row in (await connection.execute(listed)).mappings()]

    async def named(self, name: str) -> CorpusRow | None:
        return await self._first(corpora.c.name == name)

    async def get(self, corpus_id: str) -> CorpusRow:
        """Raises:
        Refusal: CORPUS_NOT_FOUND.
        """
        row = await self.find(corpus_id)
        if row is None:
            raise unknown_corpus(corpus_id)
        return row

    async def find(self, corpus_id: str) -> CorpusRow | None:
        return await self._first(corpora.c.id == corpus_id)

    async def saes(self, corpus_id: str) -> list[ReadSae]:
        """The SAEs of a corpus, in their order."""
        at = corpus_saes.c
        listed = select(corpus_saes).where(at.corpus_id == corpus_id).order_by(at.number)
        async with self._database.read() as connection:
            return [_sae(row) for row in (await connection.execute(listed)).mappings()]

    async def add(
        self,
        name: str,
        model: str,
        asked: dict[str, Any],
        saes: Sequence[ReadSae],
        own_id: str | None = None,
    ) -> CorpusRow:
        """Raises:
        Refusal: CORPUS_ALREADY_EXISTS, CORPORA_FULL, INSUFFICIENT_DISK.
        """
        values = {
            "id": own_id or ID_PREFIX + secrets.token_hex(6),
            "name": name,
            "model": model,
            "asked": asked,
            "created_at": self._now(),
        }
        await self._room.check_disk(0)
        try:
            async with self._database.write() as connection:
                await self._check_room(connection, 1)
                await connection.execute(insert(corpora).values(values))
                await connection.execute(
                    insert(corpus_saes),
                    [{"corpus_id": values["id"], **asdict(one)} for one in saes],
                )
        except IntegrityError:
            raise taken(name) from None
        return await self.get(str(values["id"]))

    async def set_digest(self, corpus_id: str, digest: str) -> None:
        async with self._database.write() as connection:
            await _change(connection, corpus_id, digest=digest)

    async def remove(self, corpus_id: str) -> None:
        """Raises:
        Refusal: CORPUS_NOT_FOUND.
        """
        if not await self.discard(corpus_id):
            raise unknown_corpus(corpus_id)

    async def discard(self, corpus_id: str) -> bool:
        """Delete a corpus, and return whether it was there."""
        async with self._database.write(frees=True) as connection:
            return await _discard(connection, corpus_id)

    async def replace(self, corpus_id: str, new_id: str, name: str) -> None:
        """Give the corpus `new_id` the id `corpus_id` and this name, in the place of the corpus that has the id, if
        there is one."""
        async with self._database.write() as connection:
            await _discard(connection, corpus_id)
            renamed = update(corpora).where(corpora.c.id == new_id)
            await connection.execute(renamed.values(id=corpus_id, name=name))
            for table in _PARTS:
                moved = update(table).where(table.c.corpus_id == new_id)
                await connection.execute(moved.values(corpus_id=corpus_id))

    # ------------------------------------------------------------- parts

    async def add_part(
        self, corpus_id: str, contexts: bytes, activations: Sequence[bytes], progress: Progress
    ) -> None:
        """Write the part `progress.parts - 1`: its contexts, and the activations of each SAE, which are left out where
        the results are known already.

        Raises:
            Refusal: CORPORA_FULL, INSUFFICIENT_DISK, DATABASE_UNAVAILABLE; CORPUS_NOT_FOUND for one that was deleted
                meanwhile.
        """
        size = len(contexts) + sum(map(len, activations))
        await self._room.check_disk(size)
        number = progress.parts - 1
        async with self._database.write() as connection:
            await self._check_room(connection, size)
            await _change(connection, corpus_id, size, **asdict(progress))
            await connection.execute(
                insert(corpus_parts).values(corpus_id=corpus_id, number=number, contexts=contexts)
            )
            if activations:
                await connection.execute(
                    insert(corpus_activations),
                    [
                        {"corpus_id": corpus_id, "number": number, "sae": sae, "data": data}
                        for sae, data in enumerate(activations)
                    ],
                )

    async def contexts(self, corpus_id: str, numbers: Sequence[int]) -> dict[int, bytes]:
        """The contexts of these parts."""
        at = corpus_parts.c
        wanted = select(at.number, at.contexts).where(
            at.corpus_id == corpus_id, at.number.in_(numbers)
        )
        async with self._database.read() as connection:
            return {row.number: row.contexts for row in await connection.execute(wanted)}

    async def activations(self, corpus_id: str, number: int, sae: int) -> bytes:
        """The activations of one SAE in one part.

        Raises:
            Refusal: CORPUS_NOT_FOUND for one that was deleted meanwhile.
        """
        at = corpus_activations.c
        wanted = select(at.data).where(
            at.corpus_id == corpus_id, at.number == number, at.sae == sae
        )
        async with self._database.read() as connection:
            data = await connection.scalar(wanted)
        if data is None:
            raise unknown_corpus(corpus_id)
        return bytes(data)

    # ------------------------------------------------------------- results

    async def clear_features(self, corpus_id: str) -> None:
        """Delete the results of a summary that was cut."""
        at = corpus_features.c
        async with self._database.write(frees=True) as connection:
            size = await _size(connection, corpus_features, corpus_id)
            await connection.execute(delete(corpus_features).where(at.corpus_id == corpus_id))
            await _change(connection, corpus_id, -size)

    async def add_features(self, corpus_id: str, sae: int, results: Mapping[int, bytes]) -> None:
        """Write the encoded results of some features.

        Raises:
            Refusal: CORPORA_FULL, INSUFFICIENT_DISK; CORPUS_NOT_FOUND for one that was deleted meanwhile.
        """
        rows = list(results.items())
        for first in range(0, len(rows), AT_ONCE):
            part = rows[first : first + AT_ONCE]
            size = sum(len(data) for _, data in part)
            await self._room.check_disk(size)
            async with self._database.write() as connection:
                await self._check_room(connection, size)
                await _change(connection, corpus_id, size)
                await connection.execute(
                    insert(corpus_features),
                    [
                        {"corpus_id": corpus_id, "sae": sae, "feature": feature, "data": data}
                        for feature, data in part
                    ],
                )

    async def finish(self, corpus_id: str, results: Mapping[int, tuple[bytes, bytes]]) -> None:
        """Write the maxima and the counts of each SAE, and delete the activations, which are needed no more.

        Raises:
            Refusal: CORPUS_NOT_FOUND for one that was deleted meanwhile.
        """
        at = corpus_activations.c
        async with self._database.write() as connection:
            freed = await _size(connection, corpus_activations, corpus_id)
            size = sum(len(part) for one in results.values() for part in one) - freed
            await _change(connection, corpus_id, size, finished_at=self._now())
            for number, (maxima, counts) in results.items():
                await connection.execute(
                    update(corpus_saes)
                    .where(corpus_saes.c.corpus_id == corpus_id, corpus_saes.c.number == number)
                    .values(maxima=maxima, counts=counts)
                )
            await connection.execute(delete(corpus_activations).where(at.corpus_id == corpus_id))

    async def feature(self, corpus_id: str, sae: int, feature: int) -> bytes | None:
        """The result of one feature; None for a feature that never fires."""
        at = corpus_features.c
        wanted = select(at.data).where(
            at.corpus_id == corpus_id, at.sae == sae, at.feature == feature
        )
        async with self._database.read() as connection:
            data = await connection.scalar(wanted)
        return None if data is None else bytes(data)

    async def features(self, corpus_id: str, sae: int, features: Sequence[int]) -> dict[int, bytes]:
        """The results of those of these features that fire."""
        at = corpus_features.c
        wanted = select(at.feature, at.data).where(
            at.corpus_id == corpus_id, at.sae == sae, at.feature.in_(features)
        )
        async with self._database.read() as connection:
            return {row.feature: bytes(row.data) for row in await connection.execute(wanted)}

    async def results(self) -> list[tuple[CorpusRow, ReadSae]]:
        """The SAEs of all corpora that are done, the oldest corpus first."""
        done = select(corpora.c.id).where(corpora.c.finished_at.is_not(None))
        listed = select(corpus_saes).where(corpus_saes.c.corpus_id.in_(done))
        async with self._database.read() as connection:
            found = [
                (row["corpus_id"], _sae(row))
                for row in (
                    await connection.execute(listed.order_by(corpus_saes.c.number))
                ).mappings()
            ]
        return [(row, sae) for row in await self.all() for of, sae in found if of == row.id]

    # ------------------------------------------------------------- inside

    async def _first(self, matches: ColumnElement[bool]) -> CorpusRow | None:
        async with self._database.read() as connection:
            row = (await connection.execute(select(corpora).where(matches))).mappings().first()
        return None if row is None else _record(row)

    def check_kept(self) -> None:
        """Check that corpora are kept at all.

        Raises:
            Refusal: CORPORA_FULL.
        """
        if self.most_mb == 0:
            raise Refusal(
                "CORPORA_FULL", "this service keeps no corpora (CORPORA_MAX_MB is 0)", limit_mb=0
            )

    async def _check_room(self, connection: AsyncConnection, size: int) -> None:
        """Raises:
        Refusal: CORPORA_FULL.
        """
        self.check_kept()
        stored = await connection.scalar(select(func.sum(corpora.c.stored_bytes)))
        if int(stored or 0) + size > self.most_mb * MIB:
            raise Refusal(
                "CORPORA_FULL",
                f"corpora take at most {self.most_mb} MiB (CORPORA_MAX_MB); delete some first",
                limit_mb=self.most_mb,
            )


def taken(name: str, why: str = "a corpus has this name", **details: object) -> Refusal:
    return Refusal("CORPUS_ALREADY_EXISTS", f"{shown(name)}: {why}", param="name", **details)


def unknown_corpus(corpus_id: str) -> Refusal:
    return Refusal("CORPUS_NOT_FOUND", f"no corpus {shown(corpus_id)}", corpus_id=corpus_id)


_PARTS = (corpus_saes, corpus_parts, corpus_activations, corpus_features)


async def _discard(connection: AsyncConnection, corpus_id: str) -> bool:
    found = await connection.execute(delete(corpora).where(corpora.c.id == corpus_id))
    for table in _PARTS:
        await connection.execute(delete(table).where(table.c.corpus_id == corpus_id))
    return bool(found.rowcount)


async def _size(connection: AsyncConnection, table: Table, corpus_id: str) -> int:
    """The bytes that a corpus has in the column `data` of a table."""
    size = func.sum(func.length(table.c.data))
    found = await connection.scalar(select(size).where(table.c.corpus_id == corpus_id))
    return int(found or 0)


async def _change(
    connection: AsyncConnection, corpus_id: str, size: int = 0, **values: object
) -> None:
    """Raises:
    Refusal: CORPUS_NOT_FOUND.
    """
    changed = (
        update(corpora)
        .where(corpora.c.id == corpus_id)
        .values(stored_bytes=corpora.c.stored_bytes + size, **values)
    )
    if not (await connection.execute(changed)).rowcount:
        raise unknown_corpus(corpus_id)


def _record(row: RowMapping) -> CorpusRow:
    return CorpusRow(**{f.name: row[f.name] for f in fields(CorpusRow)})


def _sae(row: RowMapping) -> ReadSae:
    values = {f.name: row[f.name] for f in fields(ReadSae)}
    return ReadSae(**values | {name: bytes(values[name]) for name in ("maxima", "counts")})
