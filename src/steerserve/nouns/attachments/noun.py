"""Hands the attached SAEs to the service. The slot has them."""

from __future__ import annotations

from steerserve.control.residency.events import SaeAttached, SaeDetached
from steerserve.nouns.attachments.owner import Attachments
from steerserve.nouns.attachments.routes import Status, router
from steerserve.nouns.noun import Noun, World


def status(world: World) -> Status:
    """Describes what is attached, for answers."""
    return Status(world.conductor, world.steering, world.monitoring, world.corpus_results)


ATTACHMENTS = Noun(
    name="attachments",
    owner=lambda world: Attachments(
        world.conductor,
        world.bus,
        world.catalog,
        world.settings,
        world.contents,
        world.launcher.nodes,
        world.read_free,
    ),
    routes=lambda owner, world: router(world.saes, owner, status(world), world.settings),
    events=(SaeAttached, SaeDetached),
    changes={
        ("POST", "/api/saes/{sae_id}/attach"): "sae_attach",
        ("POST", "/api/saes/attach-set"): "sae_attach_set",
        ("POST", "/api/saes/{sae_id}/detach"): "sae_detach",
    },
)
