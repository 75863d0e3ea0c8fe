"""What a forward pass gives, and how it may end before its last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor


class Status(Enum):
    """How a pass ended: after its last layer, at the last site that somebody reads, or between two layers. A pass that
    was stopped may run again, because it writes at the same positions."""

    DONE = "done"
    READ = "read"
    STOPPED = "stopped"


class PassEnded(Exception):
    """Ends the pass that runs before its last layer. It leaves no pass: who runs the pass makes a result of it."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.value)
        self.status = status


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass over rows gives.

    Attributes:
        logits: those after the last token of each row [rows, vocabulary]; [rows, 0] where the pass was not done.
        every: for each row, the logits after all tokens for which they were wanted [tokens, vocabulary].
        sums: the last hidden layer summed over the tokens of each row [rows, hidden] in float32, where it was wanted.
        values: for each row that reads states, by its place in the pass, functions that give the row what was copied.
    """

    logits: Tensor
    every: Sequence[Tensor] | None = None
    sums: Tensor | None = None
    status: Status = Status.DONE
    values: Mapping[int, Sequence[Callable[[], None]]] = field(default_factory=dict)
