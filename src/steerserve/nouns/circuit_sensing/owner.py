"""Circuit sensing: which circuits the engine senses, and the record of the firings of their edges.

A circuit is sensed while it serves and an operator has enabled its sensing. Several circuits are sensed at once, each
for itself. The record of a circuit has the wish of the operator; this module follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from steerserve import messages as m
from steerserve.control.bus import Bus
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.control.sensing.arming import ArmedAt
from steerserve.control.sensing.recorder import Recorder
from steerserve.control.sensing.sensing_views import SensingIntent
from steerserve.control.sensing.sensor import Sensor
from steerserve.control.steering.events import ServedCircuitsChanged
from steerserve.control.steering.steering import Steering
from steerserve.messages.carried import carried
from steerserve.messages.engine import Engine
from steerserve.nouns.circuit_sensing import rules
from steerserve.nouns.circuit_sensing.form import (
    CircuitFired,
    CircuitSensingChange,
    CircuitSensingState,
    EdgeFirings,
    SensedCircuitReport,
    edge_firing,
)
from steerserve.nouns.circuit_sensing.rules import AttachedLayer, EdgePlan
from steerserve.nouns.circuits.rules import binding
from steerserve.nouns.circuits.rules.document import Circuit
from steerserve.nouns.circuits.store import CircuitStore, WholeCircuit
from steerserve.nouns.cluster_sensing import rules as sensing
from steerserve.nouns.cluster_sensing.rules import Thresholds
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.sensing.firings import EdgeFiringRecord, edge_facts, edge_record
from steerserve.rules.steering import evidence
from steerserve.settings import Settings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A circuit that serves and is to be sensed, and the plan of its edges."""

    row: WholeCircuit
    plan: EdgePlan
    lag: int


_Armed = ArmedAt[tuple[m.ArmedCircuit, ...], tuple[SensedCircuitReport, ...]]


