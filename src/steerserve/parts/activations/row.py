"""The activations of one row: the values of its site are copied in passes, and encoded after them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from steerserve.parts.activations import form as activations
from steerserve.parts.activations.form import Reading, Tap
from steerserve.parts.encoded import EncodedPart, positions_at_once
from steerserve.parts.row_part import Read, RowFacts
from steerserve.worker.live.ranking import largest
from steerserve.worker.sae.canonical import NEEDS_K, Sae


class ActivationsRow(EncodedPart):
    """The readings of one row at one attached SAE."""

    def __init__(self, tap: Tap, facts: RowFacts) -> None:
        """Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED where the answer could have too many entries; SAE_NOT_ATTACHED,
            INSUFFICIENT_MEMORY.
        """
        size = len(facts.prompt)
        activations.check_entries(
            tap.positions, facts.rows * tap.top_k, size, facts.max_tokens, tap.max_entries
        )
        super().__init__(
            tap.key,
            facts,
            is_before=tap.is_before,
            keeps_last=tap.positions == "last",
            is_streamed=tap.is_streamed and tap.positions != "last",
        )
        self._tap = tap
        self._facts = facts
        self._features = None if tap.features is None else sorted(tap.features)
        self._narrowed: Sae | None = None
        self._readings: list[tuple[int, list[tuple[int, float]]]] = []

    def span(self, read: Read, start: int, end: int) -> tuple[int, int]:
        return activations.span(self._tap.positions, len(self._facts.prompt), start, end)

    def chunk(self, *, is_last: bool) -> list[Reading] | None:
        """The readings that were not given before. Which position is the last is known at the end only."""
        if not is_last and not (self._tap.is_streamed and self._tap.positions != "last"):
            return None
        self.encode_rest()
        found, self._readings = self._readings, []
        if not found and self._tap.is_streamed:
            return None
        return [self._reading(*one) for one in found]

    def _reading(self, position: int, features: list[tuple[int, float]]) -> Reading:
        token = self._facts.token_at(position)
        text = self._facts.text_of(token) if self._tap.is_streamed else ""
        return Reading(position, token, features, text)

    def encode(self, positions: Sequence[int], values: Tensor) -> None:
        is_whole = self._features is None or self.sae.activation in NEEDS_K
        width = self.sae.d_sae if is_whole else len(self._features or ())
        step = positions_at_once(width, self.sae)
        for first in range(0, len(values), step):
            encoded = self._encoded(values[first : first + step])
            for i, row in enumerate(encoded.cpu(), first):
                self._readings.append((positions[i], self._largest(row)))

    def _encoded(self, values: Tensor) -> Tensor:
        """All features [n, d_sae] of values [n, d_in], or only the features that the tap names, by index."""
        if self._features is None:
            return self.sae.encode(values)
        if self.sae.activation in NEEDS_K:
            return self.sae.encode_columns(values, self._features)
        if self._narrowed is None:
            self._narrowed = self.sae.narrowed(self._features)
        return self._narrowed.encode(values)

    def _largest(self, values: Tensor) -> list[tuple[int, float]]:
        """The largest features of one position, each with its value. Inactive ones are listed only where features were
        named."""
        ranked = largest(values, self._tap.top_k)
        if self._features is not None:
            return [(self._features[place], value) for place, value in ranked]
        return [(index, value) for index, value in ranked if value != 0]
