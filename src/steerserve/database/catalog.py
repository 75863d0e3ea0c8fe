"""The registered models and SAEs. Rows of the database are read as frozen records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.db import Database
from steerserve.database.kept import KeptRecords, one
from steerserve.database.tables import (
    feature_labels,
    label_suggestions,
    models,
    profiles,
    saes,
)
from steerserve.errors import Refusal
from steerserve.rules.models.status import ModelEngine, ModelSource, ModelStatus, SaeStatus
from steerserve.rules.text import shown, storable

Clock = Callable[[], datetime]
_AT_ONCE = 100
"""Records that one statement deletes, or that one transaction writes."""
CLAIMED_TEXTS = ("format", "architecture", "dtype", "hook_name", "site", "trained_on")
"""Columns with texts from an SAE's checkpoint. A column stores the beginning of the text that fits; `claims` stores all
of it."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One registered model. `engine` is `checkpoint` or `gguf`. `local_path` is the folder of a checkpoint or the first
    file of a GGUF model, and None until the model is downloaded. `download_error` is the code with which its download
    ended, None for a success. `content_digest` is the digest of the files of a model of this machine, once it has been
    computed, `content_aliases` are digests of the same content by earlier rules, and `content_stamp` tells whether the
    files have changed since."""

    id: int
    name: str
    source: ModelSource
    repo_id: str | None
    revision: str | None
    local_path: str | None
    quantization: str
    engine: ModelEngine
    gguf_label: str | None
    trust_remote_code: bool
    num_parameters: int | None
    architecture: str | None
    dtype: str | None
    disk_size_mb: int
    estimated_memory_mb: int
    supports_embeddings: bool
    status: ModelStatus
    error_message: str | None
    download_error: str | None
    content_digest: str | None
    content_aliases: list[str]
    content_stamp: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SaeRow:
    """One registered SAE. `local_path` is its folder or file on this machine, None until it is downloaded. `file_path`
    is the path in its repository, None for the record of a whole repository. `content_digest` is the SHA-256 of an SAE
    that was registered from this machine. `claims` are the claims of the checkpoint (`Claims` in `engines/wire`). Facts
    that are only known once the checkpoint is read are None or empty before. `other_ids` name this SAE too: they were
    given in answers to requests that turned out to be about this SAE."""

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
    status: SaeStatus
    error_message: str | None
    error_code: str | None
    other_ids: list[str]
    created_at: datetime
    updated_at: datetime

    @property
    def ids(self) -> list[str]:
        """The ids that name this SAE. The first is its own."""
        return [self.id, *self.other_ids]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Catalog:
    """Reads and writes both tables. Only the first reading and the writes need the database."""

    def __init__(self, database: Database, now: Clock = utc_now) -> None:
        self._database = database
        self._now = now
        self._models = KeptRecords(ModelRow, models, lambda row: row.id, lambda row: row.id)
        self._saes = KeptRecords(
            SaeRow, saes, lambda row: row.id, lambda row: (row.created_at, row.id)
        )

    async def fill(self) -> None:
        """Read all records, so that a later fault of the database does not stop requests."""
        await self._models.records(self._database)
        await self._saes.records(self._database)

    # ------------------------------------------------------------- models

    async def models(self) -> tuple[ModelRow, ...]:
        """All models. While none is written, each call returns the same tuple."""
        return await self._models.listed(self._database)

    async def model(self, model_id: int) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND.
        """
        return _known_model((await self._models.records(self._database)).get(model_id), model_id)

    async def add_model(self, **values: object) -> ModelRow:
        """Raises:
        Refusal: MODEL_ALREADY_EXISTS.
        """
        now = self._now()
        try:
            async with self._models.writing(self._database) as connection:
                made = await connection.execute(
                    insert(models).values(**values, created_at=now, updated_at=now)
                )
                assert made.inserted_primary_key is not None
                model_id: int = made.inserted_primary_key[0]
                return _known_model(await self._models.reread(connection, model_id), model_id)
        except IntegrityError as error:
            raise await self._already_exists(values) from error

    async def _already_exists(
        self, values: Mapping[str, object], own_id: int | None = None
    ) -> Refusal:
        """The refusal of a model whose files or whose name another one has at this quantization."""
        at = values["quantization"]
        rows = [r for r in await self.models() if r.quantization == at and r.id != own_id]
        place = values.get("local_path")
        same = next((row for row in rows if place and row.local_path == place), None)
        other = same or next((row for row in rows if row.name == values["name"]), None)
        if other is None:  # it was deleted meanwhile
            return Refusal("MODEL_ALREADY_EXISTS", "another model had this name or these files")
        why = (
            f"these files are registered at {at} as {other.name!r}, model {other.id}"
            if same
            else f"model {other.id} is named {other.name!r} at {at}; custom_name gives this one another name"
        )
        return Refusal("MODEL_ALREADY_EXISTS", why, model_id=other.id, quantization=at)

    async def change_model(self, model_id: int, **values: object) -> ModelRow:
        """Raises:
        Refusal: MODEL_NOT_FOUND, MODEL_ALREADY_EXISTS.
        """
        changed = update(models).where(models.c.id == model_id)
        try:
            async with self._models.writing(self._database) as connection:
                await connection.execute(changed.values(**values, updated_at=self._now()))
                return _known_model(await self._models.reread(connection, model_id), model_id)
        except IntegrityError as error:
            row = await self.model(model_id)
            kept = {name: getattr(row, name) for name in ("name", "quantization", "local_path")}
            raise await self._already_exists(kept | values, model_id) from error

    async def remove_model(self, model_id: int) -> None:
        async with self._models.writing(self._database) as connection:
            await connection.execute(delete(models).where(models.c.id == model_id))
            self._models.drop(model_id)

    # ------------------------------------------------------------- SAEs

    async def saes(self) -> tuple[SaeRow, ...]:
        """All SAEs, oldest first. While none is written, each call returns the same tuple."""
        return await self._saes.listed(self._database)

    async def sae(self, sae_id: str) -> SaeRow:
        """The SAE that this id names.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        records = await self._saes.records(self._database)
        record = records.get(sae_id)
        if record is None:
            record = next((row for row in records.values() if sae_id in row.other_ids), None)
        if record is None:
            raise unknown_sae(sae_id, list(records.values()))
        return record

    def ids_of_sae(self, sae_id: str) -> list[str]:
        """The ids that name the SAE whose own id this is."""
        record = self._saes.kept(sae_id)
        return record.ids if record else [sae_id]

    async def add_sae(self, **values: Any) -> SaeRow:
        now, sae_id = self._now(), values["id"]
        async with self._saes.writing(self._database) as connection:
            await connection.execute(
                insert(saes).values(**_held(values), created_at=now, updated_at=now)
            )
            return _known_sae(await self._saes.reread(connection, sae_id), sae_id)

    async def change_sae(self, sae_id: str, **values: object) -> SaeRow:
        """Raises:
        Refusal: SAE_NOT_FOUND.
        """
        changed = update(saes).where(saes.c.id == sae_id)
        async with self._saes.writing(self._database) as connection:
            await connection.execute(changed.values(**_held(values), updated_at=self._now()))
            return _known_sae(await self._saes.reread(connection, sae_id), sae_id)

    async def put_sae(self, sae_id: str, *, may_add: bool = True, **values: object) -> SaeRow:
        """Write the values of a download into the record of an SAE. If there is no record, one is added. The record of
        an attached SAE is not changed.

        Raises:
            Refusal: SAE_NOT_FOUND if there is no record and `may_add` is False.
        """
        async with self._saes.writing(self._database) as connection:
            return _known_sae(await self._put(connection, sae_id, values, may_add=may_add), sae_id)

    async def put_saes(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """Write values into the records of several SAEs, as `put_sae` does. `records` has the values by id."""
        ids = list(records)
        for first in range(0, len(ids), _AT_ONCE):
            async with self._saes.writing(self._database) as connection:
                for sae_id in ids[first : first + _AT_ONCE]:
                    await self._put(connection, sae_id, records[sae_id], may_add=True)

    async def _put(
        self,
        connection: AsyncConnection,
        sae_id: str,
        values: Mapping[str, object],
        *,
        may_add: bool,
    ) -> SaeRow | None:
        now, texts = self._now(), _held(values)
        changed = update(saes).where(saes.c.id == sae_id, saes.c.status != "attached")
        done = await connection.execute(changed.values(**texts, updated_at=now))
        if may_add and not done.rowcount and await one(connection, saes, sae_id) is None:
            whole = texts | {"id": sae_id, "created_at": now, "updated_at": now}
            await connection.execute(insert(saes).values(**whole))
        return await self._saes.reread(connection, sae_id)

    async def merge_sae(self, merged_id: str, sae_id: str) -> SaeRow:
        """Remove the record `merged_id`, which turned out to be about the SAE `sae_id`, and let its ids name that SAE.

        Raises:
            Refusal: SAE_NOT_FOUND.
        """
        async with self._saes.writing(self._database) as connection:
            merged = _known_sae(await self._saes.reread(connection, merged_id), merged_id)
            row = _known_sae(await self._saes.reread(connection, sae_id), sae_id)
            await connection.execute(delete(saes).where(saes.c.id == merged_id))
            self._saes.drop(merged_id)
            named = update(saes).where(saes.c.id == sae_id)
            await connection.execute(named.values(other_ids=[*row.other_ids, *merged.ids]))
            return _known_sae(await self._saes.reread(connection, sae_id), sae_id)

    async def rename_sae(self, sae_id: str, new_id: str, **values: object) -> SaeRow:
        """Give an SAE a new id, which no other SAE may have; the former one names the SAE too. The labels of the SAE
        and the profiles that name it get the new id."""
        try:
            async with self._saes.writing(self._database) as connection:
                row = _known_sae(await self._saes.reread(connection, sae_id), sae_id)
                renamed = update(saes).where(saes.c.id == sae_id)
                await connection.execute(
                    renamed.values(
                        id=new_id,
                        other_ids=[one for one in (*row.other_ids, sae_id) if one != new_id],
                        **values,
                    )
                )
                for table in (feature_labels, label_suggestions, profiles):
                    follow = update(table).where(table.c.sae_id == sae_id)
                    await connection.execute(follow.values(sae_id=new_id))
                self._saes.drop(sae_id)
                return _known_sae(await self._saes.reread(connection, new_id), new_id)
        finally:
            self._database.foreign_writes += 1

    async def remove_saes(self, *sae_ids: str) -> None:
        """Remove the records of SAEs and the labels and suggested labels of their features, all of them or none."""
        async with self._saes.writing(self._database) as connection:
            for first in range(0, len(sae_ids), _AT_ONCE):
                chunk = sae_ids[first : first + _AT_ONCE]
                # the records are deleted before the labels: a concurrent writer of labels has either ended before,
                # or finds no record and writes nothing
                await connection.execute(delete(saes).where(saes.c.id.in_(chunk)))
                for table in (feature_labels, label_suggestions):
                    await connection.execute(delete(table).where(table.c.sae_id.in_(chunk)))
            self._saes.drop(*sae_ids)


SAES_NAMED = 5
"""The most SAEs that the refusal of an unknown one names."""


def _known_model(record: ModelRow | None, model_id: int) -> ModelRow:
    if record is None:
        raise Refusal("MODEL_NOT_FOUND", f"no model has the id {model_id}", model_id=model_id)
    return record


def _known_sae(record: SaeRow | None, sae_id: str) -> SaeRow:
    if record is None:
        raise unknown_sae(sae_id)
    return record


def unknown_sae(sae_id: str, known: Sequence[SaeRow] = ()) -> Refusal:
    unknown = shown(sae_id)
    named = [row.id for row in known if row.name == sae_id]
    if named:
        hint = f"; the SAE of this name has the id {' or '.join(map(repr, named[:SAES_NAMED]))}"
    else:
        listed = ", ".join(f"{row.id} ({row.name})" for row in known[:SAES_NAMED])
        more = f" and {len(known) - SAES_NAMED} more" if len(known) > SAES_NAMED else ""
        hint = f"; there are {listed}{more}" if listed else ""
    return Refusal("SAE_NOT_FOUND", f"no SAE has the id {unknown!r}{hint}", sae_id=unknown)


def _held(values: Mapping[str, object]) -> dict[str, object]:
    """The values of an SAE's record, with the texts cut to the length of their columns."""
    texts = {name: text for name in CLAIMED_TEXTS if isinstance(text := values.get(name), str)}
    return dict(values) | {
        name: storable(text)[: getattr(saes.c[name].type, "length", None)]
        for name, text in texts.items()
    }
