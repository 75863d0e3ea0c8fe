"""Hands the captures to the service."""

from __future__ import annotations

from steerserve.nouns.captures.owner import Captures
from steerserve.nouns.captures.routes import router
from steerserve.nouns.corpora.noun import CORPORA
from steerserve.nouns.noun import Noun

CAPTURES = Noun(
    name="captures",
    owner=lambda world: Captures(
        world.settings,
        world.texts,
        world.hub,
        world.conductor,
        world.jobs,
        world.paths,
        world.edit_parts,
        world.owner(CORPORA),
        world.now,
    ),
    routes=lambda owner, world: router(owner, world.settings),
    changes={
        ("POST", "/api/captures"): "capture_add",
        ("DELETE", "/api/captures/{capture_id}"): "capture_delete",
    },
    close=Captures.close,
)
