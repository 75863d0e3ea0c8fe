"""The registered models and SAEs. Rows of the database are read as frozen records.

All rows of a table are kept in memory until one is written, because many requests ask for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import Select, Table, delete, insert, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.errors import Refusal
from steerserve.rules.text import UNSTORABLE, shown, storable
from steerserve.store.db import Database
from steerserve.store.tables import feature_labels, models, profiles, saes

Clock = Callable[[], datetime]
LARGEST_ID = 2**31 - 1
_AT_ONCE = 100
"""Rows that are handled at once. Between two such chunks the event loop can do other work."""
CLAIMED_TEXTS = ("format", "architecture", "dtype", "hook_name", "site", "trained_on")
"""Columns with texts from an SAE's checkpoint. A column stores the beginning of the text that fits; `claims` stores all
of it."""
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One registered model. `engine` is `checkpoint` or `gguf`. `local_path` is the folder of a checkpoint or the first
    file of a GGUF model, and None until the model is downloaded."""

    id: int
    name: str
    source: str
    repo_id: str | None
    revision: str | None
    local_path: str | None
    quantization: str
    engine: str
    gguf_label: str | None
    trust_remote_code: bool
    num_parameters: int | None
    architecture: str | None
    dtype: str | None
    disk_size_mb: int
    estimated_memory_mb: int
    supports_embeddings: bool
    status: str
    error_message: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SaeRow:
    """One registered SAE. `local_path` is its folder or file on this machine, None until it is downloaded. `file_path`
    is the path in its repository, None for the record of a whole repository. `content_digest` is the SHA-256 of an SAE
    that was registered from this machine. `claims` are the claims of the checkpoint (`Claims` in `engine/wire`). Facts
    that are only known once the checkpoint is read are None or empty before."""

    id: str
    repository_id: str | None
    revision: str | None
    file_path: str | None
    local_path: str | None
    content_digest: str | None
    name: str
    format: str
    architecture: str
    d_in: int | None
    d_sae: int | None
    dtype: str
    hook_name: str | None
    site: str | None
    trained_on: str | None
    trained_layer: int | None
    average_l0: float | None
    file_size_bytes: int | None
    claims: dict[str, Any] | None
    status: str
    error_message: str | None
    created_at: datetime
    updated_at: datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


