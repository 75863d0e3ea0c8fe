"""What `steerserve doctor` says about the Ray cluster: its nodes, their cards, and what differs from this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from steerserve.engine.ray.cluster import RayCluster
from steerserve.engine.ray.messages import NodeSeen
from steerserve.engine.remote.facts import NodeFacts, checkpoint_seen, read_facts
from steerserve.errors import CannotStart, Refusal
from steerserve.rules.cards import Card
from steerserve.settings import Settings

VERSIONS = ("steerserve", "python", "torch", "transformers")
"""The fields of a node's facts that must be the same on all nodes."""
FOLDERS = ("model_cache_dir", "sae_cache_dir")


def replicas(settings: Settings) -> list[str]:
    """The lines about replicas: one for the cluster, and one for each node."""
    if settings.engine_backend == "local":
        return ["one engine on this machine"]
    folders = {name: str(getattr(settings, name)) for name in FOLDERS}
    try:
        nodes = asyncio.run(_nodes(settings, list(folders.values())))
    except (CannotStart, Refusal) as error:
        return [str(error)]
    here = read_facts("")
    ours = {folder: checkpoint_seen(folder) for folder in folders.values()}
    names = {folder: name.upper() for name, folder in folders.items()}
    where = f"{settings.engine_replicas} on the Ray cluster at {settings.ray_address}"
    return [f"{where}, nodes: {len(nodes)}", *(node_line(n, here, ours, names) for n in nodes)]


async def _nodes(settings: Settings, folders: list[str]) -> list[NodeSeen]:
    cluster = RayCluster(settings)
    try:
        return await cluster.nodes(*folders)
    finally:
        await cluster.close()


def node_line(
    node: NodeSeen, here: NodeFacts, ours: Mapping[str, str | None], names: Mapping[str, str]
) -> str:
    """One node. `ours` are the digests of the folders on this machine, `names` the settings that name the folders."""
    who = f"{node.name} ({node.address})"
    if node.facts is None:
        return f"{who} cannot run replicas: {node.error}"
    amounts = ", ".join(
        f"{name} {node.resources[name]:g}" for name in ("CPU", "GPU") if name in node.resources
    )
    parts = [amounts or "no room for replicas", _cards(node.facts), _versions(node.facts, here)]
    parts += [
        f"{names[folder]} {_folder(folder, mine, node.folders.get(folder))}"
        for folder, mine in ours.items()
    ]
    return f"{who}: {'; '.join(parts)}"


def _cards(facts: NodeFacts) -> str:
    return "cards: " + (", ".join(map(_card, facts.cards)) or "none")


def _card(card: Card) -> str:
    return f"{card.name} with {card.free_mb} of {card.total_mb} MiB free"


def _versions(facts: NodeFacts, here: NodeFacts) -> str:
    different = [
        f"{name} {getattr(facts, name) or '(missing)'} there and {getattr(here, name) or '(missing)'} here"
        for name in VERSIONS
        if getattr(facts, name) != getattr(here, name)
    ]
    if different:
        return f"DIFFERENT: {', '.join(different)}"
    return "the same " + ", ".join(f"{name} {getattr(here, name)}" for name in VERSIONS)


def _folder(folder: str, mine: str | None, theirs: str | None) -> str:
    if mine == theirs:
        return "has the same files" if mine else "has no files here and there"
    if theirs is None:
        return f"MISSING there: {folder}"
    return f"DIFFERENT there: {folder} has other files than here"
