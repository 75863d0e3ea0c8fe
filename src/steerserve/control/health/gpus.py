"""Keeps the last reading of the cards. A reading blocks, so it runs in a thread of its own; only one runs at a time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

import psutil

from steerserve.control.health.nodes import NodeReadings, card_status
from steerserve.control.health.views import (
    CardFigures,
    CardReport,
    CardTotals,
    HostMemory,
    MemoryParts,
    ModelMemory,
)
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.gpu_driver import PATIENCE, DriverAnswer, ReadCards, ask
from steerserve.control.residency.resident import Resident
from steerserve.database.catalog import utc_now
from steerserve.engines import gpus as driver
from steerserve.errors import Refusal
from steerserve.messages import Measure, Measured
from steerserve.rules.inference.names import CHECKPOINT, GGUF
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.swap import Phase
from steerserve.rules.units import MIB

MEASURE_SECONDS = 1.0
"""Seconds that the engine has to answer how much memory it holds."""
NOT_MEASURED = "not_measured_by_torch"


@dataclass(frozen=True, slots=True)
class CardReading:
    """`reason` says why there are no cards, or why some are missing. `is_late` says that the driver has not answered in
    time."""

    cards: tuple[Card, ...]
    reason: str | None
    read_at: datetime
    taken: float
    is_late: bool = False


class CardReadings:
    """Owner of the last reading.

    Args:
        read: asks the driver, and blocks. An exception of this call becomes the reason in the reading.
        clock: gives seconds that never go back.
        torch_version: the version of the installed tensor library, None if there is none. A build for processors only
            (`+cpu`) sees no card.
    """

    def __init__(
        self,
        read: ReadCards = driver.read,
        clock: Callable[[], float] = time.monotonic,
        torch_version: str | None = None,
    ) -> None:
        self._read = read
        self._clock = clock
        self.are_seen = torch_version is not None and not torch_version.endswith("+cpu")
        self._under_way: asyncio.Future[CardReading] | None = None
        self.last: CardReading | None = None

    def names(self) -> list[str]:
        """The names of the GPUs in the last reading."""
        return [card.name for card in self.last.cards] if self.last is not None else []

    async def reading(self, max_age: float = 0.0, patience: float = PATIENCE) -> CardReading:
        """A reading of the cards that is at most `max_age` seconds old. With 0, the cards are read anew.

        If the driver has not answered within `patience` seconds, the reading has no cards, and says so as its reason.
        """
        last = self.last
        if last is not None and self._clock() - last.taken < max_age:
            return last
        try:
            return await asyncio.wait_for(asyncio.shield(self.begin_reading()), patience)
        except TimeoutError:
            reason = f"the driver has not answered for {patience:g} s"
            return CardReading((), reason, utc_now(), self._clock(), is_late=True)

    def begin_reading(self) -> asyncio.Future[CardReading]:
        """Begin a reading, or return the reading that is running."""
        if self._under_way is not None:
            return self._under_way
        coming: asyncio.Future[CardReading] = asyncio.get_running_loop().create_future()

        def end_reading(asked: asyncio.Future[DriverAnswer]) -> None:
            answer = asked.result()
            self.last = CardReading(answer.cards, answer.reason, utc_now(), self._clock())
            self._under_way = None
            if not coming.done():
                coming.set_result(self.last)

        ask(self._read, "cards").add_done_callback(end_reading)
        self._under_way = coming
        return coming


async def report(cards: CardReadings, conductor: Conductor, nodes: NodeReadings) -> CardReport:
    """Every card of this machine, read now. Cards that hold a part of the resident model also show the memory that the
    tensor library uses. The nodes of a cluster were read a few seconds before."""
    asked = conductor.resident
    reading, measured, (seen, why) = await asyncio.gather(
        cards.reading(), _measured(asked), nodes.reading()
    )
    resident = conductor.resident
    figures = measured[None].devices if None in measured else {}
    placed = _placed(resident)
    is_gguf = resident is not None and resident.row.engine == GGUF
    return CardReport(
        reading.read_at,
        reading.reason,
        [
            card_status(
                card if cards.are_seen else replace(card, torch_index=None),
                figures.get(f"cuda:{card.torch_index}"),
                is_placed=card.torch_index in placed,
                engine_memory=NOT_MEASURED if is_gguf else None,
            )
            for card in reading.cards
        ],
        _host(),
        seen,
        why,
        _model_memory(asked, measured),
    )


def _host() -> HostMemory:
    memory = psutil.virtual_memory()
    return HostMemory(int(memory.total) // MIB, int(memory.available) // MIB)


async def _measured(resident: Resident | None) -> Mapping[str | None, Measured]:
    """The memory of each replica by its name, or of the one engine process under None. Empty if an engine does not
    answer in time."""
    if resident is None or resident.engine is None or resident.phase is not Phase.LOADED:
        return {}
    with suppress(TimeoutError, Refusal):
        async with asyncio.timeout(MEASURE_SECONDS):
            if resident.engine.fleet is not None:
                return dict((await resident.engine.fleet.measure()).items())
            return {None: await resident.engine.ask(Measure())}
    return {}


def _model_memory(
    resident: Resident | None, measured: Mapping[str | None, Measured]
) -> ModelMemory | None:
    parts = [
        MemoryParts(
            replica,
            part.device,
            *map(_whole_mb, (part.weights, part.cache, part.saes, part.process)),
        )
        for replica, answer in measured.items()
        for part in answer.parts
    ]
    return ModelMemory(resident.row.id, parts) if resident is not None and parts else None


def _whole_mb(size: int | None) -> int | None:
    return None if size is None else size // MIB


def _placed(resident: Resident | None) -> set[int]:
    """Indices of the cards on which the tensor library holds the resident model."""
    if resident is None or resident.facts is None or resident.row.engine != CHECKPOINT:
        return set()
    if resident.engine is not None and resident.engine.fleet is not None:
        return set()  # the replicas run on the cards of nodes
    return {int(index) for index in re.findall(r"cuda:(\d+)", resident.facts.device)}


def totals(reading: CardReading) -> CardTotals:
    """The totals over all cards. A number that no card reports is None."""
    cards = reading.cards
    return CardTotals(
        gpu_utilization=_over(_mean, [card.utilization for card in cards]),
        gpu_memory_used_mb=_over(sum, [card.used_mb for card in cards]),
        gpu_memory_total_mb=_over(sum, [card.total_mb for card in cards]),
        gpu_temperature=_over(max, [card.temperature for card in cards]),
        gpu_count=len(cards),
        gpus=[
            CardFigures(
                card.smi_index,
                card.uuid,
                card.name,
                card.utilization,
                card.used_mb,
                card.total_mb,
                card.temperature,
            )
            for card in cards
        ],
    )


def _over(fold: Callable[[list[int]], int], numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return fold(known) if known else None


def _mean(numbers: list[int]) -> int:
    return round(sum(numbers) / len(numbers))
