"""Prefill passes of rows that read states of the model: the hooks that copy the values of their sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from steerserve.worker.rows.rows import BatchRow, StateReading
from steerserve.worker.sae.sites import AtSite


class AllRead(Exception):
    """A pass ended at the last site whose values somebody reads."""


@contextmanager
def caught(
    rows: Sequence[BatchRow], parts: Sequence[Sequence[int]], *, is_alone: bool
) -> Iterator[None]:
    """While open, a pass over `parts` of the prompts of these rows gives each row that reads states the values of its
    sites, at the tokens of its part. In a pass of the batch padding follows the part; in a pass over one row
    (`is_alone`) tokens that the model reads again may come before the part. Where nobody reads the logits after a pass
    of the batch, the last of the sites ends it with `AllRead`."""
    goals = [row.goal for row in rows if isinstance(row.goal, StateReading)]
    may_end = len(goals) == len(rows) and not (is_alone or any(one.needs_logits for one in goals))
    left = iter(range(sum(len(one.sites) for one in goals) - 1, -1, -1))

    def read() -> None:
        if next(left, None) == 0 and may_end:
            raise AllRead

    with ExitStack() as hooks:
        for place, (row, part) in enumerate(zip(rows, parts, strict=True)):
            if isinstance(row.goal, StateReading):
                span = slice(-len(part), None) if is_alone else slice(0, len(part))
                for number, site in enumerate(row.goal.sites):
                    handle = site.hook(_catch(row.goal, number, place, span, read))
                    hooks.callback(handle.remove)
        yield


def _catch(
    goal: StateReading, number: int, place: int, span: slice, read: Callable[[], None]
) -> AtSite:
    def catch(value: Tensor) -> None:
        goal.catch(number, value[place, span])
        read()

    return catch
