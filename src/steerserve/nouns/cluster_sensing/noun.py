"""Hands the sensing of clusters to the service."""

from __future__ import annotations

from steerserve.control.sensing.recorder import Recorder
from steerserve.database.sensing import FiringStore
from steerserve.database.tables import sensing_events
from steerserve.nouns.cluster_sensing.form import ClusterFired
from steerserve.nouns.cluster_sensing.owner import ClusterSensing
from steerserve.nouns.cluster_sensing.routes import router
from steerserve.nouns.noun import Noun, World


def _owner(world: World) -> ClusterSensing:
    settings, seconds = world.settings, world.seconds
    store = FiringStore(
        world.database,
        sensing_events,
        settings.sensing_max_events_per_cluster,
        settings.sensing_max_age_days,
        world.now,
        seconds,
    )
    counted = world.metrics.cluster_sensing
    recorder = Recorder(store, counted, settings.sensing_max_overhead_ms, seconds)
    return ClusterSensing(
        settings, world.profile_store, world.serving, world.conductor, world.bus, recorder
    )


CLUSTER_SENSING = Noun(
    name="cluster_sensing",
    owner=_owner,
    routes=lambda owner, world: router(owner),
    tables=(sensing_events,),
    events=(ClusterFired,),
    changes={
        ("DELETE", "/api/sensing/events"): "sensing_delete",
        ("POST", "/api/sensing/{profile_id}/enable"): "sensing_enable",
        ("POST", "/api/sensing/{profile_id}/disable"): "sensing_disable",
        ("PUT", "/api/sensing/{profile_id}/config"): "sensing_configure",
    },
    close=ClusterSensing.close,
)
