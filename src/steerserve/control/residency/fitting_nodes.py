"""Whether the nodes of a cluster have room for the replicas of a model, before the resident model leaves.

The cluster chooses the node and the cards of each replica. This check is that of one machine (`fitting.py`), made for
every place where a replica may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from steerserve import __version__
from steerserve.control.residency import fitting
from steerserve.control.residency.cluster import SeenNode
from steerserve.control.residency.fitting import HOST, Fit
from steerserve.engine.remote.facts import NodeFacts
from steerserve.errors import Refusal
from steerserve.files.weights import Weights
from steerserve.rules.cards import Card
from steerserve.rules.memory_needs import Device
from steerserve.rules.placement import GpuChoice, GpuRequest
from steerserve.rules.replicas import ReplicaView
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Where a model goes in each replica. `barred` has the nodes that must not serve it, with the reasons."""

    fit: Fit
    barred: dict[str, str]


async def plan(
    weights: Weights,
    quantization: str,
    wanted: GpuRequest,
    settings: Settings,
    *,
    nodes: Sequence[SeenNode],
    files: tuple[str, str | None],
    leaving: Sequence[ReplicaView],
    least: int,
) -> NodePlan:
    """Place a model in the memory that is free on the nodes now.

    `files` are the folder of the model and the digest of its files here. `leaving` are the replicas of the resident
    model, whose memory comes back.

    Raises:
        Refusal: FIELD_NOT_HONOURED, INVALID_LOCAL_PATH, UNSUPPORTED_QUANTIZATION, INSUFFICIENT_MEMORY,
            SPLIT_NOT_HONOURED, MODEL_LOAD_FAILED.
    """
    if wanted.choice is GpuChoice.CARD:
        why = "the cluster chooses the cards of each replica: leave `gpu` out (ENGINE_CARDS sets their number)"
        raise Refusal("FIELD_NOT_HONOURED", why, param="gpu")
    reasons = ((name_of(node), _why_barred(node, *files)) for node in nodes)
    barred = {name: why for name, why in reasons if why is not None}
    cards = settings.engine_cards
    if cards is None:
        cards = int(any(node.resources.get("GPU", 0) >= 1 for node in nodes))
    room, fits, lacks = 0, [], []
    for node in nodes:
        if node.facts is None or name_of(node) in barred:
            continue
        for place in _places(node, node.facts, cards, leaving, settings):
            try:
                devices = [
                    fitting.device(card, settings.transformers_cuda_context_mb, {})
                    for card in place.cards
                ]
                devices = devices or [place.host]
                fit = await fitting.placed(
                    weights, quantization, wanted, place.cards, devices, settings
                )
            except Refusal as lack:
                if lack.code not in ("INSUFFICIENT_MEMORY", "SPLIT_NOT_HONOURED"):
                    raise
                lacks.append((sum(device.free_mb for device in devices), name_of(node), lack))
                continue
            fits.append(fit)
            needed = sum(share.needed_mb for share in fit.plan.shares)
            room += 1 if place.cards else min(place.count, place.host.free_mb // max(1, needed))
    if room < least:
        raise _refusal(room, least, barred, lacks)
    # the tightest place decides, so that the parts of a split model fit every place
    return NodePlan(
        min(fits, key=lambda fit: min(s.device.free_mb for s in fit.plan.shares)), barred
    )


def name_of(node: SeenNode) -> str:
    """The name of a node, as engines on it name it."""
    return node.facts.name if node.facts is not None else node.name


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a replica: some cards of a node, or the memory of a node for as many replicas as `count`."""

    cards: tuple[Card, ...]
    host: Device
    count: int


def _places(
    node: SeenNode, facts: NodeFacts, cards: int, leaving: Sequence[ReplicaView], settings: Settings
) -> Iterator[_Place]:
    """The places of a node that has the resources of a replica. Its cards are taken in the order of their free memory.
    A replica numbers its own cards from 0."""
    asked = {"CPU": 1.0} | settings.engine_resources | ({"GPU": float(cards)} if cards else {})
    count = int(min(node.resources.get(name, 0.0) // amount for name, amount in asked.items()))
    back = _returned(facts.name, leaving, settings.transformers_cuda_context_mb)
    free = min(facts.total_host_mb, facts.free_host_mb + back.get(HOST, 0))
    host = Device(HOST, f"host memory of {facts.name}", free, total_mb=facts.total_host_mb)
    if not cards:
        if count:
            yield _Place((), host, count)
        return
    freed = [
        replace(card, free_mb=min(card.total_mb, card.free_mb + back.get(card.smi_index, 0)))
        for card in facts.cards
        if not (facts.torch or "").endswith("+cpu")  # a build for processors sees no card
    ]
    freed.sort(key=lambda card: card.free_mb, reverse=True)
    for start in range(0, min(count, len(freed) // cards) * cards, cards):
        group = sorted(freed[start : start + cards], key=lambda card: card.smi_index)
        own = (replace(card, torch_index=index) for index, card in enumerate(group))
        yield _Place(tuple(own), host, 1)


def _returned(node: str, leaving: Sequence[ReplicaView], context_mb: int) -> dict[int | str, int]:
    """The MiB that come back on a node when the replicas of the resident model end, by the driver's index of the card,
    or for the host."""
    back: dict[int | str, int] = {}
    for view in leaving:
        if view.node != node:
            continue
        cards = iter(view.gpu_indices)
        for device, held_mb in zip(view.devices, view.memory_mb, strict=True):
            if device == HOST:
                back[HOST] = back.get(HOST, 0) + held_mb
            elif (index := next(cards, None)) is not None:
                back[index] = back.get(index, 0) + held_mb + context_mb
    return back


def _why_barred(node: SeenNode, folder: str, digest: str | None) -> str | None:
    """Why a node must not serve the model of this folder; None if it may."""
    if node.facts is None:
        return f"it did not answer: {node.error}"
    if node.facts.steerserve != __version__:
        return f"it has steerserve {node.facts.steerserve}, and this service is {__version__}"
    seen = node.folders.get(folder)
    if seen is None:
        return f"it does not see {folder}"
    return None if seen == digest else f"it has other files in {folder}"


def _refusal(
    room: int, least: int, barred: dict[str, str], lacks: list[tuple[int, str, Refusal]]
) -> Refusal:
    """The refusal of a load for which the nodes have too few places."""
    nodes = dict(barred)
    for _, name, lack in lacks:
        nodes.setdefault(name, lack.message)
    said = "".join(f"; {name}: {why}" for name, why in sorted(nodes.items()))
    why = f"the cluster has room for {room} of the {least} replicas that a load needs{said}"
    if lacks:
        _, _, largest = max(lacks, key=lambda lack: lack[0])
        return Refusal("INSUFFICIENT_MEMORY", why, **(largest.details | {"nodes": nodes}))
    if any("see" in reason or "files" in reason for reason in barred.values()):
        return Refusal("INVALID_LOCAL_PATH", why, nodes=nodes)
    return Refusal("MODEL_LOAD_FAILED", why, nodes=nodes)