class Catalog:
    """Reads and writes both tables."""

    def __init__(self, database: Database, now: Clock = utc_now) -> None:
        self._database = database
        self._now = now
        self._models = _Rows(database, ModelRow, select(models).order_by(models.c.id))
        self._saes = _Rows(database, SaeRow, select(saes).order_by(saes.c.created_at, saes.c.id))
        self._putting = asyncio.Lock()

    # ------------------------------------------------------------- models

    async def models(self) -> tuple[ModelRow, ...]:
        """All models. While none is written, each call returns the same tuple."""
        return await self._models.all()

    async def model(self, model_id: int) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND.
        """
        row = None
        if 0 < model_id <= LARGEST_ID:
            async with self._database.read() as connection:
                row = await _one(connection, models, model_id)
        if row is None:
            raise Refusal("MODEL_NOT_FOUND", f"no model has the id {model_id}", model_id=model_id)
        return _record(ModelRow, row)

    async def add_model(self, **values: Any) -> ModelRow:
        """Raises:
        Refusal: MODEL_ALREADY_EXISTS.
        """
        now = self._now()
        try:
            async with self._models.writing() as connection:
                inserted = await connection.execute(
                    insert(models).values(**values, created_at=now, updated_at=now)
                )
        except IntegrityError as error:
            raise Refusal(
                "MODEL_ALREADY_EXISTS",
                f"this checkpoint, or another one named {values['name']!r}, is registered at "
                f"{values['quantization']}; custom_name gives it another name",
                quantization=values["quantization"],
            ) from error
        assert inserted.inserted_primary_key is not None
        return await self.model(inserted.inserted_primary_key[0])

    async def change_model(self, model_id: int, **values: Any) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND, MODEL_ALREADY_EXISTS.
        """
        changed = update(models).where(models.c.id == model_id)
        try:
            async with self._models.writing() as connection:
                await connection.execute(changed.values(**values, updated_at=self._now()))
        except IntegrityError as error:
            raise Refusal(
                "MODEL_ALREADY_EXISTS", "another model has this name or these files"
            ) from error
        return await self.model(model_id)

    async def remove_model(self, model_id: int) -> None:
        async with self._models.writing() as connection:
            await connection.execute(delete(models).where(models.c.id == model_id))

    # ------------------------------------------------------------- SAEs

    async def saes(self) -> tuple[SaeRow, ...]:
        """All SAEs, oldest first. While none is written, each call returns the same tuple."""
        return await self._saes.all()

    async def sae(self, sae_id: str) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        row = None
        if not UNSTORABLE.search(sae_id):
            async with self._database.read() as connection:
                row = await _one(connection, saes, sae_id)
        if row is None:
            raise unknown_sae(sae_id)
        return _record(SaeRow, row)

    async def add_sae(self, **values: Any) -> SaeRow:
        now = self._now()
        async with self._saes.writing() as connection:
            await connection.execute(
                insert(saes).values(**_held(values), created_at=now, updated_at=now)
            )
        return await self.sae(values["id"])

    async def change_sae(self, sae_id: str, **values: Any) -> SaeRow:
        async with self._saes.writing() as connection:
            await connection.execute(
                update(saes)
                .where(saes.c.id == sae_id)
                .values(**_held(values), updated_at=self._now())
            )
        return await self.sae(sae_id)

    async def put_sae(self, sae_id: str, *, may_add: bool = True, **values: Any) -> SaeRow:
        """Write the values of a download into the record of an SAE. If there is no record, one is added. The record of
        an attached SAE is not changed.

        Raises:
            Refusal: SAE_NOT_FOUND if there is no record and `may_add` is False.
        """
        # only one writer at a time, so that two writers that find no record cannot both add one
        async with self._putting, self._saes.writing() as connection:
            await self._put(connection, sae_id, values, may_add=may_add)
        return await self.sae(sae_id)

    async def put_saes(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Write values into the records of several SAEs, as `put_sae` does. `records` has the values by id."""
        ids = list(records)
        for first in range(0, len(ids), _AT_ONCE):
            async with self._putting, self._saes.writing() as connection:
                for sae_id in ids[first : first + _AT_ONCE]:
                    await self._put(connection, sae_id, records[sae_id], may_add=True)

    async def _put(
        self, connection: AsyncConnection, sae_id: str, values: Mapping[str, Any], *, may_add: bool
    ) -> None:
        now, texts = self._now(), _held(values)
        changed = update(saes).where(saes.c.id == sae_id, saes.c.status != "attached")
        done = await connection.execute(changed.values(**texts, updated_at=now))
        if may_add and not done.rowcount and await _one(connection, saes, sae_id) is None:
            whole = texts | {"id": sae_id, "created_at": now, "updated_at": now}
            await connection.execute(insert(saes).values(**whole))

    async def rename_sae(self, sae_id: str, new_id: str, **values: Any) -> SaeRow:
        """Give an SAE a new id, which no other SAE may have. The labels of the SAE and the profiles that name it get
        the new id too."""
        async with self._saes.writing() as connection:
            await connection.execute(
                update(saes).where(saes.c.id == sae_id).values(id=new_id, **values)
            )
            for table in (feature_labels, profiles):
                follow = update(table).where(table.c.sae_id == sae_id)
                await connection.execute(follow.values(sae_id=new_id))
        return await self.sae(new_id)

    async def remove_saes(self, *sae_ids: str) -> None:
        """Remove the records of SAEs and the labels of their features, all of them or none."""
        async with self._saes.writing() as connection:
            for first in range(0, len(sae_ids), _AT_ONCE):
                chunk = sae_ids[first : first + _AT_ONCE]
                # the records are deleted before the labels: a concurrent writer of labels has either ended before,
                # or finds no record and writes nothing
                await connection.execute(delete(saes).where(saes.c.id.in_(chunk)))
                await connection.execute(
                    delete(feature_labels).where(feature_labels.c.sae_id.in_(chunk))
                )


class _Rows(Generic[Record]):
    """All rows of a table, kept in memory until one of them is written."""

    def __init__(self, database: Database, kind: type[Record], query: Select[Any]) -> None:
        self._database = database
        self._kind = kind
        self._query = query
        self._rows: tuple[Record, ...] | None = None
        self._writes = 0

    async def all(self) -> tuple[Record, ...]:
        if self._rows is not None:
            return self._rows
        before = self._writes
        records: list[Record] = []
        async with self._database.read() as connection:
            rows = (await connection.execute(self._query)).mappings()
            while chunk := rows.fetchmany(_AT_ONCE):
                records += [_record(self._kind, row) for row in chunk]
                await asyncio.sleep(0)
        every = tuple(records)
        # a write that ended meanwhile may be missing in these rows
        if self._writes == before:
            self._rows = every
        return every

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that writes rows of this table."""
        try:
            async with self._database.write() as connection:
                yield connection
        finally:
            self._writes += 1
            self._rows = None


def unknown_sae(sae_id: str) -> Refusal:
    unknown = shown(sae_id)
    return Refusal("SAE_NOT_FOUND", f"no SAE has the id {unknown!r}", sae_id=unknown)


def _held(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an SAE's record, with the texts cut to the length of their columns."""
    texts = {name: text for name in CLAIMED_TEXTS if isinstance(text := values.get(name), str)}
    return dict(values) | {
        name: storable(text)[: getattr(saes.c[name].type, "length", None)]
        for name, text in texts.items()
    }


async def _one(connection: Any, table: Table, row_id: int | str) -> RowMapping | None:
    rows = await connection.execute(select(table).where(table.c.id == row_id))
    row: RowMapping | None = rows.mappings().first()
    return row


def _record(kind: type[Record], row: RowMapping) -> Record:
    return kind(**{field.name: row[field.name] for field in fields(cast(Any, kind))})
