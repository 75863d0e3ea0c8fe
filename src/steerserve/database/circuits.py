"""Imported circuits and the layers that the serving circuits claim: the rows, as frozen records."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.tables import circuit_claims, circuits, profiles
from steerserve.errors import Refusal
from steerserve.rules.steering import binding
from steerserve.rules.steering import claims as claim_rules
from steerserve.rules.steering.binding import CircuitOutline
from steerserve.rules.steering.circuit import Circuit, ImportedCircuit
from steerserve.rules.steering.claims import LayerClaim
from steerserve.rules.text import UNSTORABLE, shown

_AT_ONCE = 20
"""Circuits that are read at once."""


@dataclass(frozen=True, slots=True)
class CircuitRow:
    """One imported circuit, as lists show it. `intensity` is the intensity at which the circuit serves.
    `sensing_enabled` says whether an operator wants its edges to be sensed."""

    id: str
    name: str
    rung: int
    intensity: float
    sensing_enabled: bool
    created_at: datetime
    updated_at: datetime
    description: str | None
    outline: CircuitOutline


@dataclass(frozen=True, slots=True)
class WholeCircuit(CircuitRow):
    """One imported circuit with the facts of its document. The document itself may be large and is read alone."""

    circuit: Circuit


class NameTaken(Exception):
    """Another circuit has the name."""


class LayerTaken(Exception):
    """Another claim leads one of the layers since the claims were read."""


_LISTED = [circuits.c[field.name] for field in fields(CircuitRow)]
_READ = [circuits.c[field.name] for field in fields(WholeCircuit)]


def new_circuit_id() -> str:
    return "circ_" + secrets.token_hex(6)


class CircuitStore:
    """Reads and writes circuits and claims."""

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_circuit_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        self._database = database
        self._room = room
        self._now = now
        self._new_id = new_id

    # ------------------------------------------------------------- circuits

    async def page(
        self, limit: int, offset: int = 0, min_rung: int = 0
    ) -> tuple[list[CircuitRow], int]:
        """Some of the circuits from a rung on, newest first, and how many there are."""
        is_wanted = circuits.c.rung >= min_rung
        page = _newest(select(*_LISTED).where(is_wanted)).limit(limit).offset(offset)
        counted = select(func.count()).select_from(circuits).where(is_wanted)
        async with self._database.read() as connection:
            return await _listed(connection, page), int(await connection.scalar(counted) or 0)

    async def some(self, circuit_ids: Sequence[str]) -> list[CircuitRow]:
        """The circuits with these ids, newest first."""
        async with self._database.read() as connection:
            return await _listed(
                connection, _newest(select(*_LISTED).where(circuits.c.id.in_(circuit_ids)))
            )

    async def outlines(self, min_rung: int = 0) -> list[tuple[str, CircuitOutline]]:
        """The id and the outline of every circuit from a rung on, newest first."""
        wanted = _newest(select(circuits.c.id, circuits.c.outline))
        outlines: list[tuple[str, CircuitOutline]] = []
        async with self._database.read() as connection:
            rows = await connection.execute(wanted.where(circuits.c.rung >= min_rung))
            while chunk := rows.fetchmany(_AT_ONCE):
                outlines += [(circuit_id, outline) for circuit_id, outline in chunk]
                await asyncio.sleep(0)
        return outlines

    async def sensed(self) -> list[CircuitRow]:
        """The circuits whose sensing is enabled, newest first."""
        async with self._database.read() as connection:
            return await _listed(
                connection, _newest(select(*_LISTED).where(circuits.c.sensing_enabled))
            )

    async def circuit(self, circuit_id: str) -> WholeCircuit:
        """Raises:
        Refusal: CIRCUIT_NOT_FOUND.
        """
        async with self._database.read() as connection:
            return await _known(connection, circuit_id)

    async def stored(self, circuit_ids: Sequence[str]) -> list[WholeCircuit]:
        """The circuits with these ids, in this order. An id without a circuit is left out."""
        async with self._database.read() as connection:
            rows = [await _found(connection, circuit_id) for circuit_id in circuit_ids]
        return [row for row in rows if row is not None]

    async def document(self, circuit_id: str) -> str:
        """The JSON text of the document of a circuit, as it came.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        async with self._database.read() as connection:
            row = await _known(connection, circuit_id)
            wanted = select(circuits.c.document).where(circuits.c.id == row.id)
            document: str = (await connection.execute(wanted)).scalar_one()
        return document

    async def taken_names(self, names: Sequence[str]) -> set[str]:
        """Those of the names that circuits have."""
        wanted = select(circuits.c.name).where(circuits.c.name.in_(names))
        async with self._database.read() as connection:
            return set((await connection.execute(wanted)).scalars())

    async def add(
        self,
        name: str,
        imported: ImportedCircuit,
        intensity: float,
        own_id: str | None = None,
    ) -> WholeCircuit:
        """Save a circuit under a new id, or under its own.

        Raises:
            NameTaken: another circuit has exactly this name.
            Refusal: DOCUMENT_STORE_FULL, INSUFFICIENT_DISK.
        """
        await self._room.check_disk(len(imported.document))
        circuit_id, now = own_id or self._new_id(), self._now()
        new = {
            "id": circuit_id,
            "name": name,
            "rung": imported.circuit.rung,
            "circuit": imported.circuit,
            "intensity": intensity,
            "document": imported.document,
            "description": imported.circuit.narrative,
            "outline": binding.outline(imported.circuit),
            "created_at": now,
            "updated_at": now,
        }
        try:
            async with self._database.write() as connection:
                await connection.execute(insert(circuits).values(**new))
                size = func.length(circuits.c.circuit) + func.length(circuits.c.document)
                counted = update(circuits).where(_is(circuit_id)).values(stored_bytes=size)
                await connection.execute(counted)
                await self._room.check(connection)
                return await _known(connection, circuit_id)
        except IntegrityError as error:
            raise NameTaken(name) from error

    async def change(self, circuit_id: str, **changes: object) -> WholeCircuit:
        """Replace columns of one circuit.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        async with self._database.write() as connection:
            await _known(connection, circuit_id)
            new = {**changes, "updated_at": self._now()}
            await connection.execute(update(circuits).where(_is(circuit_id)).values(**new))
            return await _known(connection, circuit_id)

    async def remove(self, circuit_id: str) -> None:
        """Delete a circuit, and with it its claims. Clusters that were made of its layers are slices no more.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        async with self._database.write(frees=True) as connection:
            await _known(connection, circuit_id)
            of_it = update(profiles).where(profiles.c.slice_of == circuit_id)
            await connection.execute(of_it.values(slice_of=None, slice_layer=None))
            await connection.execute(delete(circuits).where(_is(circuit_id)))
            await _appoint(connection)

    # ------------------------------------------------------------- claims

    async def claims(self) -> list[LayerClaim]:
        """All claims, in the order in which they were made."""
        async with self._database.read() as connection:
            return await _claims(connection)

    async def claim(self, circuit_id: str, claims: Sequence[LayerClaim]) -> list[LayerClaim]:
        """Put these claims in the place of all claims of a circuit, and return the claims of all circuits.

        Raises:
            LayerTaken: the database has another claim that leads one of the layers.
        """
        try:
            async with self._database.write() as connection:
                is_its = circuit_claims.c.circuit_id == circuit_id
                await connection.execute(delete(circuit_claims).where(is_its))
                for claim in claims:
                    new = {
                        "circuit_id": circuit_id,
                        "layer": claim.layer,
                        "features": claim.features,
                        "is_composed": claim.is_composed,
                        "claimed_at": self._now(),
                    }
                    await connection.execute(insert(circuit_claims).values(**new))
                return await _appoint(connection)
        except IntegrityError as error:
            raise LayerTaken from error

    async def release(self, circuit_ids: Collection[str]) -> list[LayerClaim]:
        """Delete all claims of these circuits, and return the claims that are left."""
        async with self._database.write() as connection:
            are_theirs = circuit_claims.c.circuit_id.in_(circuit_ids)
            await connection.execute(delete(circuit_claims).where(are_theirs))
            return await _appoint(connection)


