"""The shapes of the passes of the running batch, and which rows of waiting prompts the next prefill pass takes.

The last bits of a row's logits depend on the shape of the pass. So every shape is either the same for all passes, or
comes from the row itself, and never from its neighbours: decode passes have a multiple of so many rows, prefill passes
a multiple of WIDTH tokens a row, and a row's cache has a size of `capacity`. Where the check of a model at its load
finds that the width of a prefill pass changes no bit either, prefill passes have a multiple of one of WIDTHS.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from steerserve.rules.models.nearness import RefusedFunction, StepTimes

ROW_STEPS = (1, 8)
"""A decode pass has a multiple of the first of these numbers of rows for which the check of a model at its load finds
that a row's logits are its own. Some kernels take other paths for a few rows."""

GRAPH_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""The numbers of rows of decode passes that are recorded. A pass with fewer rows is padded."""

WIDTH = 32
"""The tokens of each row in a prefill pass are padded to a multiple of this many, unless the model has another width
(see WIDTHS)."""

WIDTHS = (1, 2)
"""Widths that a model with compiled attention may have instead of WIDTH. At its load they are tried in this order, and
the first one with which a row's logits do not depend on other rows is taken. 2 is tried because some kernels sum in
another order for a single row."""

ALIKE = 8
"""Where a model has one of WIDTHS, prompts are read together if their lengths are equal after rounding up to a multiple
of this. Each is padded to the longest of them."""

KEYS = 512
"""On the processor, a prefill pass reads a multiple of this many tokens of cache. The attention kernel there reads
blocks of this many, and a shorter block is summed in another order."""

STEP_SECONDS = 0.2
"""The longest step beside which a prefill pass may take place, unless decode passes alone take more than half of it."""

REST_STEPS = 2
"""The decode passes without a prefill pass that follow a part of a long prompt, so that most steps are short."""

PATIENCE = 5
"""How many times as long a step with a prefill pass may take where the rows that decode can wait (see `pace`)."""

TURNS = 3
"""The passes of short prompts in a row, after which a part of a long prompt is due."""

FIRST_TOKENS = 128
"""The most tokens of a prefill pass beside rows that decode, before any pass was timed."""

_SMOOTHING = 0.3


def up(value: int, step: int) -> int:
    """The least multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def graph_rows(rows: int, step: int) -> int | None:
    """The number of rows of the recorded decode pass that serves `rows` rows, a multiple of `step`; None where no
    recorded pass has so many rows."""
    return next((up(size, step) for size in GRAPH_ROWS if size >= rows), None)


