"""Hands monitoring to the service."""

from __future__ import annotations

from steerserve.nouns.monitoring.form import MonitoringActivation, MonitoringState
from steerserve.nouns.monitoring.owner import Monitoring
from steerserve.nouns.monitoring.routes import router
from steerserve.nouns.noun import Noun

MONITORING = Noun(
    name="monitoring",
    owner=lambda world: Monitoring(
        world.conductor,
        world.bus,
        world.now,
        world.settings.monitoring_contexts,
        world.corpus_results,
    ),
    routes=lambda owner, world: router(owner, world.features.labels, world.features.examples),
    events=(MonitoringState, MonitoringActivation),
    changes={
        ("POST", "/api/monitoring/configure"): "monitoring_configure",
        ("POST", "/api/saes/monitoring"): "monitoring_configure",
        ("POST", "/api/monitoring/enable"): "monitoring_enable",
        ("DELETE", "/api/monitoring/history"): "monitoring_delete",
        ("DELETE", "/api/monitoring/statistics"): "monitoring_reset",
    },
    questions=("/api/monitoring/statistics/top",),
)
