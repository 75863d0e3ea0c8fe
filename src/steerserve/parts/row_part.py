"""What a part of a request does for one row, in the engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import EditActs
from steerserve.rules.saes.sites import OPERAND_SITES
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.positions import Positions
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.rows.constrain import Grammars
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site


@dataclass(frozen=True, slots=True)
class SaeRead:
    """Reads the site of the attached SAE with this number, before what the SAE itself adds there, or after it."""

    number: int
    is_before: bool


@dataclass(frozen=True, eq=False)
class SiteRead:
    """Reads these sites of the model, each once: before anything is done to their values, or the values that the model
    goes on with. Parts that read the same sites share one such object."""

    sites: tuple[Site, ...]
    is_before: bool

    @cached_property
    def is_in_attention(self) -> bool:
        """Whether one of the sites is queries, keys or values, so that its layer does not run as a compiled call."""
        return any(site.name in OPERAND_SITES for site in self.sites)


Read = SaeRead | SiteRead


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a part may know of its row.

    Attributes:
        request: the number of the request of the row.
        choice: the number of the row in its request, which has `rows` of them.
        prompt, out: the tokens of the prompt, and those that were written so far. `out` grows.
        max_tokens: the most tokens that the row may write.
        special: the tokens that are no text.
        text_of: gives the text of a token.
        sae: gives the number of the SAE that is attached under a key, and the SAE with its encoder on the device of its
            site. It raises a Refusal SAE_NOT_ATTACHED, or INSUFFICIENT_MEMORY where the encoder does not fit there.
        compiled: what was compiled for this part of the request (`RowPart.compile_form`).
        acts: gives where the edits of the row acted so far, where a part has them counted.
        sites: gives what reads sites, each by its name and its layer, with `is_before` as `SiteRead` has it. It raises
            a Refusal SAE_INCOMPATIBLE for a site that the model does not have.
        are_at: says for each position of [first, first + count) whether it is one of the positions that are meant.
            What is not known yet, because its token is not written, is not one of them.
    """

    request: int
    choice: int
    rows: int
    prompt: Sequence[int]
    out: Sequence[int]
    max_tokens: int
    special: frozenset[int]
    text_of: Callable[[int], str]
    sae: Callable[[str], tuple[int, Sae]]
    sites: Callable[[Sequence[tuple[str, int]], bool], SiteRead]
    are_at: Callable[[Positions, int, int], Sequence[bool]]
    acts: Callable[[], list[EditActs]]
    compiled: Any = None

    def token_at(self, position: int) -> int:
        """The token at a position of prompt and completion."""
        size = len(self.prompt)
        return self.prompt[position] if position < size else self.out[position - size]


@dataclass(slots=True)
class Copied:
    """The values [n, width] that a pass copied at one SAE, or at each site of a read, for the part of one row, or for
    the parts of several rows that take them together.

    Attributes:
        parts: the parts, in the order of their rows in the pass.
        firsts: for each part, the position of its first value in its row.
        sizes: for each part, the number of its values. They follow those of the part before it.
    """

    read: Read
    parts: list[RowPart]
    firsts: list[int]
    sizes: list[int]
    values: Sequence[Tensor]


class Reader(Protocol):
    """Takes what passes copied for parts of rows."""

    def take_pass(self, copies: Sequence[Copied]) -> None:
        """Take the copies of one pass, which has ended; one for each read."""

    def fail(self, parts: Sequence[RowPart], error: Exception) -> Exception | None:
        """What ends the rows of these parts after an error over their values; None where the rows go on without what
        was read. This gives back what the error held."""


class Masker(Protocol):
    """Rules out next tokens of rows, for parts of several rows together."""

    def mask(
        self, logits: Tensor, parts: Sequence[RowPart | None]
    ) -> tuple[Tensor, dict[int, Refusal]]:
        """The logits with -inf at each token that is ruled out, and the refusals of the rows that cannot go on, by
        their numbers. `logits` [rows, vocabulary] are not changed. `parts` has the part of each row; None where the row
        has none."""


