"""Makes circuits serve, dials them and ends them. Each change of the live values is one step of the epoch.

A circuit passes its gates in this order: evidence, document, SAEs, layers. All gates come before any change, except
that the layers are claimed first. If a later step fails, they are released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.steering.circuit_slices import CircuitSlices
from steerserve.control.steering.circuit_state import (
    CircuitActivation,
    CircuitIntensity,
    CircuitView,
)
from steerserve.control.steering.circuit_views import ReleasedClaims
from steerserve.control.steering.circuits import Circuits
from steerserve.control.steering.claims import LayerClaims
from steerserve.control.steering.reading import DocumentReader
from steerserve.control.steering.serving import Serving
from steerserve.control.steering.steering import Steering
from steerserve.database.circuits import CircuitRow, CircuitStore
from steerserve.errors import DocumentRefusal, Refusal
from steerserve.messages.carried import carried
from steerserve.rules.steering import binding, evidence, hazards
from steerserve.rules.steering import circuit as documents
from steerserve.rules.steering import circuit_serving as rules
from steerserve.rules.steering import live as live_rules
from steerserve.rules.steering.circuit import Circuit
from steerserve.rules.steering.claims import Wanted
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.served import ServedCircuit, owner_of


class CircuitServing:
    """Owner of the decision which circuits serve. It holds the lock `editing` of `Serving`, so that no profile is
    activated meanwhile. The values themselves belong to `Steering`, the claims to `LayerClaims`."""

    def __init__(
        self,
        store: CircuitStore,
        reader: DocumentReader,
        circuits: Circuits,
        claims: LayerClaims,
        slices: CircuitSlices,
        serving: Serving,
        steering: Steering,
        conductor: Conductor,
    ) -> None:
        self._store = store
        self._reader = reader
        self._circuits = circuits
        self._claims = claims
        self._slices = slices
        self._serving = serving
        self._steering = steering
        self._conductor = conductor
        serving.displaces(self._after_profile)

    # ------------------------------------------------------------- activating

    @carried
    async def activate(
        self, circuit_id: str, *, acknowledged: bool, allows_overlap: bool
    ) -> CircuitActivation:
        """Serve a circuit whole or, where SAEs are missing, one of its layers by a cluster.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND; UNVALIDATED_CIRCUIT below rung 2 unless this is acknowledged; VALIDATION_ERROR
                for a damaged document; INVALID_FEATURE_INDEX; SAE_SET_INCOMPLETE; CIRCUIT_LAYER_CONTENTION.
        """
        async with self._serving.editing:
            row = await self._store.circuit(circuit_id)
            if not acknowledged:
                _check_evidence(row)
            circuit = await self._read(row)
            attached = self._conductor.attachments()
            binding.check_indices(circuit, attached)
            bindings = binding.bind(binding.declared(circuit), attached)
            bound = binding.bound_layers(bindings)
            if not bound:
                message = "no attached SAE fits a layer of the circuit"
                raise binding.incomplete(circuit, bindings, message)
            if binding.is_serveable(bindings):
                done = await self._serve_whole(row, circuit, allows_overlap)
            else:
                done = await self._serve_slice(row, circuit, bound[0], allows_overlap)
            served, shared, warnings = done
            return self._activation(
                row, circuit, served, shared, warnings, acknowledged=acknowledged
            )

    async def _serve_whole(
        self, row: CircuitRow, circuit: Circuit, allows_overlap: bool
    ) -> tuple[ServedCircuit, tuple[int, ...], tuple[str, ...]]:
        warnings = [
            *documents.warnings(circuit, self._circuits.intensity(row)),
            *rules.outside(row.intensity, self._circuits.limits(row)),
        ]
        before = await self._serving.active()
        made: list[ServedCircuit] = []

        def step(live: Live, attached: Sequence[Attachment]) -> Live:
            # SAEs may have been attached or detached since the gates
            bindings = binding.bind(binding.declared(circuit), attached)
            if not binding.is_serveable(bindings):
                raise binding.incomplete(circuit, bindings, "an SAE of the circuit is not attached")
            parts = {owner_of(row.id): Placed(binding.values_at(circuit, bindings))}
            made[:] = [self._served(row, circuit.layers, parts)]
            return rules.activate(live, made[0], attached)

        wanted = Wanted(row.id, row.name, circuit.features)
        async with self._claims.taking(wanted, allows_overlap=allows_overlap) as shared:
            after = await self._steering.act(step)
        if before is not None and after.active is None:
            warnings.append(f"{before.name!r} steered a layer of the circuit and was deactivated")
        return made[0], shared, tuple(warnings)

    async def _serve_slice(
        self, row: CircuitRow, circuit: Circuit, layer: int, allows_overlap: bool
    ) -> tuple[ServedCircuit, tuple[int, ...], tuple[str, ...]]:
        wanted = Wanted(row.id, row.name, {layer: circuit.features[layer]}, is_slice=True)
        async with self._claims.taking(wanted, allows_overlap=allows_overlap) as shared:
            intensity, limits = self._circuits.intensity(row), self._circuits.limits(row)
            cluster_id, warnings = await self._slices.serve(row, circuit, layer, intensity)
            served = self._served(row, (layer,), {}, cluster_id)
            await self._steering.act(lambda live, attached: rules.activate(live, served, attached))
        note = f"only layer {layer} of the circuit is served, by the cluster {cluster_id}"
        return served, shared, (note, *rules.outside(row.intensity, limits), *warnings)

    def _served(
        self,
        row: CircuitRow,
        layers: tuple[int, ...],
        parts: Mapping[str, Placed],
        cluster_id: str | None = None,
    ) -> ServedCircuit:
        return ServedCircuit(
            row.id,
            parts,
            self._circuits.intensity(row),
            cluster_id,
            name=row.name,
            rung=row.rung,
            layers=layers,
            intensity_range=self._circuits.limits(row),
        )

    # ------------------------------------------------------------- ending

    @carried
    async def deactivate(self, circuit_id: str) -> tuple[CircuitView, bool]:
        """End a circuit, and return whether values were removed. A circuit that does not serve stays as it is.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND, ENGINE_UNAVAILABLE.
        """
        async with self._serving.editing:
            row = await self._store.circuit(circuit_id)
            was_serving = await self._end(circuit_id)
            return self._circuits.described(row), was_serving

    @carried
    async def remove(self, circuit_id: str) -> None:
        """Delete a circuit, and the clusters that were made of its layers. If it serves, it is ended first.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND; ENGINE_UNAVAILABLE, in which case nothing is deleted.
        """
        async with self._serving.editing:
            await self._store.circuit(circuit_id)
            await self._end(circuit_id)
            await self._slices.remove(circuit_id)
            await self._store.remove(circuit_id)

    async def release(self, circuit_id: str) -> ReleasedClaims:
        """Release the claims of one circuit.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        async with self._serving.editing:
            layers = await self._claims.release(circuit_id)
            warnings = await self._after_release(circuit_id, layers)
        return ReleasedClaims(circuit_id, tuple(layers), warnings)

    # ------------------------------------------------------------- dialing

    @carried
    async def set_intensity(
        self, intensity: float, *, reapply: bool, acknowledged: bool
    ) -> CircuitIntensity:
        """Save the intensity of the one circuit that serves. With `reapply`, its values follow at once; if that fails,
        the old intensity is saved again.

        Raises:
            Refusal: NO_ACTIVE_CIRCUIT, AMBIGUOUS_ACTIVE_CIRCUIT, UNVALIDATED_CIRCUIT, ENGINE_UNAVAILABLE.
        """
        async with self._serving.editing:
            circuit = self._only()
            row = await self._store.circuit(circuit.id)
            if not (circuit.is_slice or acknowledged):
                _check_evidence(row)
            limits = self._circuits.limits(row)
            wanted = rules.held(intensity, limits)
            warnings = list(rules.outside(intensity, limits))
            changed = await self._store.change(row.id, intensity=wanted)
            if circuit.is_slice:
                warnings.append("a cluster serves one layer of the circuit, so nothing was applied")
            if circuit.is_slice or not reapply:
                return CircuitIntensity(
                    self._circuits.described(changed), False, False, tuple(warnings)
                )
            results: list[Live] = []

            def step(live: Live) -> Live:
                results.append(live_rules.redial(live, row.id, wanted))
                return results[-1]

            try:
                await self._steering.everywhere(step)
            except Refusal:
                await self._store.change(row.id, intensity=row.intensity)
                raise
            # the first result is of the live values, others are of values that wait for their model
            return self._redialed(changed, results[0], warnings)

    def _only(self) -> ServedCircuit:
        """The only circuit that serves.

        Raises:
            Refusal: NO_ACTIVE_CIRCUIT, AMBIGUOUS_ACTIVE_CIRCUIT.
        """
        circuits = self._steering.circuits
        if not circuits:
            raise Refusal("NO_ACTIVE_CIRCUIT", "no circuit is active")
        if len(circuits) > 1:
            raise Refusal(
                "AMBIGUOUS_ACTIVE_CIRCUIT",
                f"{len(circuits)} circuits are active; deactivate all but one",
                active_circuits=[{"id": one.id, "name": one.name} for one in circuits],
            )
        return circuits[0]

    def _redialed(self, row: CircuitRow, after: Live, warnings: Sequence[str]) -> CircuitIntensity:
        live, circuit = self._steering.live, rules.served(after, row.id)
        view = self._circuits.described(row)
        if circuit is None:
            return CircuitIntensity(view, False, False, tuple(warnings))
        is_live = live.enabled and live.by(circuit.owner) == after.by(circuit.owner)
        return CircuitIntensity(view, is_live, live.epoch != after.epoch, tuple(warnings))

    # ------------------------------------------------------------- inside

    async def _read(self, row: CircuitRow) -> Circuit:
        """Raises:
        Refusal: VALIDATION_ERROR for a stored document that cannot be read any more.
        """
        try:
            text = await self._store.document(row.id)
            return await self._reader.read(documents.read_text, text)
        except DocumentRefusal as refusal:
            raise Refusal(
                "VALIDATION_ERROR",
                f"the stored document of the circuit is damaged: {refusal.message}",
                circuit_id=row.id,
                errors=refusal.details.get("errors", []),
            ) from refusal

    async def _end(self, circuit_id: str) -> bool:
        """End a circuit if it serves, here or in an engine that will be restored. The caller holds `editing`."""
        was_serving = await self._steering.everywhere(lambda live: live_rules.end(live, circuit_id))
        await self._claims.tidy()
        return was_serving

    async def _after_profile(self) -> list[str]:
        """After the activation of a profile: release the claims of the circuits that it ended."""
        ended = dict.fromkeys(claim.circuit_name for claim in await self._claims.tidy())
        return [f"circuit {name!r} was deactivated" for name in ended]

    async def _after_release(self, circuit_id: str, layers: Sequence[int]) -> tuple[str, ...]:
        """What is remarkable about a release of claims."""
        if any(one.id == circuit_id for one in self._steering.circuits):
            return (
                "the circuit is active: it goes on steering, and does not hold its layers any more",
            )
        if layers:
            return ()
        try:
            await self._store.circuit(circuit_id)
        except Refusal as refusal:
            if refusal.code != "CIRCUIT_NOT_FOUND":
                raise
            return (refusal.message,)
        return ("the circuit held no layer",)

    def _activation(
        self,
        row: CircuitRow,
        circuit: Circuit,
        served: ServedCircuit,
        shared: tuple[int, ...],
        warnings: tuple[str, ...],
        *,
        acknowledged: bool,
    ) -> CircuitActivation:
        view, applied = self._circuits.described(row), None
        if not served.is_slice:
            values = self._steering.live.by(served.owner)
            applied = {
                one.layer: values.get(one.key, {}) for one in view.bindings if one.key is not None
            }
        return CircuitActivation(
            view,
            bound_layers=binding.bound_layers(view.bindings),
            slice_layer=served.layers[0] if served.is_slice else None,
            applied=applied,
            hazards=() if served.is_slice else tuple(hazards.of(circuit)),
            warnings=warnings,
            acknowledged=acknowledged and not evidence.is_validated(row.rung),
            shared=shared,
        )


def _check_evidence(row: CircuitRow) -> None:
    """Raises:
    Refusal: UNVALIDATED_CIRCUIT below rung 2.
    """
    if not evidence.is_validated(row.rung):
        language = evidence.language(row.rung)
        raise Refusal(
            "UNVALIDATED_CIRCUIT",
            f"the evidence of the circuit is {language!r} (rung {row.rung}); acknowledge_unvalidated=true serves it",
            circuit_id=row.id,
            rung=row.rung,
            rung_language=language,
            next_step=evidence.next_step(row.rung),
        )
