"""Hands the effects to the service."""

from __future__ import annotations

from steerserve.nouns.effects.owner import EffectMeasurements
from steerserve.nouns.effects.routes import router
from steerserve.nouns.effects.store import EffectStore, effect_evidence, effects
from steerserve.nouns.noun import Noun

EFFECTS = Noun(
    name="effects",
    owner=lambda world: EffectMeasurements(
        world.settings,
        world.conductor,
        world.texts,
        world.edit_parts,
        world.jobs,
        EffectStore(world.database, world.room, world.now),
    ),
    routes=lambda owner, world: router(owner, world.settings),
    tables=(effects, effect_evidence),
    documents={"effects": effects},
    changes={
        ("DELETE", "/api/effects/{effect_id}"): "effects_delete",
        ("PUT", "/api/effects/{effect_id}/evidence/{document_id}"): "evidence_attach",
        ("DELETE", "/api/effects/{effect_id}/evidence/{document_id}"): "evidence_detach",
    },
    questions=("/api/effects",),
)
