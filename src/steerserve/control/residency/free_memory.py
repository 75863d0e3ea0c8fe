"""The free memory on the devices of the resident model, and the part of it that stays free for its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psutil

from steerserve.control.cards_driver import ReadCards
from steerserve.control.residency import fitting
from steerserve.control.residency.resident import Resident
from steerserve.engine.cards import read as read_cards
from steerserve.errors import Refusal
from steerserve.rules.sae_set import Reserves
from steerserve.rules.units import MIB

SECONDS = 5.0
"""How long the engine may take to tell what it keeps."""

Read = Callable[[Resident], Awaitable[int | None]]


async def read(resident: Resident, read_cards: ReadCards = read_cards) -> int | None:
    """MiB free on all devices of the model together, with what its engine keeps without using it; None where a driver
    does not tell, and for a model with replicas."""
    engine, facts = resident.running()
    if engine.replicas():
        return (
            None  # each replica has memory of its own, and refuses an SAE for which it lacks memory
        )
    labels = {label for label in facts.memory_by_device_mb if label != fitting.HOST}
    if not labels:
        return int(psutil.virtual_memory().available) // MIB
    with suppress(Refusal, TimeoutError):
        cards = await fitting.cards_now(read_cards)
        free = [card.free_mb for card in cards if f"cuda:{card.torch_index}" in labels]
        kept = await asyncio.wait_for(engine.measure(), SECONDS)
        if len(free) == len(labels):
            return (
                sum(free) + sum(reserved - used for used, reserved in kept.devices.values()) // MIB
            )
    return None


async def reserves(resident: Resident) -> Reserves:
    """The memory that the engine keeps free for the KV cache and for passes."""
    engine, _ = resident.running()
    with suppress(Refusal, TimeoutError):
        measured = await asyncio.wait_for(engine.measure(), SECONDS)
        return Reserves(-(-measured.kv_reserve // MIB), -(-measured.working // MIB))
    return Reserves()
