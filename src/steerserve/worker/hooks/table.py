"""The steering of passes on static buffers: a table of the directions of one attached SAE, and the place in it of each
row's direction.

A recorded pass reads the table at every replay. What a row adds is therefore changed by writing into these tensors, and
never by recording again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from steerserve.rules.inference.stepping import GRAPH_ROWS
from steerserve.worker.sae.sites import RowDeltas

DIRECTIONS = 2 * GRAPH_ROWS[-1]
"""The directions that a table holds. A pass needs at most one for each of its rows; the others stay for
later passes."""


class DirectionTable:
    """The directions [1 + DIRECTIONS, width] of one SAE, and for each row of a pass the slot of its direction.

    Slot 0 means that nothing is added to the row. `steered` is increased by each pass by the number of its rows that
    were steered: by the pass itself, so that a replay is counted exactly where it steered.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._directions = torch.zeros(1 + DIRECTIONS, width, dtype=dtype, device=device)
        self._slots = torch.zeros(GRAPH_ROWS[-1], dtype=torch.long, device=device)
        self.steered = torch.zeros((), dtype=torch.long, device=device)
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._free = list(range(DIRECTIONS, 0, -1))
        self.rows: tuple[int, ...] = ()

    @staticmethod
    def size_bytes(width: int, dtype: torch.dtype) -> int:
        """The memory of the directions."""
        return (1 + DIRECTIONS) * width * dtype.itemsize

    @property
    def expected(self) -> int:
        """The rows that the coming pass steers."""
        return sum(1 for slot in self.rows if slot)

    def fill(self, wanted: Sequence[Hashable | None], direction: Callable[[int], Tensor]) -> None:
        """Let the rows of the coming passes add these directions; None adds nothing. `direction` gives the direction of
        a row [width] where the table does not hold it. The direction that was used longest ago makes room.
        """
        for name in wanted:
            if name in self._places:
                self._places.move_to_end(name)
        rows = []
        for row, name in enumerate(wanted):
            if name is not None and name not in self._places:
                self._write(name, direction(row))
            rows.append(0 if name is None else self._places[name])
        if tuple(rows) != self.rows:
            padded = rows + [0] * (len(self._slots) - len(rows))
            self._slots.copy_(torch.tensor(padded))
            self.rows = tuple(rows)

    def edit(self, value: Tensor) -> RowDeltas:
        """What a pass adds to the value [rows, 1, width] of the site."""
        slots = self._slots[: value.shape[0]]
        is_added = slots.ne(0)
        self.steered.add_(is_added.sum())
        return RowDeltas(self._directions[slots][:, None], is_added[:, None, None])

    def deltas(self) -> Tensor | None:
        """What is added to each row [rows, 1, width]; None where nothing is added to any."""
        return self._directions[self._slots[: len(self.rows)]][:, None] if self.expected else None

    def _write(self, name: Hashable, direction: Tensor) -> None:
        """Hold a direction in a free slot, or in the slot that was used longest ago."""
        if not self._free:
            self._free.append(self._places.popitem(last=False)[1])
        self._directions[self._free[-1]].copy_(direction)
        self._places[name] = self._free.pop()
