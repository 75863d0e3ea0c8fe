"""The bound on the part of a load before the tokenizer and the weights are read: an engine then reads only small
untrusted files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages import endings
from steerserve.messages.engine import Report

PREPARATION_SECONDS = 60.0
"""Seconds in which an engine must have read the configuration of a checkpoint."""


async def bounded(
    ask: Callable[[Report], Awaitable[m.Event]], report: Report, kill: Callable[[], None]
) -> m.Event:
    """The answer to a load. `ask` asks for the load; `kill` ends an engine that takes too long.

    Raises:
        Refusal: the refusal of the engine; MODEL_LOAD_FAILED when the bound is over, or when the engine ended before it
            read weights, because hostile files may use up its memory.
    """
    deadline = asyncio.timeout(PREPARATION_SECONDS)
    has_prepared = False

    def watched(progress: m.Progress) -> None:
        nonlocal has_prepared
        has_prepared = has_prepared or progress.stage == m.LOADING_WEIGHTS
        is_bounded = progress.stage not in (m.LOADING_TOKENIZER, m.LOADING_WEIGHTS)
        if not is_bounded and not deadline.expired():
            deadline.reschedule(None)
        report(progress)

    try:
        async with deadline:
            return await ask(watched)
    except TimeoutError:
        kill()
        why = f"the configuration takes longer than {PREPARATION_SECONDS:g} s to read"
        raise Refusal("MODEL_LOAD_FAILED", why) from None
    except Refusal as refusal:
        if refusal.code != "ENGINE_UNAVAILABLE" or has_prepared:
            raise
        raise endings.gone_while(refusal, "the configuration and the tokenizer were read") from None
