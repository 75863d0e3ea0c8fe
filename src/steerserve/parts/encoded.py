"""The base of parts that encode the values of an attached SAE's site."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import torch
from torch import Tensor

from steerserve.errors import Refusal
from steerserve.parts.row_part import Read, RowFacts, RowPart, SaeRead
from steerserve.worker import memory
from steerserve.worker.sae.canonical import Sae

log = structlog.get_logger(__name__)
ENCODE_BYTES = 1 << 26
"""The most bytes of the features that are encoded at once, positions x features in float32. Encoding holds a few such
tensors."""

ENCODE_POSITIONS = 64
"""Copied positions are encoded once there are this many, so that the encoder's weights are read once for all of
them."""


class EncodedPart(RowPart):
    """Encodes copied values between passes. A class says in `encode` what becomes of the values. With `keeps_last` only
    the values of the last pass count. With `is_streamed` nothing waits."""

    may_reuse = False

    def __init__(
        self,
        key: str,
        facts: RowFacts,
        *,
        is_before: bool,
        keeps_last: bool = False,
        is_streamed: bool = False,
    ) -> None:
        number, self.sae = facts.sae(key)
        self.reads = (SaeRead(number, is_before),)
        self._keeps_last = keeps_last
        self._wait = 1 if is_streamed else ENCODE_POSITIONS
        self._copied: list[tuple[int, Tensor]] = []

    def encode(self, positions: Sequence[int], values: Tensor) -> None:
        """Take the values [n, d_in] at these positions."""
        raise NotImplementedError

    def read_values(self, read: Read, values: Sequence[Tensor], first: int) -> None:
        if self._keeps_last:
            self._copied.clear()
        self._copied.append((first, values[0]))
        if sum(len(values) for _, values in self._copied) >= self._wait:
            self.encode_rest()

    def encode_rest(self) -> None:
        """Encode what is copied."""
        copied, self._copied = self._copied, []
        if copied:
            positions = [low + i for low, values in copied for i in range(len(values))]
            self.encode(positions, torch.cat([values for _, values in copied]))

    def refusal(self, error: Exception) -> Exception:
        if isinstance(error, Refusal):
            return error
        log.error("activations_failed", exc_info=error)
        self._copied.clear()
        if not memory.is_exhausted(error):
            return Refusal("INTERNAL_ERROR", "the activations could not be encoded")
        device = memory.exhausted(error, self.sae.W_enc.device)
        why = f"{device} ran out of memory over the activations asked for"
        return Refusal("INSUFFICIENT_MEMORY", why, **memory.described(device))


def positions_at_once(width: int, sae: Sae) -> int:
    """The positions that are encoded at once where `width` features of an SAE are kept of each."""
    return max(1, ENCODE_BYTES // (4 * max(width, sae.d_in)))
