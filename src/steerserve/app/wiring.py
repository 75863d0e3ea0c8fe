"""Makes every owner of the service once, and gives each the other owners that it needs.

A noun that has a folder in `nouns/` needs no line here. To add another owner, make it in the method of its room, after
the owners that it needs, and add its routes in `app/routes.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

from steerserve.control.bus import Bus
from steerserve.control.client_paths import client_paths
from steerserve.control.health.breakers import AllBreakers, Breakers
from steerserve.control.health.gauges import Gauges
from steerserve.control.health.gpus import CardReadings
from steerserve.control.health.health import Vitals
from steerserve.control.health.nodes import NodeReadings
from steerserve.control.health.turns import LoopWatch
from steerserve.control.health.watched import Watched
from steerserve.control.inference.batch_models import BatchModels
from steerserve.control.inference.batches import Batches
from steerserve.control.inference.compare import Compare
from steerserve.control.inference.generate import Generation
from steerserve.control.inference.lookups import Lookups
from steerserve.control.inference.queue import Queue
from steerserve.control.inference.spelling import Speller
from steerserve.control.inference.texts import TextReader
from steerserve.control.metrics import Metrics
from steerserve.control.models.contents import ModelContents
from steerserve.control.models.downloads import ModelDownloads
from steerserve.control.models.served import ServedModels
from steerserve.control.residency import free_memory
from steerserve.control.residency.cluster import EngineCluster
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engines import Engines
from steerserve.control.residency.free_memory import Read
from steerserve.control.residency.leases import Seconds
from steerserve.control.residency.load_counts import count_load
from steerserve.control.saes.downloads import SaeDownloads
from steerserve.control.saes.reading import SaeReader
from steerserve.control.sensing.corpus_results import CorpusResults
from steerserve.control.steering.interventions import EditParts
from steerserve.control.steering.serving import Serving
from steerserve.control.threads import Threads
from steerserve.database.batches import BatchStore
from steerserve.database.catalog import Catalog, Clock, utc_now
from steerserve.database.db import Database
from steerserve.database.files import FileStore
from steerserve.database.room import DocumentRoom
from steerserve.database.tables import batches, files
from steerserve.engines.gpus import package_version
from steerserve.engines.ray.cluster import RayCluster
from steerserve.engines.sandbox.schemas import Checker
from steerserve.hub.child import Downloaders
from steerserve.hub.client import Hub, cluster_hub
from steerserve.hub.downloads import Downloads
from steerserve.logs.recent import RecentLines
from steerserve.nouns.attachments.noun import ATTACHMENTS
from steerserve.nouns.captures.noun import CAPTURES
from steerserve.nouns.circuit_sensing.noun import CIRCUIT_SENSING
from steerserve.nouns.circuits.noun import CIRCUITS
from steerserve.nouns.circuits.store import CircuitStore
from steerserve.nouns.claims.noun import CLAIMS
from steerserve.nouns.cluster_sensing.noun import CLUSTER_SENSING
from steerserve.nouns.clusters.noun import CLUSTERS
from steerserve.nouns.corpora.store import CorpusStore
from steerserve.nouns.directions.noun import DIRECTIONS
from steerserve.nouns.features.noun import FEATURES
from steerserve.nouns.jobs.noun import JOBS
from steerserve.nouns.labels.noun import LABELS
from steerserve.nouns.models.noun import MODELS
from steerserve.nouns.monitoring.noun import MONITORING
from steerserve.nouns.noun import World
from steerserve.nouns.profiles.noun import PROFILES
from steerserve.nouns.profiles.store import ProfileStore
from steerserve.nouns.registry import nouns
from steerserve.nouns.replicas.noun import REPLICAS
from steerserve.nouns.saes.noun import SAES
from steerserve.nouns.steering.noun import STEERING
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts outside of the control plane that the owners use. Tests replace the engines, the cards and the clock by
    doubles."""

    database: Database
    launcher: Engines
    downloaders: Downloaders
    hub: Hub
    cluster_hub: Hub
    breakers: Breakers
    cards: CardReadings
    checker: Checker
    log_lines: RecentLines = field(default_factory=RecentLines)
    now: Clock = utc_now
    seconds: Seconds = time.monotonic
    read_free: Read = free_memory.read