async def _appoint(connection: AsyncConnection) -> list[LayerClaim]:
    """Let a claim lead each layer whose leading claim is gone. Returns all claims."""
    claims = await _claims(connection)
    leaders = claim_rules.leaders(claims)
    for leader in leaders:
        is_it = (circuit_claims.c.circuit_id == leader.circuit_id) & (
            circuit_claims.c.layer == leader.layer
        )
        await connection.execute(update(circuit_claims).where(is_it).values(is_composed=False))
    return await _claims(connection) if leaders else claims


async def _claims(connection: AsyncConnection) -> list[LayerClaim]:
    claimed = (
        select(
            circuit_claims.c.circuit_id,
            circuits.c.name.label("circuit_name"),
            circuit_claims.c.layer,
            circuit_claims.c.features,
            circuit_claims.c.is_composed,
        )
        .join_from(circuit_claims, circuits)
        .order_by(circuit_claims.c.id)
    )
    rows = (await connection.execute(claimed)).mappings()
    return [LayerClaim(**row) for row in rows]


def _newest(wanted: Select[Any]) -> Select[Any]:
    return wanted.order_by(circuits.c.created_at.desc(), circuits.c.id)


async def _listed(connection: AsyncConnection, wanted: Select[object]) -> list[CircuitRow]:
    records: list[CircuitRow] = []
    rows = (await connection.execute(wanted)).mappings()
    while chunk := rows.fetchmany(_AT_ONCE):
        records += [CircuitRow(**row) for row in chunk]
        await asyncio.sleep(0)
    return records


async def _known(connection: AsyncConnection, circuit_id: str) -> WholeCircuit:
    """Raises:
    Refusal: CIRCUIT_NOT_FOUND.
    """
    row = await _found(connection, circuit_id)
    if row is None:
        unknown = shown(circuit_id)
        raise Refusal("CIRCUIT_NOT_FOUND", f"no circuit has the id {unknown!r}", circuit_id=unknown)
    return row


async def _found(connection: AsyncConnection, circuit_id: str) -> WholeCircuit | None:
    if UNSTORABLE.search(circuit_id):
        return None
    matching = await connection.execute(select(*_READ).where(_is(circuit_id)))
    row = matching.mappings().first()
    return None if row is None else WholeCircuit(**row)


def _is(circuit_id: str) -> ColumnElement[bool]:
    return circuits.c.id == circuit_id