class CircuitSensing(Sensor[tuple[m.ArmedCircuit, ...], tuple[SensedCircuitReport, ...]]):
    """Decides which circuits are armed."""

    NOUN = "circuit sensing"
    FOLLOWS = ServedCircuitsChanged

    def __init__(
        self,
        settings: Settings,
        store: CircuitStore,
        steering: Steering,
        conductor: Conductor,
        bus: Bus,
        recorder: Recorder,
    ) -> None:
        super().__init__(conductor, bus, recorder)
        self._settings = settings
        self._store = store
        self._steering = steering
        recorder.publish(lambda row: bus.publish(CircuitFired(edge_facts(row))))
        self._thresholds = Thresholds(
            settings.circuit_sensing_epsilon, settings.circuit_sensing_theta_floor
        )
        self._truncated: tuple[int, ...] = ()
        self._sensed = self._cut_off = 0

    # ------------------------------------------------------------- reading

    @property
    def armed_count(self) -> int:
        """How many circuits an engine senses now."""
        armed = self._arming.now
        return len(armed.message) if armed is not None else 0

    async def status(self) -> CircuitSensingState:
        await self._catch_up()
        armed, now = self._arming.now, self._serving_ids()
        enabled = await self._store.sensed()
        rows = await self._store.stored([row.id for row in enabled if row.id in now])
        serving = [self._candidate(row) for row in rows]
        known = {row.id for row in rows}
        circuits = armed.facts if armed is not None else ()
        lags = [circuit.max_token_lag for circuit in circuits]
        unsensable = (edge for one in serving for edge in one.plan.unsensable)
        first = next(iter(circuits), None)
        return CircuitSensingState(
            note=evidence.OBSERVATION,
            armed=bool(circuits),
            paused_reason=_paused(serving, circuits),
            circuit_id=first.circuit_id if first else None,
            circuit_name=first.circuit_name if first else None,
            layers=tuple(sorted({layer for one in circuits for layer in one.layers})),
            sensable_edges=sum(one.sensable_edges for one in circuits),
            unsensable_edges=tuple(unsensable),
            max_token_lag=max(lags, default=self._settings.circuit_sensing_max_token_lag),
            last_request_overhead_ms=self._overhead,
            truncated_layers=self._truncated,
            requests_sensed=self._sensed,
            requests_truncated=self._cut_off,
            events_recorded=self.recorder.written,
            ws_dropped=0,  # publishing an event inside the service cannot fail
            ws_throttled=self.recorder.throttled,
            enabled_circuits=tuple(
                SensingIntent(row.id, row.name, row.id in now)
                for row in enabled
                # a circuit may have been deleted between the two reads
                if row.id not in now or row.id in known
            ),
            circuits=circuits,
        )

    async def events(
        self,
        limit: int,
        circuit_id: str | None = None,
        edge_key: str | None = None,
        since: datetime | None = None,
    ) -> EdgeFirings:
        """The newest events first, and how many there are."""
        scope = {"subject": circuit_id, "edge_key": edge_key}
        rows, total = await self.recorder.newest(limit, **scope, since=since)
        return EdgeFirings(total, [edge_record(row) for row in rows])

    async def event(self, event_id: int) -> EdgeFiringRecord:
        """Raises:
        Refusal: CIRCUIT_SENSING_EVENT_NOT_FOUND.
        """
        return edge_record(await self._row(event_id))

    # ------------------------------------------------------------- editing

    @carried
    async def enable(self, circuit_id: str, *, enabled: bool = True) -> CircuitSensingChange:
        """Enable or disable the sensing of a circuit.

        Raises:
            Refusal: CIRCUIT_NOT_FOUND; VALIDATION_ERROR where the engine refuses; the sensing stays enabled then.
        """
        row = await self._store.row(circuit_id)
        if row.sensing_enabled != enabled:
            row = await self._store.change(circuit_id, sensing_enabled=enabled)
        why = await self._arming.arm(self._wanted)
        if why is not None:
            state = "enabled" if enabled else "disabled"
            message = f"sensing is {state}, but the engine refuses: {why.message}"
            details = {"circuit_id": circuit_id, "reason": why.message}
            raise refuse_value(["path", "circuit_id"], why.message, message, **details)
        plan = self._candidate(row).plan
        armed = self._arming.now
        is_armed = armed is not None and any(one.circuit_id == circuit_id for one in armed.facts)
        message = self._message(row, plan, is_armed=is_armed)
        return CircuitSensingChange(circuit_id, enabled, is_armed, plan.unsensable, message)

    def _message(self, row: WholeCircuit, plan: EdgePlan, *, is_armed: bool) -> str:
        if not row.sensing_enabled:
            return "sensing is disabled"
        if row.id not in self._serving_ids():
            return "sensing is enabled; the circuit does not serve, and is sensed once it does"
        if not is_armed:
            return "sensing is enabled; no edge of the circuit can be observed now"
        edges = len(plan.edges)
        return f"sensing is enabled; {edges} of {edges + len(plan.unsensable)} edges are observed"

    # ------------------------------------------------------------- arming

    def _serving_ids(self) -> set[str]:
        return {circuit.id for circuit in self._steering.live.circuits}

    async def _wanted(self) -> _Armed | None:
        """What is to be armed: the circuits that serve, whose sensing is enabled, and of which an edge can be
        observed."""
        served = [circuit.id for circuit in self._steering.live.circuits]
        rows = await self._store.stored(served)
        sensed = (self._candidate(row) for row in rows if row.sensing_enabled)
        candidates = [one for one in sensed if one.plan.edges]
        if not candidates:
            return None
        engine, _ = self._conductor.loaded().running()
        message = tuple(self._armed(one) for one in candidates)
        keys = {feature.key for circuit in message for feature in circuit.features}
        attachments = tuple(one for one in self._conductor.attachments() if one.key in keys)
        facts = tuple(_facts(one) for one in candidates)
        return ArmedAt(engine, attachments, message, facts)

    def _candidate(self, row: WholeCircuit) -> _Candidate:
        circuit = row.circuit
        overridden = circuit.sensing.max_token_lag
        lag = self._settings.circuit_sensing_max_token_lag if overridden is None else overridden
        maxima = [
            (layer, member.feature_idx, member.max_activation)
            for layer, members in circuit.members.items()
            for member in members
        ]
        thresholds = self._thresholds.overridden(circuit.sensing)
        attached = attached_layers(circuit, self._conductor.attachments())
        return _Candidate(row, rules.plan(circuit.edges, attached, maxima, thresholds), lag)

    def _armed(self, candidate: _Candidate) -> m.ArmedCircuit:
        row, plan = candidate.row, candidate.plan
        attached = attached_layers(row.circuit, self._conductor.attachments())
        places = {at: place for place, at in enumerate(plan.thetas)}
        settings, asked = self._settings, row.circuit.sensing.context_tokens
        return m.ArmedCircuit(
            subject=row.id,
            title=row.name,
            features=[
                m.CircuitFeature(attached[layer].key, layer, feature, theta)
                for (layer, feature), theta in plan.thetas.items()
            ],
            edges=[
                m.CircuitEdge(
                    edge.key,
                    places[edge.up.layer, edge.up.feature_idx or 0],
                    places[edge.down.layer, edge.down.feature_idx or 0],
                    edge.rung,
                    evidence.language(edge.rung),
                    edge.kind,
                )
                for edge in plan.edges
            ],
            max_lag=candidate.lag,
            max_events=settings.circuit_sensing_max_events_per_request,
            context_tokens=sensing.context_tokens(asked, settings.circuit_sensing_context_tokens),
        )

    # ------------------------------------------------------------- events

    async def _send(self, engine: Engine, message: tuple[m.ArmedCircuit, ...] | None) -> None:
        await engine.change(m.setting(circuits=message or ()))

    async def _sync(self) -> None:
        why = await self._arming.arm(self._wanted)
        if why is not None:
            log.warning("circuits_not_armed", reason=why.message)

    def _listen(self, engine: Engine) -> None:
        engine.on_edges = self._take

    def _take(self, told: m.SensedEdges) -> None:
        self._truncated = tuple(told.truncated_layers)
        self._sensed += 1
        self._cut_off += bool(told.truncated_layers)
        self._record(told, [edge_firing(told, edge) for edge in told.edges])


