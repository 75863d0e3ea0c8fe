"""The free memory on the devices of the resident model, and the part of it that stays free for its requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import psutil
import structlog

from steerserve.control.residency import fitting
from steerserve.control.residency.cluster import SeenNode
from steerserve.control.residency.gpu_driver import ReadCards
from steerserve.control.residency.resident import Resident
from steerserve.engines.gpus import read as read_cards
from steerserve.errors import Refusal
from steerserve.messages import Measure, Measured
from steerserve.rules.residency import replicas
from steerserve.rules.saes.sets import NodeRoom, Reserves
from steerserve.rules.units import MIB

log = structlog.get_logger(__name__)

SECONDS = 5.0
"""How long the engine may take to tell what it keeps."""

NODES_SECONDS = 10.0
"""How long the nodes of a cluster may take to tell their free memory."""

Read = Callable[[Resident], Awaitable[int | None]]
ReadNodes = Callable[[], Awaitable[Sequence[SeenNode]]]


async def read(resident: Resident, read_cards: ReadCards = read_cards) -> int | None:
    """MiB free on all devices of the model together, with what its engine keeps without using it; None where a driver
    does not tell, and for a model with replicas."""
    engine, facts = resident.running()
    if engine.fleet is not None:
        return None  # each replica has memory of its own: see `on_nodes`
    labels = {label for label in facts.memory_by_device_mb if label != fitting.HOST}
    if not labels:
        return int(psutil.virtual_memory().available) // MIB
    with suppress(Refusal, TimeoutError):
        cards = await fitting.cards_now(read_cards)
        free = [card.free_mb for card in cards if f"cuda:{card.torch_index}" in labels]
        kept = await asyncio.wait_for(engine.ask(Measure()), SECONDS)
        if len(free) == len(labels):
            return sum(free) + _unused_mb(kept)
    return None


async def on_nodes(resident: Resident, read_nodes: ReadNodes) -> list[NodeRoom]:
    """The free memory of the nodes where replicas hold the model, with what their engines keep without using it. A
    node that does not tell is left out; its replicas refuse an SAE for which they lack memory."""
    fleet = resident.running()[0].fleet
    assert fleet is not None
    try:
        async with asyncio.timeout(NODES_SECONDS):
            nodes, kept = await asyncio.gather(read_nodes(), fleet.measure())
    except (Refusal, TimeoutError) as error:
        log.warning("memory_of_nodes_unknown", reason=str(error) or "no answer in time")
        return []
    facts = {node.facts.name: node.facts for node in nodes if node.facts is not None}
    rooms, on_host = [], Counter[str]()
    for view in fleet.replicas():
        known = facts.get(view.node or "")
        if known is None or not replicas.holds_memory(view):
            continue
        if not view.gpu_indices:
            on_host[known.name] += 1
            continue
        free = [card.free_mb for card in known.cards if card.smi_index in view.gpu_indices]
        if len(free) == len(view.gpu_indices):
            label = f"the cards {', '.join(map(str, view.gpu_indices))} of {known.name}"
            unused = _unused_mb(kept[view.name]) if view.name in kept else 0
            rooms.append(NodeRoom(known.name, label, sum(free) + unused))
    return rooms + [
        NodeRoom(name, f"the host {name} for {count} replicas", facts[name].free_host_mb, count)
        for name, count in on_host.items()
    ]


def _unused_mb(measured: Measured) -> int:
    """The MiB that an engine keeps on its cards without using them."""
    return sum(reserved - used for used, reserved in measured.devices.values()) // MIB


async def reserves(resident: Resident) -> Reserves:
    """The memory that the engine keeps free for the KV cache and for passes."""
    engine, _ = resident.running()
    with suppress(Refusal, TimeoutError):
        measured = await asyncio.wait_for(engine.ask(Measure()), SECONDS)
        return Reserves(-(-measured.kv_reserve // MIB), -(-measured.working // MIB))
    return Reserves()
