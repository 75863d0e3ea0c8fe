"""Asking the driver of the cards. The driver blocks and may hang, so each question has a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from steerserve.rules.residency.gpus import Card

log = structlog.get_logger(__name__)

ReadCards = Callable[[], tuple[list[Card], str | None]]
"""Reads the cards of the machine, and the reason why there are none or why some are missing. Blocks."""
PATIENCE = 5.0
"""Seconds after which nobody waits any longer for the driver."""


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """The cards of the machine. `reason` says why there are none, or why some are missing. `has_failed` says whether
    the driver's library raised an error."""

    cards: tuple[Card, ...]
    reason: str | None
    has_failed: bool = False


def ask(read_cards: ReadCards, thread_name: str) -> asyncio.Future[DriverAnswer]:
    """Ask the driver in a thread. The future never has an exception."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[DriverAnswer] = loop.create_future()

    def settle(answer: DriverAnswer) -> None:
        if not coming.done():
            coming.set_result(answer)

    def work() -> None:
        answer = _answer(read_cards)
        # once the loop is closed, nobody waits for the answer
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, answer)

    # a daemon thread, because a driver that hangs must not keep the service from ending
    threading.Thread(target=work, name=thread_name, daemon=True).start()
    return coming


def _answer(read_cards: ReadCards) -> DriverAnswer:
    try:
        cards, reason = read_cards()
    except Exception as error:
        # the driver's library may raise anything; its error becomes the reason for which there are no cards
        log.exception("cards_unreadable")
        reason = f"the cards cannot be read: {type(error).__name__}"
        return DriverAnswer((), reason, has_failed=True)
    return DriverAnswer(tuple(cards), reason)
