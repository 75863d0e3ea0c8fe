"""Hands the recorded answers to the service."""

from __future__ import annotations

from collections.abc import Iterator

from steerserve.control.health.views import Component
from steerserve.nouns.noun import Noun, World
from steerserve.nouns.runs.owner import Runs
from steerserve.nouns.runs.routes import router
from steerserve.nouns.runs.store import RunStore, runs


def _owner(world: World) -> Runs:
    settings = world.settings
    store = RunStore(
        world.database, settings.runs_max_days, settings.runs_max_mb, world.room, world.now
    )
    return Runs(settings, store, world.generation, world.cards.names, world.now)


def _health(owner: Runs) -> Iterator[Component]:
    if owner.fault is not None:
        lost = f"answers that were not recorded: {owner.lost}; {owner.fault}"
        yield Component("runs", "degraded", lost)


RUNS = Noun(
    name="runs",
    owner=_owner,
    routes=lambda owner, world: router(owner, world.settings),
    tables=(runs,),
    changes={
        ("POST", "/api/runs/import"): "runs_import",
        ("DELETE", "/api/runs/{request_id}"): "run_delete",
    },
    questions=("/api/runs/{request_id}/replay",),
    health=_health,
    close=Runs.close,
)
