"""Keeps the last survey of the nodes of the cluster. A survey starts a task on every node, so it is made only when
somebody asks, and not too often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from steerserve.control.health.views import CardStatus, CardUser, HostMemory, NodeReport
from steerserve.control.residency.cluster import SeenNode
from steerserve.errors import Refusal
from steerserve.logs import background
from steerserve.rules.residency.gpus import Card
from steerserve.rules.units import MIB

log = structlog.get_logger(__name__)

AGE = 15.0
"""Seconds after which a survey is too old to be shown."""
PATIENCE = 5.0
"""Seconds that an answer waits for a survey."""

Survey = Callable[[], Awaitable[Sequence[SeenNode]]]


class NodeReadings:
    """Owner of the last survey.

    Args:
        survey: asks every node.
    """

    def __init__(self, survey: Survey, clock: Callable[[], float] = time.monotonic) -> None:
        self._survey = survey
        self._clock = clock
        self._last: tuple[float, list[NodeReport]] | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._reason: str | None = None

    async def reading(self) -> tuple[list[NodeReport], str | None]:
        """The nodes at most AGE seconds ago, and why some or all of them are not known."""
        if self._last is None or self._clock() - self._last[0] > AGE:
            if self._under_way is None:
                self._under_way = background.start(self._read(), name="node-survey")
            await asyncio.wait([self._under_way], timeout=PATIENCE)
            if self._under_way is not None:
                self._reason = f"the nodes have not answered for {PATIENCE:g} s"
        return (self._last[1] if self._last else []), self._reason

    async def close(self) -> None:
        """End a survey that is under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    async def _read(self) -> None:
        try:
            nodes = await self._survey()
            self._last, self._reason = (self._clock(), [_report(node) for node in nodes]), None
        except Refusal as refusal:
            self._reason = refusal.message
        except Exception as error:
            # the other parts of the answer must still be shown
            log.exception("nodes_unreadable")
            self._reason = f"the nodes cannot be read: {type(error).__name__}"
        finally:
            self._under_way = None


def _report(node: SeenNode) -> NodeReport:
    facts = node.facts
    if facts is None:
        nothing = dict.fromkeys(("version", "python", "torch", "cpu", "cores", "host"))
        return NodeReport(node.name, node.address, node.error, cards=(), **nothing)
    return NodeReport(
        node=facts.name,
        address=node.address,
        reason=facts.cards_reason,
        version=facts.steerserve,
        python=facts.python,
        torch=facts.torch,
        cpu=facts.cpu,
        cores=facts.cores,
        cards=[card_status(card) for card in facts.cards],
        host=HostMemory(facts.total_host_mb, facts.free_host_mb),
    )


def card_status(
    card: Card,
    figures: tuple[int, int] | None = None,
    *,
    is_placed: bool = False,
    engine_memory: str | None = None,
) -> CardStatus:
    """A card, and where a part of the resident model `is_placed` on it, the bytes that the tensor library has allocated
    and reserved."""
    allocated, reserved = (
        (size // MIB for size in figures) if figures and is_placed else (None, None)
    )
    return CardStatus(
        smi_index=card.smi_index,
        uuid=card.uuid,
        name=card.name,
        total_mb=card.total_mb,
        used_mb=card.used_mb,
        free_mb=card.free_mb,
        torch_index=card.torch_index,
        torch_measured=is_placed,
        millm_allocated_mb=allocated,
        millm_reserved_mb=reserved,
        processes=[CardUser(process.pid, process.used_mb) for process in card.processes or ()],
        processes_reason=card.processes_reason,
        engine_memory=engine_memory,
    )
