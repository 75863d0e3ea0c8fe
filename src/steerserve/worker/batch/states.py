"""Prefill passes of rows that read states of the model: the hooks that copy the values of their sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from steerserve.worker.rows.rows import BatchRow, StateReading
from steerserve.worker.sae.sites import AtSite


@contextmanager
def caught(
    rows: Sequence[BatchRow], parts: Sequence[Sequence[int]], *, is_alone: bool
) -> Iterator[None]:
    """While open, a pass over `parts` of the prompts of these rows gives each row that reads states the values of its
    sites, at the tokens of its part. In a pass of the batch padding follows the part; in a pass over one row
    (`is_alone`) tokens that the model reads again may come before the part."""
    with ExitStack() as hooks:
        for place, (row, part) in enumerate(zip(rows, parts, strict=True)):
            if isinstance(row.goal, StateReading):
                span = slice(-len(part), None) if is_alone else slice(0, len(part))
                for number, site in enumerate(row.goal.sites):
                    handle = site.hook(_catch(row.goal, number, place, span))
                    hooks.callback(handle.remove)
        yield


def _catch(goal: StateReading, number: int, place: int, span: slice) -> AtSite:
    def catch(value: Tensor) -> None:
        goal.catch(number, value[place, span])

    return catch
