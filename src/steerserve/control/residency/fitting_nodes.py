"""Whether the nodes of a cluster have room for the replicas of a model, before the resident model leaves.

The cluster chooses the node and the cards of each replica. This check is that of one machine (`fitting.py`), made for
every place where a replica may go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from steerserve import __version__
from steerserve.control.residency import fitting
from steerserve.control.residency.cluster import SeenNode
from steerserve.control.residency.fitting import HOST, Fit
from steerserve.engines.remote.facts import NodeFacts, why_barred
from steerserve.errors import Refusal
from steerserve.files.weights import Weights
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.memory_needs import Device
from steerserve.rules.residency.placement import GpuChoice, GpuRequest
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Where a model goes in each replica. `barred` has the ids of nodes that must not serve it, each with the name and
    the reason."""

    fit: Fit
    barred: dict[str, str]


async def plan(
    weights: Weights,
    quantization: str,
    wanted: GpuRequest,
    settings: Settings,
    *,
    nodes: Sequence[SeenNode],
    files: tuple[str, str | None] | None,
    leaving: Sequence[ReplicaView] = (),
    staying: Sequence[ReplicaView] = (),
    least: int,
    saes_mb: int = 0,
) -> NodePlan:
    """Find room for `least` more replicas of a model in the memory that is free on the nodes now.

    `files` are the folder of the model and the digest of its files here; None where nodes fetch what they lack.
    `leaving` are replicas whose memory comes back, and `staying` are replicas that keep their memory, their cards and
    their share of a node. `saes_mb` is the memory of the SAEs that each replica gets.

    Raises:
        Refusal: FIELD_NOT_HONOURED, INVALID_LOCAL_PATH, UNSUPPORTED_QUANTIZATION, INSUFFICIENT_MEMORY,
            SPLIT_NOT_HONOURED, MODEL_LOAD_FAILED.
    """
    if wanted.choice is GpuChoice.CARD:
        why = "the cluster chooses the cards of each replica: leave `gpu` out (ENGINE_CARDS sets their number)"
        raise Refusal("FIELD_NOT_HONOURED", why, param="gpu")
    reasons = ((node, _why_barred(node, files)) for node in nodes)
    barred = {node.id: (name_of(node), why) for node, why in reasons if why is not None}
    cards = settings.engine_cards
    if cards is None:
        cards = int(any(node.resources.get("GPU", 0) >= 1 for node in nodes))
    held = Counter(view.node for view in staying)
    room, fits, lacks = 0, [], []
    for node in nodes:
        if node.facts is None or node.id in barred:
            continue
        count = _count(node, cards, settings)
        taken = min(count, held[name_of(node)])
        held[name_of(node)] -= taken  # several nodes of one name share its replicas
        used = {card for v in staying if v.node == name_of(node) for card in v.gpu_indices}
        back = _returned(node.facts.name, leaving, settings.transformers_cuda_context_mb)
        for place in _places(node.facts, cards, count - taken, used, back):
            devices = _devices(place, saes_mb, settings)
            try:
                fit = await fitting.placed(
                    weights, quantization, wanted, place.cards, devices, settings
                )
            except Refusal as lack:
                if lack.code not in ("INSUFFICIENT_MEMORY", "SPLIT_NOT_HONOURED"):
                    raise
                lacks.append((sum(device.free_mb for device in devices), name_of(node), lack))
                continue
            fits.append(fit)
            needed = saes_mb + sum(share.needed_mb for share in fit.plan.shares)
            room += 1 if place.cards else min(place.count, place.host.free_mb // max(1, needed))
    if room < least:
        raise _refusal(room, least, dict(barred.values()), lacks)
    # the tightest place decides, so that the parts of a split model fit every place
    fit = min(fits, key=lambda fit: min(s.device.free_mb for s in fit.plan.shares))
    return NodePlan(fit, {id_: f"{name}: {why}" for id_, (name, why) in barred.items()})


def _devices(place: _Place, saes_mb: int, settings: Settings) -> list[Device]:
    """The devices of a place, without the memory of the SAEs that the replica gets."""
    cards = [
        fitting.device(card, settings.transformers_cuda_context_mb, {}) for card in place.cards
    ]
    return [
        replace(device, free_mb=max(0, device.free_mb - saes_mb))
        for device in cards or [place.host]
    ]


def name_of(node: SeenNode) -> str:
    """The name of a node, as engines on it name it."""
    return node.facts.name if node.facts is not None else node.name


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a replica: some cards of a node, or the memory of a node for as many replicas as `count`."""

    cards: tuple[Card, ...]
    host: Device
    count: int


def _count(node: SeenNode, cards: int, settings: Settings) -> int:
    """For how many replicas with so many cards a node has resources."""
    asked = {"CPU": 1.0} | settings.engine_resources | ({"GPU": float(cards)} if cards else {})
    return int(min(node.resources.get(name, 0.0) // amount for name, amount in asked.items()))


def _places(
    facts: NodeFacts, cards: int, count: int, used: AbstractSet[int], back: Mapping[int | str, int]
) -> Iterator[_Place]:
    """The places of a node for at most `count` replicas. Its cards that no replica has `used` are taken in the order of
    their free memory. A replica numbers its own cards from 0."""
    free = min(facts.total_host_mb, facts.free_host_mb + back.get(HOST, 0))
    host = Device(HOST, f"host memory of {facts.name}", free, total_mb=facts.total_host_mb)
    if not cards:
        if count:
            yield _Place((), host, count)
        return
    freed = [
        replace(card, free_mb=min(card.total_mb, card.free_mb + back.get(card.smi_index, 0)))
        for card in facts.cards
        if card.smi_index not in used
        and not (facts.torch or "").endswith("+cpu")  # a build for processors sees no card
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


def _why_barred(node: SeenNode, files: tuple[str, str | None] | None) -> str | None:
    """Why a node must not serve the model with these files; None if it may."""
    if node.facts is None:
        return f"it did not answer: {node.error}"
    if node.facts.steerserve != __version__:
        return f"it has steerserve {node.facts.steerserve}, and this service is {__version__}"
    return why_barred(*files, node.folders.get(files[0])) if files is not None else None


def _refusal(
    room: int, least: int, barred: dict[str, str], lacks: list[tuple[int, str, Refusal]]
) -> Refusal:
    """The refusal of replicas for which the nodes have too few places."""
    nodes = dict(barred)
    for _, name, lack in lacks:
        nodes.setdefault(name, lack.message)
    said = "".join(f"; {name}: {why}" for name, why in sorted(nodes.items()))
    why = f"the cluster has room for {room} of the {least} replicas that are needed{said}"
    if lacks:
        _, _, largest = max(lacks, key=lambda lack: lack[0])
        return Refusal("INSUFFICIENT_MEMORY", why, **(largest.details | {"nodes": nodes}))
    if any("see" in reason or "files" in reason for reason in barred.values()):
        return Refusal("INVALID_LOCAL_PATH", why, nodes=nodes)
    return Refusal("MODEL_LOAD_FAILED", why, nodes=nodes)