class RowPart:
    """What a part does for one row. A class overrides what it needs. It is made of the part's form and of the facts of
    the row, and may raise a Refusal then. An error in one of its methods ends its row, and no other one.

    What lives longer than a request and reads rows (monitoring, sensing) gives each row at its start a part of the same
    kind. Such parts of several rows may have one `reader`, which takes the values of all of them together.

    Attributes:
        name: the name of the part.
        reads: the attached SAEs, and the sites, whose values it reads.
        directions: the directions along which it reads at each position from which a token is drawn.
        counted: None where it does not need to know where the edits of the row act. Otherwise the edits among the
            values that the plan adds, which are counted too.
        may_reuse: whether a kept beginning of the prompt may stand for positions that the part does not see then.
        logits_from: the first position of the prompt after which it needs logits; None where it needs none of them.
        attends_plainly: whether the layers must compute attention in the plain way for the row.
        masker: rules out next tokens of the row.
        plain_part: what reads, for this part, the tokens of the row without steering, where it `needs_plain`.
    """

    name = ""
    reads: Sequence[Read] = ()
    directions: Sequence[Direction] = ()
    counted: Sequence[Edit] | None = None
    may_reuse = True
    logits_from: int | None = None
    attends_plainly = False
    masker: Masker | None = None
    plain_part: RowPart | None = None

    @classmethod
    def compile_form(cls, form: Any, grammars: Grammars) -> Future[Any]:
        """What is compiled in a thread before the rows of a request that writes begin. `grammars` are those of the
        loaded model. The future raises a Refusal where the rows cannot be made."""
        raise NotImplementedError

    @property
    def is_complete(self) -> bool:
        """Whether the text of the row is complete with the token that was drawn last."""
        return False

    @property
    def reader(self) -> Reader:
        """Who takes the values that are copied for this part."""
        return self

    def reads_in_pass(self) -> Sequence[Read]:
        """What it reads in the coming pass."""
        return self.reads

    @property
    def needs_plain(self) -> bool:
        """Whether the model must read the tokens of the row again without steering, once the row has ended."""
        return False

    def span(self, read: Read, start: int, end: int) -> tuple[int, int]:
        """The positions [low, high) whose values are wanted of a pass over the positions [start, end)."""
        return start, end

    def read_values(self, read: Read, values: Sequence[Tensor], first: int) -> None:
        """Take copies of the values [n, width] at the positions from `first` on: one for an attached SAE, or one for
        each site. This comes after their pass."""

    def take_pass(self, copies: Sequence[Copied]) -> None:
        for one in copies:
            self.read_values(one.read, one.values, one.firsts[0])

    def fail(self, parts: Sequence[RowPart], error: Exception) -> Exception | None:
        refusal = self.refusal(error)
        memory.recover(error)
        return refusal

    def read_logits(self, first: int, logits: Tensor) -> None:
        """Take the logits [n, vocabulary] after the positions of the prompt from `first` on. All of a prompt come, from
        `logits_from` or an earlier position on."""

    def draw(self, token: int, logits: Tensor, readings: Sequence[float]) -> None:
        """A token was drawn from these logits [vocabulary]; temperature, penalties and masks are not in them. The
        readings are x . v / |v| for each of `directions`, before anything is added at the site."""

    def read_plain(self, tokens: Sequence[int], logits: Tensor) -> None:
        """Take the logits [n, vocabulary] of the model without steering in the place of the next tokens of the row."""

    def chunk(self, *, is_last: bool) -> object | None:
        """What is sent with the text of the token that was drawn last, or at the end of the row. None where there is
        nothing. A part that needs the model without steering is asked for its last chunk after that."""
        return None

    def pieces(self) -> Iterator[object]:
        """What is sent of a prompt that is only read, a piece in each step."""
        chunk = self.chunk(is_last=True)
        if chunk is not None:
            yield chunk

    def refusal(self, error: Exception) -> Exception:
        """The refusal of the row for an error in this part. By default it is refused for the error itself."""
        return error

    def end(self) -> None:
        """The row is complete."""

    # ------------------------------------------------------------- kept beginnings of prompts

    def mark(self) -> Hashable:
        """What the part reads of its row, where that matters to kept beginnings. A row takes a kept beginning only from
        a row whose parts had equal marks; None matters to none."""
        return None

    def notes(self) -> object:
        """What the part has read so far, to be kept with the beginning of its row. Only parts with a mark are asked."""
        return None

    def resume(self, length: int, notes: object) -> None:
        """The row begins after `length` tokens of a kept beginning. `notes` were kept with it."""
