"""Prefill passes of rows that read states of the model: the hooks that copy the values of their sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import cast

from torch import Tensor

from steerserve.worker.batch.planned import Pass
from steerserve.worker.model.results import PassEnded, Status
from steerserve.worker.rows.goals import StateReading

TakeIn = Callable[[], None]


@contextmanager
def reading_states(planned: Pass, *, is_alone: bool) -> Iterator[dict[int, list[TakeIn]]]:
    """While open, the pass copies the values of the sites that its rows read, at the tokens that it reads. Gives, by
    the place of a row, what takes the copies in. In a pass of the batch padding follows the tokens; in a pass over one
    row (`is_alone`) tokens that the model reads again may come before them. Where nobody reads the logits after a pass
    of the batch, the last of the sites ends it."""
    goals = {
        place: cast(StateReading, row.goal)
        for place, row in enumerate(planned.rows if planned.is_prefill else ())
        if row.goal.sites
    }
    values: dict[int, list[TakeIn]] = {place: [] for place in goals}
    left = sum(len(goal.sites) for goal in goals.values())
    may_end = planned.is_only_read and not is_alone

    def catch(place: int, number: int, value: Tensor) -> None:
        nonlocal left
        size = len(planned.tokens[place])
        span = slice(-size, None) if is_alone else slice(0, size)
        values[place].append(goals[place].catch(number, value[place, span]))
        left -= 1
        if left == 0 and may_end:
            raise PassEnded(Status.READ)

    with ExitStack() as hooks:
        for place, goal in goals.items():
            for number, site in enumerate(goal.sites):
                hooks.callback(site.watch(partial(catch, place, number)).remove)
        yield values
