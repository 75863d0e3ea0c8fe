"""Circuits: how they are imported, described, served, dialed and ended. Each change of the live values is one step of
the epoch.

A circuit passes its gates in this order: evidence, document, SAEs, layers. All gates come before any change, except
that the layers are claimed first. If a later step fails, they are released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.steering.serving import Serving
from steerserve.control.steering.steering import Steering
from steerserve.control.steering.views import Values
from steerserve.control.threads import Threads
from steerserve.errors import DocumentRefusal, Refusal
from steerserve.messages.carried import carried
from steerserve.nouns.circuits.form import (
    FULL,
    SLICE,
    ActivatedCircuit,
    CircuitDetailRecord,
    CircuitEdgeRecord,
    CircuitList,
    CircuitRecord,
    DeactivatedCircuit,
    ImportedCircuitRecord,
    LayerVerdict,
    RedialledCircuit,
    ReleasedClaims,
    SteeredMember,
)
from steerserve.nouns.circuits.rules import binding, hazards, slices
from steerserve.nouns.circuits.rules import document as documents
from steerserve.nouns.circuits.rules import serving as rules
from steerserve.nouns.circuits.rules.binding import LayerBinding
from steerserve.nouns.circuits.rules.document import Circuit, ImportedCircuit
from steerserve.nouns.circuits.rules.shape import NAME_MAXIMUM
from steerserve.nouns.circuits.store import CircuitRow, CircuitStore
from steerserve.nouns.claims import rules as claim_rules
from steerserve.nouns.claims.owner import LayerClaims
from steerserve.nouns.claims.rules import Wanted
from steerserve.nouns.clusters.owner import Clusters, ImportOptions, OnConflict
from steerserve.nouns.profiles.store import ProfileStore
from steerserve.rules.steering import evidence, served
from steerserve.rules.steering import live as live_rules
from steerserve.rules.steering.documents import parse
from steerserve.rules.steering.intensity import Range, find_limits
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.members import names_to_try
from steerserve.rules.steering.placed import Placed
from steerserve.rules.steering.served import ServedCircuit, owner_of
from steerserve.settings import Settings

Told = TypeVar("Told", bound=CircuitRecord)


class Circuits:
    """Owner of the circuits, and of the decision which of them serve. It changes circuits while it holds the lock
    `editing` of `Serving`, so that no profile is activated meanwhile. The values themselves belong to `Steering`, the
    claims to `LayerClaims`. A circuit for which SAEs are missing serves one of its layers by a cluster."""

    def __init__(
        self,
        store: CircuitStore,
        profiles: ProfileStore,
        reader: Threads,
        clusters: Clusters,
        claims: LayerClaims,
        serving: Serving,
        steering: Steering,
        conductor: Conductor,
        settings: Settings,
    ) -> None:
        self._store = store
        self._profiles = profiles
        self._reader = reader
        self._clusters = clusters
        self._claims = claims
        self._serving = serving
        self._steering = steering
        self._conductor = conductor
        self._envelope = Range(settings.circuit_intensity_min, settings.circuit_intensity_max)
        serving.displaces(self._after_profile)

    # ------------------------------------------------------------- reading

    async def page(
        self, *, min_rung: int, is_serveable: bool | None, limit: int, offset: int
    ) -> CircuitList:
        """Circuits from a rung on, newest first. With `is_serveable`, only those that can, or cannot, be served whole
        by the SAEs that are attached now. The active circuit is the one that was activated first of those that
        serve."""
        if is_serveable is None:
            rows, total = await self._store.page(limit, offset, min_rung)
        else:
            attached = self._conductor.attachments()
            ids = [
                one.id
                for one in await self._store.outlines(min_rung)
                if binding.is_serveable(binding.bind(one.outline.needs, attached)) is is_serveable
            ]
            rows, total = await self._store.some(ids[offset : offset + limit]), len(ids)
        active = next((circuit.id for circuit in self._steering.circuits), None)
        return CircuitList([self._record(CircuitRecord, row) for row in rows], active, total)

    async def active(self) -> Sequence[CircuitRecord]:
        """The circuits that serve, in the order of their activation."""
        rows = await self._store.stored([one.id for one in self._steering.circuits])
        return [self._steered(CircuitRecord, row) for row in rows]

    async def detail(self, circuit_id: str) -> CircuitDetailRecord:
        """A circuit with the range of its dial and its hazards.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        row = await self._store.row(circuit_id)
        circuit, limits = row.circuit, self._limits(row)
        return self._steered(
            CircuitDetailRecord,
            row,
            dial_range=(limits.lowest, limits.highest),
            sensing_enabled=row.sensing_enabled,
            members=[
                SteeredMember(layer, member.feature_idx, member.label, member.value)
                for layer, of_layer in circuit.members.items()
                for member in of_layer
            ],
            edges=[
                CircuitEdgeRecord(
                    edge_key=edge.key,
                    up=edge.up,
                    down=edge.down,
                    edge_type=edge.kind,
                    rung=edge.rung,
                    rung_language=evidence.language(edge.rung),
                    effect_size=edge.effect_size,
                    weight_prior=edge.weight_prior,
                )
                for edge in circuit.edges
            ],
            hazards=hazards.find_hazards(circuit),
        )

    async def document(self, circuit_id: str) -> str:
        """The JSON text of the document of a circuit, as it was imported.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND.
        """
        return await self._store.document(circuit_id)

    # ------------------------------------------------------------- importing

    async def add_body(
        self, body: bytes, on_conflict: OnConflict, own_id: str | None = None
    ) -> ImportedCircuitRecord:
        """Save the circuit in the body of an import.

        Raises:
            DocumentRefusal: PAYLOAD_TOO_LARGE, UNKNOWN_KIND, VALIDATION_ERROR.
            Refusal: VALIDATION_ERROR for a body that is not JSON, and for a name that is taken.
        """
        imported = await self._reader.run(parse, body, documents.imported)
        return await self.add(imported, on_conflict, own_id)

    async def add(
        self,
        imported: ImportedCircuit,
        on_conflict: OnConflict,
        own_id: str | None = None,
    ) -> ImportedCircuitRecord:
        """Save a circuit. A circuit whose name is taken is renamed, or refused. `own_id` is the id of the record, by
        default a new one.

        Raises:
            Refusal: VALIDATION_ERROR for a name that is taken.
        """
        circuit = imported.circuit
        intensity = rules.INTENSITY if circuit.intensity is None else circuit.intensity
        names = names_to_try(circuit.name, NAME_MAXIMUM, may_rename=on_conflict == "rename")
        row = await self._store.first_free(
            names,
            lambda name: self._store.add(name, imported, intensity, own_id),
            told=circuit.name,
        )
        limits = self._limits(row)
        warnings = documents.warnings(circuit, limits.highest) + limits.outside(intensity)
        return self._record(ImportedCircuitRecord, row, warnings=warnings)

    # ------------------------------------------------------------- activating

    @carried
    async def activate(
        self, circuit_id: str, *, acknowledged: bool, allows_overlap: bool
    ) -> ActivatedCircuit:
        """Serve a circuit whole or, where SAEs are missing, one of its layers by a cluster.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND; UNVALIDATED_CIRCUIT below rung 2 unless this is acknowledged; VALIDATION_ERROR
                for a damaged document; INVALID_FEATURE_INDEX; SAE_SET_INCOMPLETE; CIRCUIT_LAYER_CONTENTION.
        """
        async with self._serving.editing:
            row = await self._store.row(circuit_id)
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
            layer = None if binding.is_serveable(bindings) else bound[0]
            more, warnings = await self._serve(row, circuit, layer, allows_overlap)
            return self._steered(
                ActivatedCircuit,
                row,
                bound_layers=binding.bound_layers(self._bindings(row)),
                slice_layer=layer,
                applied_per_layer=self._applied(row) if layer is None else None,
                hazards=hazards.find_hazards(circuit) if layer is None else [],
                warnings=tuple(warnings),
                acknowledged_unvalidated=acknowledged and not evidence.is_validated(row.rung),
                **more,
            )

    async def _serve(
        self, row: CircuitRow, circuit: Circuit, layer: int | None, allows_overlap: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Serve a circuit whole, or one layer by a cluster. Returns what an answer says of shared layers, and
        warnings."""
        intensity, limits = self._intensity(row), self._limits(row)
        features = circuit.features if layer is None else {layer: circuit.features[layer]}
        before = await self._serving.active() if layer is None else None
        outside = limits.outside(row.intensity)
        cluster_id: str | None = None

        def step(live: Live, attached: Sequence[Attachment]) -> Live:
            parts = {}
            if cluster_id is None:
                # SAEs may have been attached or detached since the gates
                bindings = binding.bind(binding.declared(circuit), attached)
                if not binding.is_serveable(bindings):
                    message = "an SAE of the circuit is not attached"
                    raise binding.incomplete(circuit, bindings, message)
                parts = {owner_of(row.id): Placed(binding.values_at(circuit, bindings))}
            now = ServedCircuit(
                row.id,
                parts,
                intensity,
                cluster_id,
                name=row.name,
                rung=row.rung,
                layers=tuple(features) if cluster_id else circuit.layers,
                limits=limits,
            )
            return rules.activate(live, now, attached)

        wanted = Wanted(row.id, row.name, features, is_slice=layer is not None)
        async with self._claims.taking(wanted, allows_overlap=allows_overlap) as shared:
            if layer is None:
                warnings = [*documents.warnings(circuit, intensity), *outside]
            else:
                cluster_id, told = await self._serve_slice(row, circuit, layer, intensity)
                note = f"only layer {layer} of the circuit is served, by the cluster {cluster_id}"
                warnings = [note, *outside, *told]
            after = await self._steering.act(step)
        if before is not None and after.active is None:
            warnings.append(f"{before.name!r} steered a layer of the circuit and was deactivated")
        more = {"composed_layers": shared, claim_rules.OVERRIDDEN: True} if shared else {}
        return more, warnings

    async def _serve_slice(
        self, row: CircuitRow, circuit: Circuit, layer: int, intensity: float
    ) -> tuple[str, tuple[str, ...]]:
        """Activate the cluster of a layer, and return its id and warnings. The cluster of an earlier activation is used
        again, or replaced where the circuit has another intensity by now.

        Raises:
            Refusal: SAE_SET_INCOMPLETE where the cluster cannot be saved and bound, or not be activated.
        """
        text = await self._store.document(row.id)
        imported = await self._reader.run(slices.imported, text, circuit, row.id, layer, intensity)
        saved = None
        for earlier in await self._profiles.slices(row.id, layer):
            if await self._clusters.document(earlier.id) == imported.document:
                saved = earlier
                break
            await self._profiles.remove(earlier.id)
        if saved is None:
            columns = {"slice_of": row.id, "slice_layer": layer}
            item = await self._clusters.add(imported, ImportOptions(columns=columns))
            if item.profile_id is None or item.status != "imported":
                raise slices.incomplete(circuit, layer, f"slice_import_{item.status}", item.error)
            saved = await self._clusters.get(item.profile_id)
        try:
            report = await self._serving.activate_row(saved, displaces=False)
        except Refusal as refusal:
            reason = "slice_activation_failed"
            raise slices.incomplete(circuit, layer, reason, refusal.message) from refusal
        return saved.id, tuple(report.warnings)

    def _applied(self, row: CircuitRow) -> dict[str, Values]:
        """The live values of a circuit by layer."""
        values = self._steering.live.by(owner_of(row.id))
        return {
            str(one.layer): {str(index): v for index, v in sorted(values.get(one.key, {}).items())}
            for one in self._bindings(row)
            if one.key is not None
        }

    # ------------------------------------------------------------- ending

    @carried
    async def deactivate(self, circuit_id: str) -> DeactivatedCircuit:
        """End a circuit. A circuit that does not serve stays as it is.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND, ENGINE_UNAVAILABLE.
        """
        async with self._serving.editing:
            row = await self._store.row(circuit_id)
            was_serving = await self._end(circuit_id)
            return self._steered(DeactivatedCircuit, row, cleared_steering=was_serving)

    @carried
    async def remove(self, circuit_id: str) -> None:
        """Delete a circuit, and the clusters that were made of its layers. If it serves, it is ended first. A cluster
        that an operator renamed or activated by hand stays.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND; ENGINE_UNAVAILABLE, in which case nothing is deleted.
        """
        async with self._serving.editing:
            await self._store.row(circuit_id)
            await self._end(circuit_id)
            for row in await self._profiles.slices(circuit_id):
                if row.id != self._serving.profile_id:
                    await self._profiles.remove(row.id)
            await self._store.remove(circuit_id)

    async def _end(self, circuit_id: str) -> bool:
        """End a circuit if it serves, here or in an engine that will be restored. The caller holds `editing`."""
        was_serving = await self._steering.everywhere(lambda live: live_rules.end(live, circuit_id))
        await self._claims.tidy()
        return was_serving

    async def _after_profile(self) -> list[str]:
        """After the activation of a profile: release the claims of the circuits that it ended."""
        ended = dict.fromkeys(claim.circuit_name for claim in await self._claims.tidy())
        return [f"circuit {name!r} was deactivated" for name in ended]

    async def release(self, circuit_id: str) -> ReleasedClaims:
        """Release the claims of one circuit.

        Raises:
            Refusal: DATABASE_UNAVAILABLE.
        """
        async with self._serving.editing:
            layers = await self._claims.release(circuit_id)
            warnings: tuple[str, ...] = ()
            if any(one.id == circuit_id for one in self._steering.circuits):
                warnings = (
                    "the circuit is active: it goes on steering, and does not hold its layers any more",
                )
            elif not layers:
                try:
                    await self._store.row(circuit_id)
                    warnings = ("the circuit held no layer",)
                except Refusal as refusal:
                    if refusal.code != "CIRCUIT_NOT_FOUND":
                        raise
                    warnings = (refusal.message,)
        return ReleasedClaims(circuit_id, tuple(layers), warnings)

    # ------------------------------------------------------------- dialing

    @carried
    async def set_intensity(
        self, intensity: float, *, reapply: bool, acknowledged: bool
    ) -> RedialledCircuit:
        """Save the intensity of the one circuit that serves. With `reapply`, its values follow at once; if that fails,
        the old intensity is saved again.

        Raises:
            Refusal: NO_ACTIVE_CIRCUIT, AMBIGUOUS_ACTIVE_CIRCUIT, UNVALIDATED_CIRCUIT, ENGINE_UNAVAILABLE.
        """
        async with self._serving.editing:
            circuit = self._only()
            row = await self._store.row(circuit.id)
            if not (circuit.is_slice or acknowledged):
                _check_evidence(row)
            limits = self._limits(row)
            wanted = limits.held(intensity)
            warnings = limits.outside(intensity)
            changed = await self._store.change(row.id, intensity=wanted)
            if circuit.is_slice:
                warnings += ("a cluster serves one layer of the circuit, so nothing was applied",)
            results: list[Live] = []

            def step(live: Live) -> Live:
                results.append(live_rules.redial(live, row.id, wanted))
                return results[-1]

            if reapply and not circuit.is_slice:
                try:
                    await self._steering.everywhere(step)
                except Refusal:
                    await self._store.change(row.id, intensity=row.intensity)
                    raise
            # the first result is of the live values, others are of values that wait for their model
            live, after = self._steering.live, results[0] if results else Live()
            now, owner = after.serving(row.id), owner_of(row.id)
            return self._steered(
                RedialledCircuit,
                changed,
                reapplied=now is not None and live.enabled and live.by(owner) == after.by(owner),
                superseded=now is not None and live.epoch != after.epoch,
                warnings=warnings,
            )

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

    # ------------------------------------------------------------- inside

    async def _read(self, row: CircuitRow) -> Circuit:
        """Raises:
        Refusal: VALIDATION_ERROR for a stored document that cannot be read any more.
        """
        try:
            text = await self._store.document(row.id)
            return await self._reader.run(documents.read_text, text)
        except DocumentRefusal as refusal:
            raise Refusal(
                "VALIDATION_ERROR",
                f"the stored document of the circuit is damaged: {refusal.message}",
                circuit_id=row.id,
                errors=refusal.details.get("errors", []),
            ) from refusal

    def _limits(self, row: CircuitRow) -> Range:
        """The lowest and the highest intensity of a circuit."""
        return find_limits(row.outline.intensity_range, self._envelope, self._envelope)

    def _intensity(self, row: CircuitRow) -> float:
        """The saved intensity of a circuit, held within its limits: the intensity at which the circuit serves."""
        return self._limits(row).held(row.intensity)

    def _bindings(self, row: CircuitRow) -> tuple[LayerBinding, ...]:
        return binding.bind(row.outline.needs, self._conductor.attachments())

    def _record(self, kind: type[Told], row: CircuitRow, **more: Any) -> Told:
        """A circuit in the form in which the routes answer it. `more` are the fields that `kind` adds or that are not
        as in a list."""
        bindings = self._bindings(row)
        now = next((one for one in self._steering.circuits if one.id == row.id), None)
        mode = None if now is None else SLICE if now.is_slice else FULL
        fields: dict[str, Any] = {
            "id": row.id,
            "name": row.name,
            "description": row.description,
            "rung": row.rung,
            "rung_language": evidence.language(row.rung),
            "rung_next_step": evidence.next_step(row.rung),
            "validated": evidence.is_validated(row.rung),
            "edge_count": row.outline.edge_count,
            "layers": row.outline.layers,
            "serveable": binding.is_serveable(bindings),
            "is_active": now is not None,
            "serving_mode": mode,
            "intensity": self._intensity(row),
            "steering": None,
            "composed_layers": (),
            "per_sae_warnings": [
                LayerVerdict(bound.layer, bound.sae_id, bound.verdict, bound.reason)
                for bound in bindings
            ],
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        return kind(**(fields | more))

    def _steered(self, kind: type[Told], row: CircuitRow, **more: Any) -> Told:
        """The same with whether the circuit steers, and the layers that it shares."""
        live, circuits = self._steering.live, self._steering.circuits
        now = live.serving(row.id)
        steering = {
            "steering": now is not None and rules.is_steering(live, now),
            "composed_layers": tuple(
                layer
                for circuit in circuits
                if circuit.id == row.id
                for layer in circuit.layers
                if layer in served.composed(circuits)
            ),
        }
        return self._record(kind, row, **(steering | more))


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
