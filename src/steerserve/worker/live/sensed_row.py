"""What is sensed in one row: its trackers, its firings, and the events that come of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from steerserve import messages as m
from steerserve.nouns.circuit_sensing import rules as edge_sensing
from steerserve.nouns.circuit_sensing.rules import EdgeTracker
from steerserve.nouns.cluster_sensing import rules as sensing
from steerserve.nouns.cluster_sensing.rules import Decode, SensedMember, SpanTracker
from steerserve.parts.row_part import Read, Reader, RowPart, SaeRead
from steerserve.worker.live.armed import ArmedPart, Fires
from steerserve.worker.rows.rows import BatchRow

if TYPE_CHECKING:
    from steerserve.worker.live.sensing import ArmingReader


class SpanSensor:
    """An armed cluster in one row."""

    def __init__(self, part: ArmedPart, cluster: m.ArmedCluster, row: BatchRow, skip: int) -> None:
        self.part = part
        self._cluster = cluster
        self._row = row
        self.tracker = SpanTracker(cluster.max_events, len(row.prompt), skip)
        self._members = [
            SensedMember(member.feature, member.theta, member.label) for member in cluster.members
        ]
        self.is_parted = False

    @property
    def is_over(self) -> bool:
        return self.is_parted or self.tracker.is_over

    def feed(self, fires: Fires) -> list[int]:
        """Take the firings of the next positions. Returns the hot positions."""
        # the positions rise, so the firings at one position follow each other
        places = fires.positions
        changes = np.flatnonzero(places[1:] != places[:-1]) + 1
        bounds = [0, *changes.tolist(), len(places)]
        least = self._cluster.min_k
        hot = [(low, high) for low, high in pairwise(bounds) if high - low >= least]
        if not hot:
            return []
        columns = (fires.columns - self.part.first).tolist()
        activations = fires.activations.tolist()
        found: list[int] = places[[low for low, _ in hot]].tolist()
        for position, (low, high) in zip(found, hot, strict=True):
            pairs = list(zip(columns[low:high], activations[low:high], strict=True))
            self.tracker.feed(position, pairs)
        return found

    def event(
        self, tokens: Sequence[int], read: int, ambient: dict[int, int], ms: float, decode: Decode
    ) -> m.SensedSpans:
        cluster, members = self._cluster, self._members
        reported: list[int] = []
        if cluster.history:
            reported = sensing.reported(list(tokens[:read]), self.tracker)
        thetas = [member.theta for member in members]
        spans = [
            m.SensedSpan(
                span.start,
                span.end,
                span.phase,
                sensing.fired_members(span, members),
                round(sensing.score(span, thetas)[0], sensing.DIGITS),
                sensing.summary(cluster.title, span, members),
                span.is_truncated,
                _window(tokens, span.start, span.end, cluster.context_tokens, decode),
                ambient.get(span.start),
            )
            for span in self.tracker.spans
        ]
        row = self._row
        return m.SensedSpans(
            row.request,
            row.label or "",
            row.choice,
            cluster.subject,
            ms,
            spans,
            cluster.history,
            reported,
        )


class EdgeSensor:
    """An armed circuit in one row."""

    def __init__(self, part: ArmedPart, circuit: m.ArmedCircuit, row: BatchRow) -> None:
        self.part = part
        self._circuit = circuit
        self._row = row
        self._layers = [feature.layer for feature in circuit.features]
        self.tracker = EdgeTracker(
            [(edge.up, edge.down) for edge in circuit.edges],
            self._layers,
            circuit.max_lag,
            circuit.max_events,
            len(row.prompt),
        )
        self.is_over = False

    def feed(self, fires: Fires) -> list[int]:
        """Take the firings of the next positions. Returns the positions of new observations."""
        before = len(self.tracker.observed)
        places = (fires.columns - self.part.first).tolist()
        for one in zip(fires.positions.tolist(), places, fires.activations.tolist(), strict=True):
            self.tracker.feed(*one)
        return [observed.down[0] for observed in self.tracker.observed[before:]]

    def event(
        self, tokens: Sequence[int], _: int, ambient: dict[int, int], ms: float, decode: Decode
    ) -> m.SensedEdges:
        circuit, row = self._circuit, self._row
        edges = []
        for observed in self.tracker.observed:
            edge = circuit.edges[observed.edge]
            start, end = observed.up[0], observed.down[0]
            edges.append(
                m.SensedEdge(
                    edge,
                    self._firing(edge.up, *observed.up),
                    self._firing(edge.down, *observed.down),
                    observed.phase,
                    edge_sensing.summary(circuit.title, edge.name, observed, edge.phrase),
                    observed.is_truncated,
                    _window(tokens, start, end, circuit.context_tokens, decode),
                    ambient.get(end) if len(set(self._layers)) == 1 else None,
                )
            )
        layers = sorted(self.tracker.truncated_layers)
        label = row.label or ""
        return m.SensedEdges(row.request, label, row.choice, circuit.subject, ms, edges, layers)

    def _firing(self, place: int, position: int, activation: float) -> m.FeatureFiring:
        feature = self._circuit.features[place]
        value = round(activation, sensing.DIGITS)
        return m.FeatureFiring(feature.layer, feature.feature, position, value)


class SensedRow(RowPart):
    """What is sensed in one row, under the arming with which it began.

    Attributes:
        read: the number of tokens of the row that were read by passes.
        seconds: the time that sensing took for this row.
        trace: all firings so far, which a later row with this prefix takes over.
        ambient: how many features of the whole SAE are active, at positions of events where that was measured.
    """

    def __init__(self, row: BatchRow, skip: int, reader: ArmingReader) -> None:
        self.row = row
        self.arming = arming = reader.arming
        self._reader = reader
        self.reads = tuple(SaeRead(number, is_before=True) for number in arming.sites)
        self.read = 0
        self.seconds = 0.0
        self.trace: list[Fires] = []
        self.ambient: dict[int, int] = {}
        self.is_stopped = False
        self._sensors: list[SpanSensor | EdgeSensor] = [
            SpanSensor(part, part.subject, row, skip)
            if isinstance(part.subject, m.ArmedCluster)
            else EdgeSensor(part, part.subject, row)
            for part in arming.parts
        ]

    @property
    def reader(self) -> Reader:
        return self._reader

    def reads_in_pass(self) -> Sequence[Read]:
        """Nothing once no coming position matters. A row whose beginning may be kept is read to its end."""
        is_over = not self.row.may_reuse and all(sensor.is_over for sensor in self._sensors)
        return () if self.is_stopped or is_over else self.reads

    def end(self) -> None:
        self._reader.sensing.end_row(self)

    def mark(self) -> Hashable:
        return None if self.is_stopped else self.arming.number

    def notes(self) -> Sequence[Fires]:
        """The firings of the row. They become more while it runs."""
        return self.trace

    def resume(self, length: int, notes: object) -> None:
        self._reader.sensing.flush()  # the firings of the last positions belong to the notes too
        for fires in list(cast("Sequence[Fires]", notes)):
            self.take_firings(fires.where(fires.positions < length))
        self.read = length

    def take_firings(self, fires: Fires) -> list[int]:
        """Take the firings of the next positions. Returns the positions of events."""
        if self.row.may_reuse:
            self.trace.append(fires)
        positions: list[int] = []
        for sensor in self._sensors:
            first, end = sensor.part.first, sensor.part.end
            its = fires
            if len(self._sensors) > 1:
                its = fires.where((fires.columns >= first) & (fires.columns < end))
            if len(its.positions) and not sensor.is_over:
                positions += sensor.feed(its)
        return positions

    def keep_only(self, subjects: set[str]) -> None:
        """Sense nothing more for clusters and circuits that are not armed any more."""
        for sensor in self._sensors:
            if sensor.part.subject.subject not in subjects:
                if isinstance(sensor, SpanSensor):
                    sensor.is_parted = True
                else:
                    sensor.is_over = True

    def events(self, decode: Decode) -> list[m.SensedSpans | m.SensedEdges]:
        """What was sensed, one event for each cluster or circuit."""
        tokens = [*self.row.prompt, *self.row.out]
        ms = round(self.seconds * 1000, 3)
        return [
            sensor.event(tokens, self.read, self.ambient, ms, decode) for sensor in self._sensors
        ]


def _window(tokens: Sequence[int], start: int, end: int, around: int, decode: Decode) -> m.Window:
    made = sensing.context(tokens, start, end, around, decode)
    return m.Window(made.token_ids, made.text, made.parts)
