"""Hands the profiles to the service."""

from __future__ import annotations

from steerserve.database.tables import profiles
from steerserve.nouns.noun import Noun
from steerserve.nouns.profiles.owner import Profiles
from steerserve.nouns.profiles.routes import router

PROFILES = Noun(
    name="profiles",
    owner=lambda world: Profiles(
        world.profile_store, world.serving, world.conductor, world.catalog, world.edit_parts
    ),
    routes=lambda owner, world: router(owner, world.serving, world.reader),
    tables=(profiles,),
    documents={"profiles": profiles},
    changes={
        ("POST", "/api/profiles"): "profile_add",
        ("POST", "/api/profiles/save-current"): "profile_add",
        ("POST", "/api/profiles/import"): "profile_import",
        ("PATCH", "/api/profiles/{profile_id}"): "profile_change",
        ("DELETE", "/api/profiles/{profile_id}"): "profile_delete",
        ("POST", "/api/profiles/{profile_id}/activate"): "profile_activate",
        ("POST", "/api/profiles/{profile_id}/deactivate"): "profile_deactivate",
    },
)
