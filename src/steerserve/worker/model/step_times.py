"""What it costs that modules keep the library's code: the time of a decode pass as the model is served, and with the
functions that were refused in their places."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from steerserve.rules.inference import stepping
from steerserve.rules.models.nearness import StepTimes
from steerserve.worker.model import forwards

if TYPE_CHECKING:
    from steerserve.worker.model.checkpoint import Checkpoint

_PROMPT = 16
_ROUNDS = 6
"""Passes in each way. The first of each is not counted."""

log = structlog.get_logger(__name__)


def measure(model: Checkpoint, clock: Callable[[], float] = time.perf_counter) -> StepTimes | None:
    """The shortest decode pass of one row in each way, by turns. None where no function was refused for its
    distance."""
    if not any(each.found for each in model.functions.refused):
        return None
    cache = model.cache()
    slot = cache.open(stepping.up(_PROMPT + 2 * _ROUNDS, stepping.WIDTH))
    model.prefill(cache, [slot], [[0] * _PROMPT], start=0)
    places = iter(range(_PROMPT, _PROMPT + 2 * _ROUNDS))

    def seconds() -> float:
        since = clock()
        model.decode_step(cache, [slot], [0], [next(places)])
        return clock() - since

    served = fast = math.inf
    for turn in range(_ROUNDS):
        own = seconds()
        with forwards.with_refused(model.model, model.dtype):
            short = seconds()
        if turn:
            served, fast = min(served, own), min(fast, short)
    times = StepTimes(1000 * served, 1000 * fast)
    log.warning("refused_functions_cost", served_ms=times.served_ms, fast_ms=times.fast_ms)
    return times
