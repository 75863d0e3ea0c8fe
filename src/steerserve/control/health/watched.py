"""The owners of the state that health, the metrics and their text show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from steerserve.control.health.breakers import Breakers
from steerserve.control.health.gpus import CardReadings
from steerserve.control.health.nodes import NodeReadings
from steerserve.control.health.turns import LoopWatch
from steerserve.control.health.views import Component
from steerserve.control.inference.generate import Generation
from steerserve.control.inference.queue import Queue
from steerserve.control.metrics import Metrics
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.replicas import Replicas
from steerserve.control.residency.resident import Resident
from steerserve.control.steering.serving import Serving
from steerserve.database.db import Database
from steerserve.engines.sandbox.schemas import Checker
from steerserve.messages.engine import Engine
from steerserve.nouns.circuit_sensing.owner import CircuitSensing
from steerserve.nouns.claims.owner import LayerClaims
from steerserve.nouns.cluster_sensing.owner import ClusterSensing
from steerserve.nouns.monitoring.owner import Monitoring
from steerserve.rules.residency.swap import Phase
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The owners, and the figures that several answers show. A figure is read when it is asked for, so that an owner
    that fails costs only its own figures.

    Attributes:
        hub: the owner of the circuit breakers that are shown and reset.
        starts: returns why engines cannot be started, or None if they can.
        noun_health: what nouns with a folder report.
    """

    settings: Settings
    database: Database
    conductor: Conductor
    queue: Queue
    generation: Generation
    cards: CardReadings
    hub: Breakers
    starts: Callable[[], str | None]
    serving: Serving
    claims: LayerClaims
    replicas: Replicas
    nodes: NodeReadings
    noun_health: Callable[[], Iterable[Component]]
    loop: LoopWatch
    metrics: Metrics
    monitoring: Monitoring
    checker: Checker
    sensing: ClusterSensing
    circuit_sensing: CircuitSensing
    since: float = field(default_factory=time.monotonic)

    @property
    def uptime(self) -> float:
        return time.monotonic() - self.since

    @property
    def resident(self) -> Resident | None:
        return self.conductor.resident

    @property
    def engine(self) -> Engine | None:
        return self.resident.engine if self.resident is not None else None

    @property
    def is_loaded(self) -> bool:
        return self.resident is not None and self.resident.phase is Phase.LOADED

    @property
    def model_name(self) -> str | None:
        return self.resident.row.name if self.resident is not None and self.is_loaded else None

    def sae_ids(self) -> list[str]:
        return [attached.sae_id for attached in self.conductor.attachments()]