def surroundings(settings: Settings, cluster: EngineCluster | None = None) -> Surroundings:
    """The surroundings of a service with these settings. With ENGINE_BACKEND=ray, replicas run on the nodes of
    `cluster`, by default those of the cluster at RAY_ADDRESS.

    Raises:
        CannotStart: the extra `ray` is needed, and not installed.
    """
    if cluster is None and settings.engine_backend == "ray":
        cluster = RayCluster(settings)
    downloaders = Downloaders(settings.model_cache_dir)
    hub, clusters = Hub(settings, downloaders), cluster_hub(settings, downloaders)
    return Surroundings(
        database=Database(settings.database_url, home=settings.steerserve_home),
        launcher=Engines(settings, cluster=cluster),
        downloaders=downloaders,
        hub=hub,
        cluster_hub=clusters,
        breakers=AllBreakers([hub, clusters]),
        cards=CardReadings(torch_version=package_version("torch")),
        checker=Checker(
            # at most half of the waiting room, so that requests without a schema have room beside costly schemas
            max(1, (settings.max_concurrent_requests + settings.max_pending_requests) // 2)
        ),
        # the ids of lines begin with the time of the start in milliseconds
        log_lines=RecentLines(before=int(time.time() * 1000)),
    )


class Owners(World):
    """The owners, room by room in the order of `control/`."""

    def __init__(self, settings: Settings, around: Surroundings) -> None:
        super().__init__()
        self.settings = settings
        self.around = around
        self.database, self.now = around.database, around.now
        self.hub, self.cards = around.hub, around.cards
        self.bus = Bus()
        self.metrics = Metrics()
        self.bus.subscribe(partial(count_load, self.metrics))
        self.catalog = Catalog(around.database)
        self.paths = client_paths(settings)
        self.seconds, self.cluster_hub = around.seconds, around.cluster_hub
        self.read_free = around.read_free
        documents = {kind: one for noun in nouns().values() for kind, one in noun.documents.items()}
        kinds = list(documents)
        self.room = DocumentRoom(
            around.database.folder,
            settings.max_stored_documents,
            settings.stored_documents_mb,
            settings.disk_reserve_mb,
            tables=tuple(dict.fromkeys(documents.values())),
            kinds=f"{', '.join(kinds[:-1])} and {kinds[-1]}",
        )
        self.labels = self.owner(LABELS)
        # A document may take a second. In one thread, documents take turns: however many arrive at once, the event loop
        # shares the interpreter with one of them. Requests have their own thread, so that none waits for an import.
        self.reader = Threads("documents", 1)
        self.body_reader = Threads("documents", 1)
        self._make_residency()
        self._make_library()
        self._make_interventions()
        self._make_observing()
        self._make_requests()
        self._make_batches()
        self._make_vitals()

    async def close(self) -> None:
        """End the work in the background, and then close the database, which that work reads and writes. No request is
        read any more."""
        self.conductor.is_closing = True
        await self.batches.close()
        await self.jobs.close()
        await self.sae_downloads.close()
        await self.downloads.close()
        await self.contents.close()
        await self.conductor.close()
        await self.nodes.close()
        await self.launcher.close()
        # the end of the model has changed what is sensed and which circuits serve
        await self.close_nouns()
        self.reader.close()
        self.body_reader.close()
        await self.around.downloaders.close()
        await self.around.checker.close()
        await self.around.database.close()

    def _make_residency(self) -> None:
        around = self.around
        self.launcher = around.launcher
        self.conductor = Conductor(
            self.settings, self.catalog, around.launcher, self.bus, around.now, around.seconds
        )
        self.replicas = self.owner(REPLICAS)

    def _make_library(self) -> None:
        around, settings, catalog, bus = self.around, self.settings, self.catalog, self.bus
        self.downloads = Downloads(around.hub)
        self.model_downloads = ModelDownloads(settings, catalog, around.hub, bus, self.downloads)
        self.contents = ModelContents(catalog, self.conductor)
        bus.subscribe(self.contents.took)
        self.models = self.owner(MODELS)
        self.sae_reader = SaeReader(self.conductor, around.launcher)
        self.sae_downloads = SaeDownloads(
            settings, catalog, around.hub, bus, self.downloads, self.sae_reader
        )
        self.saes = self.owner(SAES)

    def _make_interventions(self) -> None:
        conductor, around = self.conductor, self.around
        self.attachments, self.steering = self.owner(ATTACHMENTS), self.owner(STEERING)
        self.profile_store = ProfileStore(around.database, room=self.room)
        self.circuit_store = CircuitStore(around.database, room=self.room)
        stored = self.owner(DIRECTIONS)
        self.vectors, self.probes = stored.vectors, stored.probes
        # monitoring is made after the owners of steering
        corpora = CorpusStore(around.database, self.settings.corpora_max_mb, self.room, around.now)
        self.corpus_results = CorpusResults(corpora, conductor)
        self.edit_parts = EditParts(
            self.settings,
            self.vectors,
            self.probes,
            lambda key, index: self.monitoring.counted(key, index),
            self.corpus_results.largest,
            lambda source, place: self.owner(CAPTURES).values(source, place),
        )
        self.serving = Serving(
            self.profile_store,
            self.steering,
            conductor,
            self.catalog,
            self.settings,
            self.edit_parts,
        )
        self.profiles, self.clusters = self.owner(PROFILES), self.owner(CLUSTERS)
        self.claims = self.owner(CLAIMS)
        self.circuits = self.owner(CIRCUITS)

    def _make_observing(self) -> None:
        self.monitoring = self.owner(MONITORING)
        self.cluster_sensing = self.owner(CLUSTER_SENSING)
        self.circuit_sensing = self.owner(CIRCUIT_SENSING)
        self.features = self.owner(FEATURES)
        self.jobs = self.owner(JOBS)

    def _make_requests(self) -> None:
        settings = self.settings
        self.queue = Queue(
            settings.max_concurrent_requests,
            settings.max_pending_requests,
            settings.queue_duration_window,
        )
        self.served = ServedModels(self.catalog, self.conductor)
        self.generation = Generation(
            settings,
            self.conductor,
            self.queue,
            self.profiles,
            self.serving,
            self.metrics,
            self.monitoring,
            self.cluster_sensing,
            self.circuit_sensing,
            Lookups(self.edit_parts, self.features, self.corpus_results, self.around.checker),
        )
        self.bus.subscribe(self.generation.took)
        self.speller = Speller(settings, self.conductor)
        self.texts = TextReader(self.conductor, self.queue)
        self.compare = Compare(
            self.generation,
            self.served,
            self.conductor,
            self.serving,
            self.metrics,
        )

    def _make_batches(self) -> None:
        settings, around = self.settings, self.around
        room = DocumentRoom(
            around.database.folder,
            settings.max_batch_documents,
            settings.batch_storage_mb,
            settings.disk_reserve_mb,
            tables=(files, batches),
            kinds="files and batches",
            setting="MAX_BATCH_DOCUMENTS",
        )
        store = BatchStore(around.database, room, around.now)
        stored = FileStore(around.database, room, around.now)
        models = BatchModels(self.conductor, self.catalog, self.attachments, self.bus)
        self.batches = Batches(settings, store, stored, models, self.queue, around.now)

    def _make_vitals(self) -> None:
        around = self.around
        self.nodes = NodeReadings(around.launcher.nodes)
        self.loop_watch = LoopWatch()
        watched = Watched(
            settings=self.settings,
            database=around.database,
            conductor=self.conductor,
            queue=self.queue,
            generation=self.generation,
            cards=around.cards,
            hub=around.breakers,
            starts=around.launcher.failure,
            serving=self.serving,
            claims=self.claims,
            replicas=self.replicas,
            nodes=self.nodes,
            noun_health=self.noun_health,
            loop=self.loop_watch,
            metrics=self.metrics,
            monitoring=self.monitoring,
            checker=around.checker,
            sensing=self.cluster_sensing,
            circuit_sensing=self.circuit_sensing,
        )
        self.vitals, self.gauges = Vitals(watched), Gauges(watched)