def attached_layers(circuit: Circuit, attached: Sequence[Attachment]) -> dict[int, AttachedLayer]:
    """The SAE of each layer that has one for the circuit: the SAE that serves its members there, or else the only SAE
    at the layer."""
    bound = {one.layer: one for one in binding.bind(binding.declared(circuit), attached)}
    layers: dict[int, AttachedLayer] = {}
    for layer in {sae.layer for sae in attached}:
        there = [sae for sae in attached if sae.layer == layer]
        served = bound.get(layer)
        if served is not None:
            there = [sae for sae in there if sae.key == served.key]
        if len(there) == 1:
            layers[layer] = AttachedLayer(there[0].key, there[0].d_sae)
    return layers


def _facts(candidate: _Candidate) -> SensedCircuitReport:
    row, plan = candidate.row, candidate.plan
    return SensedCircuitReport(
        row.id, row.name, tuple(plan.layers), len(plan.edges), plan.unsensable, candidate.lag
    )


def _paused(serving: Sequence[_Candidate], armed: Sequence[SensedCircuitReport]) -> str | None:
    """Why a circuit that serves, and whose sensing is enabled, is not armed."""
    known = {circuit.circuit_id for circuit in armed}
    for one in serving:
        if one.row.id not in known:
            why = "the engine refuses" if one.plan.edges else "no edge can be observed"
            return f"{one.row.name!r} is not sensed: {why}"
    return None
