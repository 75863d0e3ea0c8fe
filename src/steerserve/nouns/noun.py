"""What a noun hands in to the service, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from fastapi import APIRouter
from sqlalchemy import Table

from steerserve.control.bus import Bus
from steerserve.control.health.gpus import CardReadings
from steerserve.control.health.views import Component
from steerserve.control.inference.generate import Generation
from steerserve.control.inference.spelling import Speller
from steerserve.control.inference.texts import TextReader
from steerserve.control.jobs import Jobs
from steerserve.control.metrics import Metrics
from steerserve.control.models.contents import ModelContents
from steerserve.control.models.downloads import ModelDownloads
from steerserve.control.models.served import ServedModels
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.free_memory import Read
from steerserve.control.residency.leases import Seconds
from steerserve.control.residency.replicas import Replicas
from steerserve.control.saes.downloads import SaeDownloads
from steerserve.control.saes.reading import SaeReader
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.steering.interventions import EditParts
from steerserve.control.steering.serving import Serving
from steerserve.control.steering.steering import Steering
from steerserve.control.threads import Threads
from steerserve.database.catalog import Catalog, Clock
from steerserve.database.db import Database
from steerserve.database.room import DocumentRoom
from steerserve.files.client_paths import ClientPaths
from steerserve.hub.client import Hub
from steerserve.hub.downloads import Downloads
from steerserve.nouns.attachments.owner import Attachments
from steerserve.nouns.circuit_sensing.owner import CircuitSensing
from steerserve.nouns.circuits.owner import Circuits
from steerserve.nouns.circuits.store import CircuitStore
from steerserve.nouns.claims.owner import LayerClaims
from steerserve.nouns.cluster_sensing.owner import ClusterSensing
from steerserve.nouns.clusters.owner import Clusters
from steerserve.nouns.directions.owner import Probes, Vectors
from steerserve.nouns.features.owner import Features
from steerserve.nouns.labels.store import Labels
from steerserve.nouns.models.owner import Models
from steerserve.nouns.monitoring.owner import Monitoring
from steerserve.nouns.profiles.owner import Profiles
from steerserve.nouns.profiles.store import ProfileStore
from steerserve.nouns.saes.owner import Saes
from steerserve.rules.events import LiveEvent
from steerserve.settings import Settings

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun(Generic[Owner]):
    """One thing that lives longer than a request.

    Attributes:
        name: the name of its folder; other packages give a name that no folder has.
        owner: makes the owner of its live state, when another owner or a route first needs it.
        routes: makes its routes; None for a noun whose routes another noun has.
        tables: its tables. The migrations of this package make those of its own nouns, and the start makes missing
            tables of other packages.
        documents: which of its tables the limits of stored documents count, by the plural that a refusal names. Each
            has a column `stored_bytes`.
        events: the live events that it publishes.
        changes: what the log calls the changes of its routes, by method and path.
        questions: the paths of its routes that have a body and change nothing.
        health: the parts of the service whose health it reports.
        close: ends its work in the background. All jobs and the engine have ended, and the database is still open.
    """

    name: str
    owner: Callable[[World], Owner]
    routes: Callable[[Owner, World], APIRouter] | None = None
    tables: tuple[Table, ...] = ()
    documents: Mapping[str, Table] = field(default_factory=dict)
    events: tuple[type[LiveEvent], ...] = ()
    changes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    health: Callable[[Owner], Iterable[Component]] | None = None
    close: Callable[[Owner], Awaitable[None]] | None = None


class World:
    """The owners of the service. The owners of nouns get what they need from here. `app/wiring.py` makes the owners in
    an order in which each finds the others that it needs."""

    # the surroundings of the control plane
    settings: Settings
    now: Clock
    seconds: Seconds
    database: Database
    room: DocumentRoom
    hub: Hub
    cluster_hub: Hub
    launcher: Engines
    cards: CardReadings
    read_free: Read

    # the owners of `control/`, and the stores that several owners read
    bus: Bus
    metrics: Metrics
    catalog: Catalog
    paths: ClientPaths
    reader: Threads
    conductor: Conductor
    downloads: Downloads
    contents: ModelContents
    model_downloads: ModelDownloads
    sae_reader: SaeReader
    sae_downloads: SaeDownloads
    profile_store: ProfileStore
    circuit_store: CircuitStore
    corpus_results: CorpusResults
    edit_parts: EditParts
    serving: Serving
    served: ServedModels
    generation: Generation
    texts: TextReader
    speller: Speller

    # the owners of nouns
    models: Models
    replicas: Replicas
    labels: Labels
    saes: Saes
    attachments: Attachments
    steering: Steering
    vectors: Vectors
    probes: Probes
    profiles: Profiles
    clusters: Clusters
    claims: LayerClaims
    circuits: Circuits
    monitoring: Monitoring
    cluster_sensing: ClusterSensing
    circuit_sensing: CircuitSensing
    features: Features
    jobs: Jobs

    def __init__(self) -> None:
        self._of_nouns: dict[str, tuple[Noun[Any], Any]] = {}

    def owner(self, noun: Noun[Owner]) -> Owner:
        """The one owner of a noun, which is made when it is first asked for."""
        if noun.name not in self._of_nouns:
            self._of_nouns[noun.name] = noun, noun.owner(self)
        return cast(Owner, self._of_nouns[noun.name][1])

    def router(self, noun: Noun[Any]) -> APIRouter | None:
        """The routes of a noun."""
        return noun.routes(self.owner(noun), self) if noun.routes is not None else None

    def noun_health(self) -> Iterator[Component]:
        """The health that the nouns report."""
        for noun, owner in self._of_nouns.values():
            if noun.health is not None:
                yield from noun.health(owner)

    async def close_nouns(self) -> None:
        """End the work of their owners in the background. All jobs have ended."""
        for noun, owner in self._of_nouns.values():
            if noun.close is not None:
                await noun.close(owner)
