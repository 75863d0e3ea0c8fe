"""The layers that the serving circuits claim. The claims stand in the database, whose rule decides races.

Which circuits serve is known from the live values (`steering.py`). A claim of a circuit that does not serve any more is
released soon after the circuit has ended, whatever ended it, and before anybody reads the claims. After a crash of the
engine, a circuit keeps its claims until its model is loaded again or given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import structlog

from steerserve.control.bus import Bus
from steerserve.control.steering.events import ServedCircuitsChanged
from steerserve.control.steering.serving import Serving
from steerserve.control.steering.steering import Steering
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.nouns.circuits.form import CircuitsHealth
from steerserve.nouns.circuits.store import CircuitStore, LayerTaken
from steerserve.nouns.claims import rules
from steerserve.nouns.claims.rules import LayerClaim, Wanted
from steerserve.rules.events import Event
from steerserve.rules.steering.served import composed

log = structlog.get_logger(__name__)


class LayerClaims:
    """Owner of the claims. Their copy in memory is the result of the last reading or writing. Claims are read and
    written while the lock `editing` of `Serving` is held, so that no circuit is activated or ended meanwhile."""

    def __init__(self, store: CircuitStore, serving: Serving, steering: Steering, bus: Bus) -> None:
        self._store = store
        self._serving = serving
        self._steering = steering
        self._held: tuple[LayerClaim, ...] = ()
        self._fault: str | None = None
        self._faults = 0
        self._settling: asyncio.Task[object] | None = None
        bus.subscribe(self._hear)

    # ------------------------------------------------------------- reading

    async def current(self) -> list[LayerClaim]:
        """The claims of all circuits that serve, by layer.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        async with self._serving.editing:
            await self.settle()
            return sorted(self._held, key=lambda claim: (claim.layer, claim.circuit_id))

    def health(self) -> CircuitsHealth:
        """The circuits that serve, and whether the claims in memory agree with them."""
        circuits, reasons = self._steering.circuits, self._unreleased() + self._unclaimed()
        return CircuitsHealth(
            serving=len(circuits),
            layers_served=len({layer for circuit in circuits for layer in circuit.layers}),
            layers_composed=len(composed(circuits)),
            claims_degraded=bool(reasons),
            reasons=tuple(reasons),
            claim_faults=self._faults,
        )

    async def checked_health(self) -> CircuitsHealth:
        """The same as `health`, after a release that failed was tried again."""
        if self._fault is not None and not self._serving.editing.locked():
            await self._tidy_alone()
        return self.health()

    # ------------------------------------------------------------- changing

    @asynccontextmanager
    async def taking(
        self, wanted: Wanted, *, allows_overlap: bool
    ) -> AsyncIterator[tuple[int, ...]]:
        """Hold the layers of a circuit that the block makes serve. Gives the layers that the circuit shares with
        others. If the block fails, the circuit has the claims that it had before. The caller holds `editing`.

        Raises:
            Refusal: CIRCUIT_LAYER_CONTENTION, DATABASE_UNAVAILABLE.
        """
        await self.settle()
        before = [claim for claim in self._held if claim.circuit_id == wanted.circuit_id]
        shared = await self._claim(wanted, allows_overlap=allows_overlap)
        try:
            yield shared
        except BaseException:
            await asyncio.shield(self._put_back(wanted.circuit_id, before))
            raise

    async def release(self, circuit_id: str) -> list[int]:
        """Release the claims of one circuit, whether it serves or not. Returns the layers that it held. The caller
        holds `editing`.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        with self._watched():
            held = await self._store.claims()
            self._take(await self._store.release([circuit_id]))
        return sorted(claim.layer for claim in held if claim.circuit_id == circuit_id)

    async def settle(self) -> list[LayerClaim]:
        """Release the claims of circuits that do not serve any more, and return these claims. The caller holds
        `editing`.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        with self._watched():
            self._take(await self._store.claims())
            ended = self._ended()
            if ended:
                self._take(await self._store.release({claim.circuit_id for claim in ended}))
        return ended

    async def tidy(self) -> list[LayerClaim]:
        """The same as `settle`, where a fault of the database is only logged and counted."""
        try:
            return await self.settle()
        except Refusal as refusal:
            log.warning("claims_not_released", reason=refusal.message)
            return []

    async def close(self) -> None:
        """Wait for the end of the release in the background."""
        if self._settling is not None:
            await asyncio.wait([self._settling])

    # ------------------------------------------------------------- inside

    async def _claim(self, wanted: Wanted, *, allows_overlap: bool) -> tuple[int, ...]:
        """Raises:
        Refusal: CIRCUIT_LAYER_CONTENTION, DATABASE_UNAVAILABLE.
        """
        shared = rules.admit(wanted, self._held, allows_overlap=allows_overlap)
        claims = [
            LayerClaim(wanted.circuit_id, wanted.name, layer, tuple(features), layer in shared)
            for layer, features in sorted(wanted.features.items())
        ]
        with self._watched():
            try:
                self._take(await self._store.claim(wanted.circuit_id, claims))
            except LayerTaken as taken:
                # another writer of the database was faster
                self._take(await self._store.claims())
                others = [claim for claim in self._held if claim.circuit_id != wanted.circuit_id]
                raise rules.contention(wanted, others) from taken
        return shared

    async def _put_back(self, circuit_id: str, before: Sequence[LayerClaim]) -> None:
        try:
            with self._watched():
                self._take(await self._store.claim(circuit_id, before))
        except (Refusal, LayerTaken):
            # the next release of the claims of ended circuits takes them
            log.warning("claims_not_put_back", circuit_id=circuit_id)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """An access to the claims. A fault of the database is counted and kept until an access succeeds."""
        try:
            yield
        except Refusal as refusal:
            self._faults += 1
            self._fault = refusal.message
            raise
        self._fault = None

    def _take(self, claims: Sequence[LayerClaim]) -> None:
        slices = {circuit.id for circuit in self._steering.circuits if circuit.is_slice}
        self._held = tuple(replace(claim, is_slice=claim.circuit_id in slices) for claim in claims)

    def _hear(self, event: Event) -> None:
        """Release the claims of circuits that ended without a call to this owner."""
        if isinstance(event, ServedCircuitsChanged) and self._ended():
            # they take turns, so the last one ends last
            self._settling = background.start(self._tidy_alone())

    async def _tidy_alone(self) -> None:
        async with self._serving.editing:
            await self.tidy()

    def _ended(self) -> list[LayerClaim]:
        """The claims that are held by circuits that do not serve."""
        serving = {circuit.id for circuit in self._steering.circuits}
        return [claim for claim in self._held if claim.circuit_id not in serving]

    def _unreleased(self) -> list[str]:
        """The circuits that do not serve and hold layers, because the database did not take the release."""
        if self._fault is None:
            return []
        return [
            f"circuit {claim.circuit_name!r} does not serve and still holds layer {claim.layer}: {self._fault}"
            for claim in self._ended()
        ]

    def _unclaimed(self) -> list[str]:
        """The circuits that serve layers that they do not hold, because an operator released their claims."""
        held = {(claim.circuit_id, claim.layer) for claim in self._held}
        return [
            f"circuit {circuit.name!r} steers layer {layer} and does not hold it; activate it again, or deactivate it"
            for circuit in self._steering.circuits
            for layer in circuit.layers
            if (circuit.id, layer) not in held
        ]
