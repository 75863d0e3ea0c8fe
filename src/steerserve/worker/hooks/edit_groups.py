"""Edits of different rows that are made together: the k-th edit of each of these rows, all of one form."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.rules.steering.edits import RAW, RESIDUAL, Edit, Feature
from steerserve.rules.steering.vector import Direction
from steerserve.worker.hooks.parts import Part
from steerserve.worker.hooks.readings import Directions, Encoded, index_of, length
from steerserve.worker.sae.canonical import NEEDS_K, Sae


class EditGroup:
    """Edits of different rows that are made together: the k-th edit of each of these rows, all of one form.

    `rows` are the places of the rows among those of the site. `sae` is the SAE whose features are edited. `is_masked`:
    some of the edits act at some positions only.

    `gate` is the part of the decisions of the site (`Gates`) that are those of the edits; None where no edit has a
    condition.
    """

    def __init__(
        self,
        members: Sequence[tuple[int, Part, Edit]],
        sae: Sae | None,
        directions: Directions,
        device: torch.device,
        count: int,
    ) -> None:
        self.members = members
        self.sae = sae
        self.gate: slice | None = None
        self.is_masked = any(
            part.steering.mask(edit, 0, 1) is not None for _, part, edit in members
        )
        edits = [edit for _, _, edit in members]
        self.rows = index_of([row for row, _, _ in members], count, device)
        targets = [edit.target for edit in edits]
        columns = [
            [target.factor for target in targets],
            [target.offset for target in targets],
            [target.low for target in targets],
            [target.high for target in targets],
            [edit.strength for edit in edits],
        ]
        # one transfer for all of them
        numbers = torch.tensor(columns, dtype=torch.float32, device=device)[..., None]
        self.factor, self.offset, self.low, self.high, self.strength = numbers.unbind()
        self.reads: Tensor | None = None
        self.is_added = edits[0].is_added
        self.is_residual = self.is_added and edits[0].unit == RESIDUAL
        if sae is not None:
            features = [edit.at.index for edit in edits if isinstance(edit.at, Feature)]
            self.features = features
            self.narrowed = None if sae.activation in NEEDS_K else sae.narrowed(features)
            writes = sae.written(features)
            if self.is_added:
                writes = torch.stack([sae.direction({feature: 1.0}) for feature in features])
            self.writes = writes.to(device)
            return
        units, written = [], []
        for edit in edits:
            assert isinstance(edit.at, Direction)
            raw, unit = directions.at(edit.at, device)
            units.append(unit)
            if edit.to is not None:
                written.append(directions.at(edit.to, device)[1] - unit)
            else:
                written.append(raw if edit.is_added and edit.unit == RAW else unit)
        self.reads = torch.stack(units)
        self.writes = torch.stack(written)

    def of(self, value: Tensor) -> Tensor:
        """The rows of the group, of a tensor with all rows of the site."""
        return value if self.rows is None else value[self.rows]

    def moved(self, x: Tensor, y: Tensor | None, encoded: Encoded) -> Tensor:
        """How far each row moves along its direction at each position, [g, T]; `x` [n, T, width] is the value before
        the edits, and `y` the value so far."""
        if self.is_added:
            amount = self.offset.expand(-1, x.shape[1])
            return amount * length(self.of(x)) if self.is_residual else amount
        if self.reads is None:
            read = self._activations(self.of(x), encoded)
        else:
            assert y is not None
            read = (self.of(y) * self.reads[:, None]).sum(-1)
        target = (read * self.factor + self.offset).clamp(self.low, self.high)
        return self.strength * (target - read)

    def scale(self, x: Tensor) -> Tensor | None:
        """What the SAE multiplies its output with at each position, [g, T, 1]; None where it does not."""
        if self.sae is None or self.sae.normalisation == "none" or self.is_added:
            return None
        return self.sae.row_scale(self.of(x))

    def _activations(self, x: Tensor, encoded: Encoded) -> Tensor:
        assert self.sae is not None
        if self.narrowed is not None:
            return self.narrowed.encode_each(x)
        return torch.stack(
            [
                encoded.of(self.sae, part, rows)[:, feature]
                for (_, part, _), feature, rows in zip(self.members, self.features, x, strict=True)
            ]
        )
