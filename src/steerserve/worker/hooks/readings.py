"""What edits and conditions read of the value of a site: activations of features, and projections on directions.

A number that is read is one product and one sum over the width of its own row, so it has the same bits in every batch,
and however a prompt is divided into passes. Where the activations of an SAE depend on each other, all of them are
computed, for a whole block of positions of the prompt at once (`Encoded`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steerserve.rules.steering.edits import Feature
from steerserve.rules.steering.vector import Direction
from steerserve.worker.hooks.parts import Part, Reads, Span
from steerserve.worker.sae.canonical import NEEDS_K, Sae

_REMEMBERED = 4096
"""The directions that are kept on their devices."""

READ_NUMBERS = 1 << 24
"""The most numbers of rows that are copied at once for their readings; a row is copied once for each reading of it."""

BLOCK = 32
"""The positions of a prompt that are encoded together where the activations of an SAE depend on each other."""


class Directions:
    """The directions of edits on their devices, with the directions of length 1."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[Direction, torch.device], tuple[Tensor, Tensor]] = (
            OrderedDict()
        )

    def at(self, direction: Direction, device: torch.device) -> tuple[Tensor, Tensor]:
        """The direction v and v / |v|, each float32 [width]. The length is taken in double precision."""
        name = direction, device
        held = self._held.get(name)
        if held is None:
            raw = torch.from_numpy(np.frombuffer(direction.data, "<f4").astype(np.float64))
            held = raw.float().to(device), (raw / raw.norm()).float().to(device)
            self._held[name] = held
            if len(self._held) > _REMEMBERED:
                self._held.popitem(last=False)
        return held


Readings = dict[tuple[int, Reads], tuple[Tensor, int]]
"""What the conditions of a pass have read so far: for each row and reading, the numbers [n, T] that were read together,
and the place of its own [T] among them."""


class Encoded:
    """The activations of rows whose SAE chooses among all features, computed once in a pass.

    The product with the whole encoder may have other bits for another number of rows. So positions of a prompt are
    encoded in blocks of BLOCK that begin at multiples of BLOCK, and zeros stand for positions of a block that are not
    in the pass. The one position of a decode pass is encoded by itself.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self._held: dict[tuple[int, int], Tensor] = {}

    def activations(self, sae: Sae, part: Part, x: Tensor) -> Tensor:
        """The activations [T, d_sae] of the row x [T, width] of a part."""
        name = id(sae), part.row
        if name not in self._held:
            first = self._span.first[part.row]
            is_decoded = len(x) == 1 and first >= part.steering.prompt_tokens
            self._held[name] = sae.encode(x) if is_decoded else _in_blocks(sae, x, first)
        return self._held[name]


def _in_blocks(sae: Sae, x: Tensor, first: int) -> Tensor:
    """The activations [T, d_sae] of positions x [T, width] from `first` on."""
    before = first % BLOCK
    end = before + len(x)
    blocks = functional.pad(x, (0, 0, before, -end % BLOCK)).split(BLOCK)
    return torch.cat([sae.encode(block) for block in blocks])[before:end]


class ReadGroup:
    """Readings of different rows that are made together: of features of one SAE, or of directions.

    `members` have the place of each row among those of the site, the row itself, and what is read. Where the
    activations of the SAE depend on each other, all members are of one row.
    """

    def __init__(
        self,
        members: Sequence[tuple[int, Part, Reads]],
        sae: Sae | None,
        directions: Directions,
        device: torch.device,
        count: int,
    ) -> None:
        self.members = members
        self._sae = sae
        self._narrowed: Sae | None = None
        self._units: Tensor | None = None
        self._index = index_of([place for place, _, _ in members], count, device)
        features = [reads.index for _, _, reads in members if isinstance(reads, Feature)]
        self._features = features
        if sae is None:
            units = [
                directions.at(reads, device)[1]
                for _, _, reads in members
                if isinstance(reads, Direction)
            ]
            self._units = torch.stack(units)
        elif sae.activation not in NEEDS_K:
            self._narrowed = sae.narrowed(features)

    def read(self, x: Tensor, encoded: Encoded) -> Tensor:
        """What is read of the rows x [rows of the site, T, width], float32 [n, T]."""
        if self._units is None and self._narrowed is None:
            assert self._sae is not None
            place, part, _ = self.members[0]
            return encoded.activations(self._sae, part, x[place])[:, self._features].T
        # each number is read by itself, so a prompt may be cut anywhere
        size = max(1, READ_NUMBERS // (len(self.members) * x.shape[-1]))
        if x.shape[1] <= size:
            return self._each(x)
        return torch.cat([self._each(part) for part in x.split(size, 1)], 1)

    def _each(self, x: Tensor) -> Tensor:
        rows = x if self._index is None else x[self._index]
        if self._units is not None:
            return (rows * self._units[:, None]).sum(-1)
        assert self._narrowed is not None
        return self._narrowed.encode_each(rows)


def index_of(places: Sequence[int], count: int, device: torch.device) -> Tensor | None:
    """These places of `count` rows as an index; None where they are all rows in their order."""
    return None if list(places) == list(range(count)) else torch.tensor(places, device=device)


def length(x: Tensor) -> Tensor:
    """|x| over the last dimension, each from one sum over it."""
    return (x * x).sum(-1).sqrt()
