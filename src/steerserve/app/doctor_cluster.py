"""What `steerserve doctor` says about the Ray cluster: its nodes, their cards, and what differs from this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from steerserve.engines.ray.cluster import RayCluster
from steerserve.engines.ray.messages import NodeSeen
from steerserve.engines.remote.facts import NodeFacts, checkpoint_seen, read_facts
from steerserve.errors import CannotStart, Refusal
from steerserve.rules.models.fetching import revision_of
from steerserve.rules.residency.gpus import Card
from steerserve.settings import Settings

VERSIONS = ("steerserve", "python", "torch", "transformers")
"""The fields of a node's facts that must be the same on all nodes."""
NAMED = 8
"""The number of folders that one line names."""
FOLDERS = ("model_cache_dir", "sae_cache_dir")


def replicas(settings: Settings) -> list[str]:
    """The lines about replicas: one for the cluster, and one for each node."""
    if settings.engine_backend == "local":
        return ["one engine on this machine"]
    names = {str(getattr(settings, name)): name.upper() for name in FOLDERS}
    ours = digests(list(names))
    try:
        nodes = asyncio.run(_nodes(settings, list(ours)))
    except (CannotStart, Refusal) as error:
        return [str(error)]
    here = read_facts("")
    where = f"{settings.engine_replicas} on the Ray cluster at {settings.ray_address}"
    return [f"{where}, nodes: {len(nodes)}", *(node_line(n, here, ours, names) for n in nodes)]


def digests(folders: Sequence[str]) -> dict[str, str | None]:
    """The digests of these folders, and of each folder below them that holds files: one model or one SAE."""
    ours = {folder: checkpoint_seen(folder) for folder in folders}
    for folder in folders:
        for place, below, files in os.walk(folder):
            below[:] = sorted(name for name in below if not name.startswith("."))
            if any(not name.startswith(".") for name in files):
                below.clear()  # files further below belong to it
                ours.setdefault(place, checkpoint_seen(place))
    return ours


async def _nodes(settings: Settings, folders: list[str]) -> list[NodeSeen]:
    cluster = RayCluster(settings)
    try:
        return await cluster.nodes(*folders, hub=settings.hf_endpoint)
    finally:
        await cluster.close()


def node_line(
    node: NodeSeen, here: NodeFacts, ours: Mapping[str, str | None], names: Mapping[str, str]
) -> str:
    """One node. `ours` are the digests of the folders on this machine and of the folders below them, `names` the
    settings that name the folders."""
    who = f"{node.name} ({node.address})"
    if node.facts is None:
        return f"{who} cannot run replicas: {node.error}"
    amounts = ", ".join(
        f"{name} {node.resources[name]:g}" for name in ("CPU", "GPU") if name in node.resources
    )
    parts = [amounts or "no room for replicas", _cards(node.facts), _versions(node.facts, here)]
    parts += [
        f"{setting} {_folder(folder, ours, node.folders)}" for folder, setting in names.items()
    ]
    if node.hub_fault is not None:
        parts.append(f"the hub CANNOT be reached from there: {node.hub_fault}")
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


def _folder(folder: str, ours: Mapping[str, str | None], theirs: Mapping[str, str | None]) -> str:
    """A folder of checkpoints on a node. Where it differs, the checkpoints are named that cannot be used there, and
    those that the node would fetch."""
    mine, other = ours[folder], theirs.get(folder)
    if mine == other:
        return "has the same files" if mine else "has no files here and there"
    below = [one for one in ours if one.startswith(f"{folder}{os.sep}")]
    missing = [one for one in below if theirs.get(one) is None]
    changed = [one for one in below if one not in missing and theirs[one] != ours[one]]
    fetched = [one for one in (*missing, *changed) if revision_of(one, [folder]) is not None]
    to_fetch = [_listed("would be fetched there", fetched, folder)] * bool(fetched)
    if other is None:
        return ", ".join([f"MISSING there: {folder}", *to_fetch])
    if not missing and not changed:
        return "has the same models and SAEs, and other files beside them"
    same = f"{len(below) - len(missing) - len(changed)} of {len(below)}"
    missing, changed = ([x for x in part if x not in fetched] for part in (missing, changed))
    differs = "DIFFERENT there" if missing or changed else "is fetched there as needed"
    parts = [f"{differs}: {same} folders of {folder} can be used"]
    parts += [_listed("missing", missing, folder)] * bool(missing)
    parts += [_listed("with other files", changed, folder)] * bool(changed)
    return ", ".join([*parts, *to_fetch])


def _listed(what: str, places: Sequence[str], folder: str) -> str:
    names = [os.path.relpath(place, folder) for place in places]
    more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return f"{what}: {', '.join(names[:NAMED] + more)}"
