"""Every route of the service: the routers of `/v1` and of `/api`, each with the owners that it needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter

from steerserve.api.health import health as health_routes
from steerserve.api.inference import compare as compare_routes
from steerserve.api.inference import tokens as token_routes
from steerserve.app.wiring import Owners
from steerserve.nouns.noun import Noun
from steerserve.nouns.registry import nouns, own_nouns
from steerserve.nouns.runs.noun import RUNS
from steerserve.openai import batches as batch_routes
from steerserve.openai import files as file_routes
from steerserve.openai import inference as inference_routes
from steerserve.openai import models as v1_model_routes
from steerserve.openai import render
from steerserve.openai.batch_lines import BatchLines
from steerserve.openai.intake import Intake


def inference(owners: Owners) -> list[APIRouter]:
    """The routers of `/v1`."""
    runs = owners.owner(RUNS)
    parts = render.AnswerParts(owners.generation, owners.settings, owners.metrics, runs)
    intake = Intake(owners.settings, owners.served, owners.profiles, owners.body_reader)
    runs.read_requests_by(intake.again)
    answering = inference_routes.router(intake, parts)
    owners.batches.run_lines_by(BatchLines(answering, intake))
    return [
        answering,
        batch_routes.router(owners.batches, owners.body_reader, owners.settings),
        file_routes.router(owners.batches, owners.settings),
        v1_model_routes.router(owners.served),
    ]


def management(owners: Owners) -> list[APIRouter]:
    """The routers of `/api`."""
    own = own_nouns()
    foreign = [noun for name, noun in nouns().items() if name not in own]
    ours = APIRouter()
    for router in (
        *_routers(owners, own.values()),
        compare_routes.router(owners.compare, owners.settings),
        token_routes.router(owners.speller, owners.settings),
        health_routes.router(owners.vitals, owners.gauges, owners.around.log_lines),
    ):
        ours.routes += router.routes
    ours.routes.sort(key=_parameters)
    # last, so that no package of others takes a route of the service
    return [ours, *_routers(owners, foreign)]


def _parameters(route: Any) -> list[bool]:
    """Which parts of the path of a route are parameters. In the order of these lists, a route with a fixed word comes
    before routes that read the same part as an id."""
    return [part.startswith("{") for part in route.path.split("/")]


def _routers(owners: Owners, some: Iterable[Noun[Any]]) -> list[APIRouter]:
    made = map(owners.router, some)
    return [router for router in made if router is not None]
