"""Activations that a request asks for: the site's values are copied in the hook and encoded after the pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

import structlog
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.messages import Activated, Embed, Generate, Outcome, Reading, Score, Tap
from steerserve.rules.inference import activations
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.hooks.places import Catch
from steerserve.worker.observers.observers import Observer, Span
from steerserve.worker.observers.ranking import largest
from steerserve.worker.rows.rows import BatchRow, RowName
from steerserve.worker.sae.canonical import NEEDS_K, Sae

TextOf = Callable[[int], str]

log = structlog.get_logger(__name__)
ENCODE_BYTES = 1 << 26
"""The most bytes of the features that are encoded at once, positions x features in float32. Encoding holds a few such
tensors."""

ENCODE_POSITIONS = 64
"""Copied positions are encoded once there are this many, so that the encoder's weights are read once for all of
them."""


class RowReader:
    """What is read of one row at one attached SAE: the values of a span of each pass are copied in the hook, and
    encoded after the pass. `is_before` says that the values are those before steering. A class says which `span` of
    positions it wants, and what it does with them in `read`."""

    def __init__(self, sae: Sae, *, is_before: bool, keeps_last: bool = False) -> None:
        self.is_before = is_before
        self.sae = sae
        self._keeps_last = keeps_last
        self._span = (0, 0)
        self._start = 0
        self._copied: tuple[int, Tensor] | None = None
        self._caught: list[tuple[int, Tensor]] = []
        self._refusal: Refusal | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The positions that are wanted of a pass over the positions [start, end)."""
        raise NotImplementedError

    def read(self, positions: Sequence[int], rows: Tensor) -> None:
        """Take in the values [n, d_in] at these positions."""
        raise NotImplementedError

    def expect(self, start: int, count: int) -> None:
        """The next pass reads `count` tokens of the row, the first at position `start`."""
        end = start + count
        self._start = start
        self._span = (end, end)
        self._copied = None
        if self._refusal is None:
            self._span = self.span(start, end)

    def catch(self, value: Tensor, delta: Tensor | None = None) -> None:
        """Copy the wanted positions of the row's values [T, d_in], with a delta [T or 1, d_in] added. Padding may
        follow the positions. This is called within the pass of all rows, so it raises nothing.
        """
        low, high = self._span
        if low >= high:
            return
        try:
            wanted = slice(low - self._start, high - self._start)
            copied = value[wanted].detach()
            if delta is None:
                copied = copied.clone()
            else:
                copied = copied + (delta[wanted] if len(delta) > 1 else delta)
        except Exception as error:
            self.fail(error)
            return
        self._copied = low, copied

    @property
    def is_streamed(self) -> bool:
        """Whether what was read is sent while the row goes on."""
        return False

    def settle(self) -> None:
        """Called after the pass: encode the copied positions once there are ENCODE_POSITIONS of them, or at once where
        the readings are streamed."""
        if self._copied is not None:
            if self._keeps_last:
                self._caught.clear()
            self._caught.append(self._copied)
            self._copied = None
        caught = sum(len(rows) for _, rows in self._caught)
        if caught >= (1 if self.is_streamed else ENCODE_POSITIONS):
            self._encode()

    def finish(self) -> None:
        """Encode the copied positions that are left.

        Raises:
            Refusal: INSUFFICIENT_MEMORY where memory ran out over a copy or an encoding; INTERNAL_ERROR where a copy or
                an encoding failed otherwise.
        """
        if self._caught:
            self._encode()
        if self._refusal is not None:
            raise self._refusal

    def _encode(self) -> None:
        caught, self._caught = self._caught, []
        try:
            positions = [low + i for low, rows in caught for i in range(len(rows))]
            self.read(positions, torch.cat([rows for _, rows in caught]))
        except Exception as error:
            caught.clear()
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Read nothing more. The row ends with a refusal once it is complete; other rows of the pass go on."""
        log.exception("activations_failed")
        self._caught, self._span = [], (0, 0)
        self._refusal = Refusal("INTERNAL_ERROR", "the activations could not be encoded")
        if memory.is_exhausted(error):
            device = memory.exhausted(error, self.sae.W_enc.device)
            why = f"{device} ran out of memory over the activations asked for"
            self._refusal = Refusal("INSUFFICIENT_MEMORY", why, **memory.described(device))
        memory.recover(error)


def positions_at_once(width: int, sae: Sae) -> int:
    """The positions that are encoded at once where `width` features of an SAE are kept of each."""
    return max(1, ENCODE_BYTES // (4 * max(width, sae.d_in)))


class TapReader(RowReader):
    """The readings of one row at one attached SAE."""

    def __init__(self, tap: Tap, sae: Sae, prompt_tokens: int) -> None:
        super().__init__(sae, is_before=tap.is_before, keeps_last=tap.positions == "last")
        self._tap = tap
        self._prompt_tokens = prompt_tokens
        self._features = None if tap.features is None else sorted(tap.features)
        self._narrowed: Sae | None = None
        self._readings: list[tuple[int, list[tuple[int, float]]]] = []

    def span(self, start: int, end: int) -> tuple[int, int]:
        return activations.span(self._tap.positions, self._prompt_tokens, start, end)

    @property
    def is_streamed(self) -> bool:
        """Whether readings are sent while the row goes on. Which position is the last is known at the end only."""
        return self._tap.is_streamed and self._tap.positions != "last"

    def readings(self, row: BatchRow, text_of: TextOf) -> list[Reading]:
        """The readings of all positions that were not given before. `row` has the tokens.

        Raises:
            Refusal: as `finish`.
        """
        self.finish()
        read, self._readings = self._readings, []
        if not self._tap.is_streamed:
            return [Reading(at, row.token_at(at), features) for at, features in read]
        return [
            Reading(at, row.token_at(at), features, text_of(row.token_at(at)))
            for at, features in read
        ]

    def read(self, positions: Sequence[int], rows: Tensor) -> None:
        is_whole = self._features is None or self.sae.activation in NEEDS_K
        width = self.sae.d_sae if is_whole else len(self._features or ())
        step = positions_at_once(width, self.sae)
        for first in range(0, len(rows), step):
            values = self._values(rows[first : first + step])
            for i, row in enumerate(values.cpu(), first):
                self._readings.append((positions[i], self._largest(row)))

    def _values(self, rows: Tensor) -> Tensor:
        """All features [n, d_sae] of values [n, d_in], or only the features that the tap names, by index."""
        if self._features is None:
            return self.sae.encode(rows)
        if self.sae.activation in NEEDS_K:
            return self.sae.encode_columns(rows, self._features)
        if self._narrowed is None:
            self._narrowed = self.sae.narrowed(self._features)
        return self._narrowed.encode(rows)

    def _largest(self, values: Tensor) -> list[tuple[int, float]]:
        """The largest features of one position, each with its value. Inactive ones are listed only where features were
        named."""
        ranked = largest(values, self._tap.top_k)
        if self._features is not None:
            return [(self._features[place], value) for place, value in ranked]
        return [(index, value) for index, value in ranked if value != 0]


Kind = TypeVar("Kind", bound=RowReader)


class Readers(Observer, Generic[Kind]):
    """An observer that has a reader for each row whose request asked for something."""

    def __init__(self) -> None:
        self._readers: dict[RowName, tuple[int, Kind]] = {}
        self._in_pass: list[Kind] = []

    def expect(
        self, rows: Sequence[BatchRow], spans: Sequence[Span]
    ) -> Iterable[tuple[int, Catch]]:
        if not self._readers:
            return ()
        wanted: dict[int, list[tuple[int, Kind]]] = {}
        for place, (row, span) in enumerate(zip(rows, spans, strict=True)):
            if (reading := self._readers.get(row.name)) is not None:
                number, reader = reading
                reader.expect(*span)
                wanted.setdefault(number, []).append((place, reader))
        self._in_pass = [reader for readers in wanted.values() for _, reader in readers]
        return [(number, partial(_catch_rows, readers)) for number, readers in wanted.items()]

    def settle(self) -> None:
        for reader in self._in_pass:
            try:
                reader.settle()
            except Exception as error:
                # the row ends with a refusal; what was read of other rows is kept
                reader.fail(error)
        self._in_pass = []

    def discard(self) -> None:
        self._in_pass = []

    def forget(self, request: int) -> None:
        for name in [name for name in self._readers if name[0] == request]:
            del self._readers[name]


class Taps(Readers[TapReader]):
    """The readers of all rows whose request asked for activations. Their readings are sent before the end of the row,
    or with a streamed tap as soon as they are there. `text_of` gives the text of a token."""

    def __init__(self, text_of: TextOf = lambda token: "") -> None:
        super().__init__()
        self._text_of = text_of

    def begin(
        self, command: Generate | Score | Embed, rows: Sequence[BatchRow], saes: HookedSaes
    ) -> None:
        """Raises:
        Refusal: SAE_NOT_ATTACHED; INSUFFICIENT_MEMORY as `HookedSaes.sae`.
        """
        tap = None if isinstance(command, Embed) else command.tap
        if tap is None:
            return
        number, sae = saes.find(tap.key).number, saes.sae(tap.key)
        for row in rows:
            self._readers[row.name] = number, TapReader(tap, sae, len(row.prompt))

    def progress(self, row: BatchRow) -> Sequence[Outcome]:
        """Raises:
        Refusal: as `TapReader.readings`.
        """
        if row.name not in self._readers:
            return ()
        _, reader = self._readers[row.name]
        readings = reader.readings(row, self._text_of) if reader.is_streamed else []
        return [Activated(row.request, readings, row.choice)] if readings else ()

    def end(self, row: BatchRow) -> Sequence[Outcome]:
        """Raises:
        Refusal: as `TapReader.readings`.
        """
        if row.name not in self._readers:
            return ()
        _, reader = self._readers.pop(row.name)
        readings = reader.readings(row, self._text_of)
        return [Activated(row.request, readings, row.choice)]


def _catch_rows(
    readers: Sequence[tuple[int, RowReader]], value: Tensor, delta: Tensor | None
) -> None:
    """Give each reader the value of its row, with the row's delta added where the reader reads the value after
    steering."""
    for place, reader in readers:
        added = None
        if delta is not None and not reader.is_before:
            added = delta[place if len(delta) > 1 else 0]
        reader.catch(value[place], added)