def capacity(tokens: int, need: int) -> int:
    """The size of the cache of a row that holds `tokens` tokens now and may hold `need` at its end, at most `need`.

    (1) The size is a power of two or half as much again, from 64 on. (2) Beyond twice KEYS it is a multiple of KEYS and
    of an eighth of the power of two below, because attention reads the whole size for each token.
    """
    size = 64
    while size < min(tokens, 2 * KEYS):  # (1)
        size = size // 2 * 3 if size & (size - 1) == 0 else size // 3 * 4
    if tokens > size:  # (2)
        size = up(tokens, max(KEYS, (1 << tokens.bit_length() - 1) // 8))
    return min(size, need)


@dataclass(frozen=True, slots=True)
class RowSteps:
    """Whether rows share passes, and why they do or do not."""

    are_batched: bool
    reason: str


BATCHED = RowSteps(
    True, "the check at the load found that passes over several rows give right logits"
)


@dataclass(frozen=True, slots=True)
class SeededRows:
    """Whether seeded rows share passes with other rows, and why they do or do not."""

    are_shared: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CompiledFunctions:
    """Whether passes on the processor use functions that a C++ compiler of the machine has compiled, and why they do or
    do not."""

    are_used: bool
    reason: str
    modules: int = 0
    """Norms, attentions and MLPs with a function of the service."""
    layers: int = 0
    """Layers that run their decode passes in one compiled call."""
    refused: list[RefusedFunction] = field(default_factory=list)
    times: StepTimes | None = None
    """What a decode pass takes with and without the functions that were refused."""


class Decoding(StrEnum):
    """How decode passes are run: by calls of the model's code, by such calls on static buffers, or by replays of passes
    that were recorded on static buffers."""

    CALLED = "called"
    STATIC = "static"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class CudaGraphs:
    """How decode passes are run, and why."""

    decoding: Decoding
    reason: str


def cuda_graphs(
    asked: str, *, devices: Sequence[str], are_batched: bool, attends_by_library: bool
) -> CudaGraphs:
    """How decode passes are run: `asked` is the setting CUDA_GRAPHS, `devices` are the devices of the model, and
    `attends_by_library` says whether the model's code takes its attention from the library.

    Off a card nothing can be recorded. With `on` the passes then run on the static buffers all the same, so that what
    does not need a card can be tried without one.
    """
    if asked == "off":
        return CudaGraphs(Decoding.CALLED, "CUDA_GRAPHS says so")
    if asked == "auto" and not devices[0].startswith("cuda"):
        return CudaGraphs(Decoding.CALLED, "the model is on no card, and only cards record passes")
    if not are_batched:
        why = "each row is stepped alone, with passes of its own shape"
        return CudaGraphs(Decoding.CALLED, why)
    if not attends_by_library:
        why = "the code of this architecture does not take its attention from the library"
        return CudaGraphs(Decoding.CALLED, why)
    if len(devices) > 1:
        return CudaGraphs(Decoding.CALLED, "the layers are on more than one device")
    if not devices[0].startswith("cuda"):
        return CudaGraphs(Decoding.STATIC, "the model is on no card, and only cards record passes")
    return CudaGraphs(Decoding.REPLAYED, "passes are recorded once for each number of rows")


def seeded_rows(
    asked: str, varies: str | None, *, is_on_card: bool, are_batched: bool = True
) -> SeededRows:
    """How seeded rows are stepped: `asked` is the setting SEEDED_ROWS, `varies` what changed the last bits of a row's
    logits in the check at the load, or None.

    Where no rows share passes, seeded rows need no passes apart. Seeded rows are never shared where the check failed.
    On cards `auto` keeps them apart, because a card chooses kernels by more than the shapes that the check tries.
    """
    if not are_batched:
        return SeededRows(True, "each row is stepped alone, with passes of its own shape")
    if asked == "apart":
        return SeededRows(False, "SEEDED_ROWS says so")
    if varies is not None:
        return SeededRows(False, f"the last bits of a row's logits are not its own: {varies}")
    if is_on_card and asked == "auto":
        return SeededRows(False, "on cards they share passes only with SEEDED_ROWS=shared")
    return SeededRows(
        True, "the check at the load found that other rows change no bit of a row's logits"
    )


@dataclass(frozen=True, slots=True)
class Tempo:
    """How long passes take on this machine: `token` is the time of one token of a prefill pass, `step` the time of a
    decode pass, both in seconds and smoothed. None before the first pass."""

    token: float | None = None
    step: float | None = None

    def prefilled(self, tokens: int, seconds: float) -> Tempo:
        """The tempo after a prefill pass over `tokens` tokens, padding included."""
        return replace(self, token=_smoothed(self.token, seconds / max(1, tokens)))

    def decoded(self, seconds: float) -> Tempo:
        """The tempo after a decode pass."""
        return replace(self, step=_smoothed(self.step, seconds))

    def tokens(self, bound: float, most: int) -> int:
        """The tokens of a prefill pass beside rows that decode: a prefill and a decode pass together take `bound`
        seconds. Where decode passes alone take more than half of it, the prefill pass takes as long as they do."""
        if self.token is None or self.step is None:
            return min(FIRST_TOKENS, most)
        seconds = max(bound - self.step, self.step)
        return max(WIDTH, min(most, int(seconds / self.token) // WIDTH * WIDTH))


@dataclass(frozen=True, slots=True)
class Pace:
    """How rows that decode share steps with prefill passes.

    Attributes:
        times: how many times as long as usual a step with a prefill pass may take.
        rests: the decode passes without a prefill pass that follow a part of a long prompt.
    """

    times: int
    rests: int


STEADY, PATIENT = Pace(1, REST_STEPS), Pace(PATIENCE, 0)


def pace(decoding: Sequence[tuple[str, bool]], reading: Collection[str]) -> Pace:
    """How rows that decode share steps with prefill passes. `decoding` has the client of each such row, and whether its
    answer is streamed; `reading` has the clients whose prompts are to be read.

    Where no answer is streamed, nobody sees tokens come late. Where all rows are one client's, its answers are complete
    sooner on average if its prompts are read first, because then more rows share each decode pass.
    """
    is_seen = any(is_stream for _, is_stream in decoding)
    clients = {client for client, _ in decoding} | set(reading)
    return STEADY if is_seen or len(clients) > 1 else PATIENT


def resumed(common: int, block: int, *, is_exact: bool, is_scored: bool) -> int:
    """The position from which on a row reads its prompt, where `common` tokens of it are kept.

    (1) Where the kept keys and values are exact, the row begins with a whole block of `block` tokens, as it would
    without them. (2) Where the tokens of its prompt are scored, the last kept token is read again, because the token
    after it is scored by its logits.
    """
    if not is_exact:
        return common
    return (common - is_scored) // block * block


def _smoothed(before: float | None, now: float) -> float:
    return now if before is None else before + _SMOOTHING * (now - before)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that waits for prefill: its tokens, and how many of them the cache holds.

    Attributes:
        most: the most tokens that a pass with this row may have.
        step: prompts are read together if their lengths are equal after rounding up to a multiple of this.
    """

    tokens: int
    filled: int
    most: int
    step: int = WIDTH

    @property
    def rest(self) -> int:
        return self.tokens - self.filled

    @property
    def width(self) -> int:
        """The tokens of the pass that reads the rest of the prompt, at most `most`."""
        return up(min(self.rest, self.most), self.step)

    @property
    def is_long(self) -> bool:
        """Whether the rest of the prompt needs more than one pass."""
        return self.rest > self.most


@dataclass(frozen=True, slots=True)
class PrefillTurn:
    """What happened since the last part of a long prompt: the decode passes without a prefill pass, and the passes of
    short prompts in a row."""

    rests: int = REST_STEPS
    shorts: int = 0


def chosen(prompts: Sequence[Prompt], turn: PrefillTurn, *, rests: int) -> list[int]:
    """The places of the prompts that the next prefill pass reads; none where rows that decode go first.

    (1) Prompts that end in this pass overtake long ones. (2) After TURNS of them in a row a long prompt is due. (3) A
    part of a long prompt waits for `rests` decode passes. (4) Rows of equal width begin together, as many as the pass
    has room for.
    """
    short = [i for i, prompt in enumerate(prompts) if not prompt.is_long]
    long = [i for i, prompt in enumerate(prompts) if prompt.is_long]
    may_part = bool(long) and turn.rests >= rests  # (3)
    if may_part and (not short or turn.shorts >= TURNS):  # (2)
        return long[:1]
    if not short:
        return []
    first = prompts[short[0]]  # (1)
    most, together = first.most, short[:1]
    for i in short[1:]:
        other = prompts[i]
        least = min(most, other.most)
        if other.width != first.width:
            continue
        if (len(together) + 1) * first.width > least:
            break
        together.append(i)
        most = least
    return together  # (4)
