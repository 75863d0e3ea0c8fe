"""What one row of a pass does at one site: what it reads there, what it adds, and what it edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steerserve.rules.steering.edits import Condition, Edit, Feature
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers
from steerserve.rules.steering.vector import Direction
from steerserve.worker.rows.steering import RowSteering

Reads = Feature | Direction
"""What an edit or a condition reads: the activation of a feature, or the projection on a direction."""


@dataclass(slots=True)
class Part:
    """What one row of a pass does at one site.

    Attributes:
        row: the place of the row in the pass. It may be another in the next pass; everything else stays.
        values: the sum of the values of features that are added at all positions, float32 [width]; None for nothing.
        edits: the edits that may act in this pass, in their order.
        reads: the conditions that read here, for edits at this site and at later ones.
        counted: the edits among `values` that are counted.
        watched: the directions on which the row is projected here, at its last position in the pass.
    """

    row: int
    steering: RowSteering
    values: Tensor | None = None
    edits: tuple[Edit, ...] = ()
    reads: tuple[Condition, ...] = ()
    counted: tuple[Edit, ...] = ()
    modifiers: Modifiers = NO_MODIFIERS
    watched: tuple[Direction, ...] = ()

    @property
    def is_used(self) -> bool:
        """Whether the row does anything here."""
        read = self.reads or self.watched
        return self.values is not None or bool(self.edits or self.counted or read)

    @property
    def keys(self) -> set[str]:
        """The SAEs that the row reads or writes here."""
        at = [edit.at for edit in (*self.edits, *self.counted)]
        reads = [condition.reads for condition in self.reads]
        return {one.key for one in [*at, *reads] if isinstance(one, Feature)}


@dataclass(frozen=True, slots=True)
class Span:
    """The positions of a pass: the columns of a value are the positions from `first[row]` on, and `size[row]` of them
    are tokens of the row."""

    first: Sequence[int]
    size: Sequence[int]
