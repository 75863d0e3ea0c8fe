"""Every route of the service: the routers of `/v1` and of `/api`, each with the owners that it needs."""

from __future__ import annotations

from fastapi import APIRouter

from steerserve.api import attachments as attachment_routes
from steerserve.api import circuit_sensing as circuit_sensing_routes
from steerserve.api import circuits as circuit_routes
from steerserve.api import clusters as cluster_routes
from steerserve.api import compare as compare_routes
from steerserve.api import features as feature_routes
from steerserve.api import health as health_routes
from steerserve.api import leases as lease_routes
from steerserve.api import models as model_routes
from steerserve.api import monitoring as monitoring_routes
from steerserve.api import profiles as profile_routes
from steerserve.api import replicas as replica_routes
from steerserve.api import saes as sae_routes
from steerserve.api import sensing as sensing_routes
from steerserve.api import steering as steering_routes
from steerserve.api import tokens as token_routes
from steerserve.composition import Owners
from steerserve.v1 import chat as chat_routes
from steerserve.v1 import completions as completion_routes
from steerserve.v1 import embeddings as embedding_routes
from steerserve.v1 import models as v1_model_routes
from steerserve.v1 import render
from steerserve.v1.intake import Intake


def inference(owners: Owners) -> list[APIRouter]:
    """The routers of `/v1`."""
    door = render.Door(owners.generation, owners.settings, owners.metrics, owners.features.labels)
    intake = Intake(owners.settings, owners.served)
    return [
        chat_routes.router(intake, door),
        completion_routes.router(intake, door),
        embedding_routes.router(intake, door),
        v1_model_routes.router(owners.served),
    ]


def management(owners: Owners) -> list[APIRouter]:
    """The routers of `/api`. Routes with fixed words come before routes that read the same part of the path as an
    id."""
    attached = attachment_routes.Status(owners.conductor, owners.steering, owners.monitoring)
    return [
        model_routes.router(
            owners.models, owners.model_downloads, owners.conductor, owners.replicas
        ),
        replica_routes.router(owners.models, owners.replicas),
        lease_routes.router(owners.models, owners.conductor),
        steering_routes.router(owners.steering),
        monitoring_routes.router(owners.monitoring, owners.features.labels),
        feature_routes.router(owners.features),
        attachment_routes.router(owners.saes, owners.attachments, attached, owners.settings),
        sae_routes.router(owners.saes, owners.sae_downloads, attached),
        compare_routes.router(owners.compare, owners.settings),
        token_routes.router(owners.speller, owners.settings),
        profile_routes.router(owners.profiles, owners.serving, owners.reader),
        cluster_routes.router(owners.clusters, owners.cluster_packs, owners.serving),
        sensing_routes.router(owners.sensing),
        circuit_sensing_routes.router(owners.circuit_sensing),
        circuit_routes.router(
            owners.circuits,
            owners.circuit_serving,
            owners.claims,
            owners.circuit_sensing.settled,
        ),
        health_routes.router(owners.vitals, owners.gauges, owners.around.log_lines),
    ]
