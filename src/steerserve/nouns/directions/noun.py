"""Hands the vectors and the probes to the service."""

from __future__ import annotations

from steerserve.nouns.directions.owner import BothKinds, Probes, Vectors
from steerserve.nouns.directions.routes import router
from steerserve.nouns.directions.store import ProbeStore, VectorStore, probes, vectors
from steerserve.nouns.noun import Noun

DIRECTIONS = Noun(
    name="directions",
    owner=lambda world: BothKinds(
        Vectors(
            VectorStore(world.database, world.room),
            world.reader,
            world.hub,
            world.conductor,
            world.labels,
            world.paths,
        ),
        Probes(ProbeStore(world.database, world.room), world.reader, world.hub, world.paths),
    ),
    routes=lambda owner, world: router(owner, world.features.examples, world.features.tokens_of),
    tables=(vectors, probes),
    documents={"vectors": vectors, "probes": probes},
    changes={
        ("POST", "/api/vectors"): "vector_add",
        ("DELETE", "/api/vectors/{vector_id}"): "vector_delete",
        ("POST", "/api/probes"): "probe_add",
        ("DELETE", "/api/probes/{probe_id}"): "probe_delete",
    },
)
