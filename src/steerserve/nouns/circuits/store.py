"""Imported circuits and the layers that the serving circuits claim: the rows, as frozen records."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from steerserve.database.catalog import Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.room import UNBOUNDED, DocumentRoom
from steerserve.database.stored import NameTaken, StoredRows
from steerserve.database.tables import circuit_claims, circuits, profiles
from steerserve.nouns.circuits.rules import binding
from steerserve.nouns.circuits.rules.binding import CircuitOutline
from steerserve.nouns.circuits.rules.document import Circuit, ImportedCircuit
from steerserve.nouns.claims import rules as claim_rules
from steerserve.nouns.claims.rules import LayerClaim


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


@dataclass(frozen=True, slots=True)
class OutlinedCircuit:
    """One imported circuit with its outline alone."""

    id: str
    outline: CircuitOutline


class LayerTaken(Exception):
    """Another claim leads one of the layers since the claims were read."""


def new_circuit_id() -> str:
    return "circ_" + secrets.token_hex(6)


class CircuitStore(StoredRows[WholeCircuit]):
    """Reads and writes circuits and claims."""

    def __init__(
        self,
        database: Database,
        now: Clock = utc_now,
        new_id: Callable[[], str] = new_circuit_id,
        room: DocumentRoom = UNBOUNDED,
    ) -> None:
        super().__init__(database, circuits, WholeCircuit, "circuit", now, new_id, room)

    # ------------------------------------------------------------- circuits

    async def page(
        self, limit: int, offset: int = 0, min_rung: int = 0
    ) -> tuple[list[CircuitRow], int]:
        """Some of the circuits from a rung on, newest first, and how many there are."""
        is_wanted = circuits.c.rung >= min_rung
        return await self._page(CircuitRow, limit, offset, is_wanted, is_newest_first=True)

    async def some(self, circuit_ids: Sequence[str]) -> list[CircuitRow]:
        """The circuits with these ids, newest first."""
        is_wanted = circuits.c.id.in_(circuit_ids)
        return await self._all(CircuitRow, is_wanted, is_newest_first=True)

    async def outlines(self, min_rung: int = 0) -> list[OutlinedCircuit]:
        """The id and the outline of every circuit from a rung on, newest first."""
        is_wanted = circuits.c.rung >= min_rung
        return await self._all(OutlinedCircuit, is_wanted, is_newest_first=True)

    async def sensed(self) -> list[CircuitRow]:
        """The circuits whose sensing is enabled, newest first."""
        return await self._all(CircuitRow, circuits.c.sensing_enabled, is_newest_first=True)

    async def stored(self, circuit_ids: Sequence[str]) -> list[WholeCircuit]:
        """The circuits with these ids, in this order. An id without a circuit is left out."""
        async with self._database.read() as connection:
            rows = [await self._found(connection, self._is(one)) for one in circuit_ids]
        return [row for row in rows if row is not None]

    async def document(self, row_id: str) -> str:
        document = await super().document(row_id)
        assert document is not None
        return document

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
        new = {
            "name": name,
            "rung": imported.circuit.rung,
            "circuit": imported.circuit,
            "intensity": intensity,
            "document": imported.document,
            "description": imported.circuit.narrative,
            "outline": binding.outline(imported.circuit),
        }
        return await self._save(new, own_id)

    async def change(self, circuit_id: str, **changes: object) -> WholeCircuit:
        """Replace columns of one circuit.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        return await self._change(circuit_id, changes)

    async def _removed(self, connection: AsyncConnection, row_id: str) -> None:
        """The claims of the circuit are gone with it. Clusters that were made of its layers are slices no more."""
        of_it = update(profiles).where(profiles.c.slice_of == row_id)
        await connection.execute(of_it.values(slice_of=None, slice_layer=None))
        await _appoint(connection)

    def _size(self) -> ColumnElement[int]:
        return func.length(circuits.c.circuit) + func.length(circuits.c.document)

    def _taken(self, name: object) -> NameTaken:
        why = f"a circuit is named {name!r}"
        errors = [{"loc": ["body", "name"], "msg": why}]
        return NameTaken("VALIDATION_ERROR", why, name=name, errors=errors)

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
