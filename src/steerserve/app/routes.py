"""Every route of the service: the routers of `/v1` and of `/api`, each with the owners that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter

from steerserve.api.health import health as health_routes
from steerserve.api.inference import compare as compare_routes
from steerserve.api.inference import jobs as job_routes
from steerserve.api.inference import tokens as token_routes
from steerserve.api.models import models as model_routes
from steerserve.api.residency import leases as lease_routes
from steerserve.api.residency import replicas as replica_routes
from steerserve.api.saes import attachments as attachment_routes
from steerserve.api.saes import saes as sae_routes
from steerserve.api.steering import interventions as intervention_routes
from steerserve.api.steering import steering as steering_routes
from steerserve.app.wiring import Owners
from steerserve.nouns.noun import Noun
from steerserve.nouns.registry import nouns, own_nouns
from steerserve.nouns.runs.noun import RUNS
from steerserve.openai import batches as batch_routes
from steerserve.openai import chat as chat_routes
from steerserve.openai import completions as completion_routes
from steerserve.openai import embeddings as embedding_routes
from steerserve.openai import files as file_routes
from steerserve.openai import models as v1_model_routes
from steerserve.openai import render
from steerserve.openai import responses as response_routes
from steerserve.openai.batch_lines import BatchLines
from steerserve.openai.intake import Intake


def inference(owners: Owners) -> list[APIRouter]:
    """The routers of `/v1`."""
    runs = owners.owner(RUNS)
    parts = render.AnswerParts(owners.generation, owners.settings, owners.metrics, runs)
    intake = Intake(owners.settings, owners.served, owners.profiles, owners.body_reader)
    runs.read_requests_by(intake.again)
    answering = [
        chat_routes.router(intake, parts),
        completion_routes.router(intake, parts),
        response_routes.router(intake, parts),
        embedding_routes.router(intake, parts),
    ]
    owners.batches.run_lines_by(BatchLines(answering, intake))
    return [
        *answering,
        batch_routes.router(owners.batches, owners.body_reader, owners.settings),
        file_routes.router(owners.batches, owners.settings),
        v1_model_routes.router(owners.served),
    ]


def management(owners: Owners) -> list[APIRouter]:
    """The routers of `/api`. Routes with fixed words come before routes that read the same part of the path as an
    id."""
    attached = attachment_routes.Status(
        owners.conductor, owners.steering, owners.monitoring, owners.corpus_results
    )
    own = own_nouns()
    foreign = [noun for name, noun in nouns().items() if name not in own]
    return [
        *_routers(owners, own.values()),
        model_routes.router(
            owners.models, owners.model_downloads, owners.conductor, owners.replicas
        ),
        replica_routes.router(owners.models, owners.replicas),
        lease_routes.router(owners.models, owners.conductor),
        steering_routes.router(owners.steering),
        intervention_routes.router(owners.interventions),
        attachment_routes.router(owners.saes, owners.attachments, attached, owners.settings),
        sae_routes.router(owners.saes, owners.sae_downloads, attached),
        compare_routes.router(owners.compare, owners.settings),
        token_routes.router(owners.speller, owners.settings),
        job_routes.router(owners.jobs),
        health_routes.router(owners.vitals, owners.gauges, owners.around.log_lines),
        # last, so that no package of others takes a route of the service
        *_routers(owners, foreign),
    ]


def _routers(owners: Owners, some: Iterable[Noun[Any]]) -> list[APIRouter]:
    made = map(owners.router, some)
    return [router for router in made if router is not None]
