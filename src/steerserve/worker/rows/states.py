"""The values of sites of the model for one prompt: at one position, or their mean over several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Places, Refused, StatesRead, Tokens
from steerserve.worker.rows.goals import StateReading
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.sites import Site


class States(StateReading):
    """Reads each of `sites`, which have one width, at these `positions` of the prompt."""

    def __init__(self, sites: Sequence[Site], positions: Sequence[int]) -> None:
        super().__init__(sites)
        self._positions = positions
        self._starts = [0] * len(sites)
        self._sums: list[Tensor | None] = [None] * len(sites)

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        start = self._starts[number]
        end = start + len(value)
        wanted = [at - start for at in self._positions if start <= at < end]
        part = None
        if wanted:
            part = value[torch.tensor(wanted, device=value.device)].float().sum(0)

        def take_in() -> None:
            self._starts[number] = end
            total = self._sums[number]
            if part is not None:
                self._sums[number] = part if total is None else total + part

        return take_in

    def work(self, row: BatchRow) -> StatesRead | Refused:
        totals = [total.cpu() for total in self._sums if total is not None]
        states = torch.stack(totals) / len(self._positions)
        if not bool(torch.isfinite(states).all()):
            return row.refused("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
        data = states.numpy().astype("<f4").tobytes()
        return StatesRead(row.request, row.choice, len(self._positions), data)


def positions_read(places: Places, prompt: Tokens, special: frozenset[int]) -> list[int]:
    """The positions of a prompt that are read, in their order.

    Raises:
        Refusal: INVALID_PARAMETER where there is none.
    """
    size = len(prompt.ids)
    if places.how == "index":
        if not -size <= places.index < size:
            why = f"the text has {size} tokens, and none at the index {places.index}"
            raise Refusal("INVALID_PARAMETER", why, param="prompt", tokens=size)
        return [places.index % size]
    span = range(size)
    if places.how == "completion":
        ends = prompt.spans[-1:]
        span = range(ends[0].start, ends[0].end) if ends else range(0)
    read = span if places.has_special else counted(prompt, special, span)
    if not read:
        what = "no token is read"
        why = what if places.has_special else f"{what} without position 0 and special tokens"
        raise Refusal("INVALID_PARAMETER", why, param="prompt")
    return list(read[-1:] if places.how == "last" else read)


def counted(prompt: Tokens, special: frozenset[int], span: range | None = None) -> list[int]:
    """The positions of a prompt, or of a span of it, without position 0 and special tokens."""
    within = range(len(prompt.ids)) if span is None else span
    return [at for at in within if at and prompt.ids[at] not in special]
