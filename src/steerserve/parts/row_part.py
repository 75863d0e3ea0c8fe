"""What a part of a request does for one row, in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from steerserve.rules.steering.vector import Direction
from steerserve.worker.sae.canonical import Sae


@dataclass(frozen=True, slots=True)
class SaeRead:
    """Reads the site of the attached SAE with this number, before what the SAE itself adds there, or after it."""

    number: int
    is_before: bool


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a part may know of its row.

    Attributes:
        choice: the number of the row in its request, which has `rows` of them.
        prompt, out: the tokens of the prompt, and those that were written so far. `out` grows.
        max_tokens: the most tokens that the row may write.
        special: the tokens that are no text.
        text_of: gives the text of a token.
        sae: gives the number of the SAE that is attached under a key, and the SAE with its encoder on the device of its
            site. It raises a Refusal SAE_NOT_ATTACHED, or INSUFFICIENT_MEMORY where the encoder does not fit there.
    """

    choice: int
    rows: int
    prompt: Sequence[int]
    out: Sequence[int]
    max_tokens: int
    special: frozenset[int]
    text_of: Callable[[int], str]
    sae: Callable[[str], tuple[int, Sae]]

    def token_at(self, position: int) -> int:
        """The token at a position of prompt and completion."""
        size = len(self.prompt)
        return self.prompt[position] if position < size else self.out[position - size]


class RowPart:
    """What a part does for one row. A class overrides what it needs. It is made of the part's form and of the facts of
    the row, and may raise a Refusal then. An error in one of its methods ends its row, and no other one.

    Attributes:
        name: the name of the part.
        reads: the attached SAEs whose values it reads.
        directions: the directions along which it reads at each position from which a token is drawn.
        may_reuse: whether a kept beginning of the prompt may stand for positions that the part does not see then.
    """

    name = ""
    reads: Sequence[SaeRead] = ()
    directions: Sequence[Direction] = ()
    may_reuse = True

    @property
    def needs_plain(self) -> bool:
        """Whether the model must read the tokens of the row again without steering, once the row has ended."""
        return False

    def span(self, read: SaeRead, start: int, end: int) -> tuple[int, int]:
        """The positions [low, high) whose values are wanted of a pass over the positions [start, end)."""
        return start, end

    def read_values(self, read: SaeRead, values: Tensor, first: int) -> None:
        """Take a copy of the values [n, d_in] at the positions from `first` on. This comes after their pass."""

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        """A token was drawn from these logits [vocabulary]; temperature, penalties and masks are not in them. The
        readings are x . v / |v| for each of `directions`, before anything is added at the site."""

    def read_plain(self, tokens: Sequence[int], logits: Tensor) -> None:
        """Take the logits [n, vocabulary] of the model without steering in the place of the next tokens of the row."""

    def chunk(self, *, is_last: bool) -> object | None:
        """What is sent with the text of the token that was drawn last, or at the end of the row. None where there is
        nothing. A part that needs the model without steering is asked for its last chunk after that."""
        return None

    def refusal(self, error: Exception) -> Exception:
        """The refusal of the row for an error in this part. By default it is refused for the error itself."""
        return error
