"""Keys and values of conversations that ended, kept for their next turn.

The beginning of an entry is used as far as the row is steered exactly as the row was that computed it, position by
position, and only by a row of which the observers read the same. The memory of all entries is bounded in tokens; the
entry that was used longest ago is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from steerserve.worker.model.kv import Held

LEAST = 256
"""A shorter prefix is not kept: computing it costs little, and short prompts then never depend on earlier requests."""


@dataclass(frozen=True, slots=True)
class Signature:
    """How a row is steered at its positions, as runs of positions that are steered alike, and what the observers read
    of it."""

    steering: Sequence[tuple[float, Hashable]]
    read: Hashable = None

    def common(self, other: Signature) -> float:
        """The number of positions, from the first, that are steered and read alike."""
        if self.read != other.read:
            return 0
        end = 0.0
        ones, others = iter(self.steering), iter(other.steering)
        one, its = next(ones, None), next(others, None)
        while one is not None and its is not None and one[1] == its[1]:
            end = min(one[0], its[0])
            if one[0] == end == its[0]:
                one, its = next(ones, None), next(others, None)
            elif one[0] == end:
                one = next(ones, None)
            else:
                its = next(others, None)
        return end


@dataclass(frozen=True, slots=True)
class Entry:
    """One row's cache: `held` has the keys and values of `tokens`. `notes` is what the observers read of the row."""

    signature: Signature
    tokens: NDArray[np.int64]
    held: Held
    notes: Sequence[object] = ()


class Prefixes:
    """Prefixes by steering and tokens, at most `most_tokens` of them together."""

    def __init__(self, most_tokens: int) -> None:
        self._most = most_tokens
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._next = 0
        self.tokens = 0

    def tensors(self) -> Iterator[Tensor]:
        """The keys and values of all entries."""
        for entry in self._entries.values():
            for pair in entry.held.values():
                yield from pair

    def find(self, signature: Signature, prompt: list[int]) -> tuple[Entry, int] | None:
        """The entry with the longest prefix in common with a prompt, and the length of that prefix.

        The last token of the prompt is never part of the prefix, because its logits are needed.
        """
        if len(prompt) <= LEAST or not self._entries:
            return None
        wanted = np.asarray(prompt[:-1], dtype=np.int64)
        best, length = None, LEAST - 1
        for number, entry in self._entries.items():
            most = entry.signature.common(signature)
            if most > length:
                common = int(min(most, _common(entry.tokens, wanted)))
                if common > length:
                    best, length = number, common
        if best is None:
            return None
        self._entries.move_to_end(best)
        return self._entries[best], length

    def keep(
        self, signature: Signature, tokens: list[int], held: Held, notes: Sequence[object] = ()
    ) -> None:
        """Add an entry, and drop each entry whose tokens are the beginning of the new entry's tokens."""
        new = np.asarray(tokens, dtype=np.int64)
        for number, entry in list(self._entries.items()):
            size = len(entry.tokens)
            if entry.signature.common(signature) >= size and _common(entry.tokens, new) == size:
                self._drop(number)
        self._entries[self._next] = Entry(signature, new, held, notes)
        self._next += 1
        self.tokens += len(new)
        while self.tokens > self._most:
            self._drop(next(iter(self._entries)))

    def may_keep(self, tokens: int) -> bool:
        """Whether a row of this many tokens is long enough to be kept, and fits."""
        return LEAST <= tokens <= self._most

    def clear(self) -> None:
        self._entries.clear()
        self.tokens = 0

    def _drop(self, number: int) -> None:
        self.tokens -= len(self._entries.pop(number).tokens)


def _common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """The number of tokens that both sequences begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
