"""The edits of one row at one attached SAE: what moves the activations of some features to their targets.

The result does not depend on the other rows of a pass: each row is read alone, in blocks of as many positions as a
prefill pass is padded to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from steerserve.rules.inference.stepping import WIDTH
from steerserve.rules.steering.edits import Edit, Feature
from steerserve.worker.sae.canonical import NEEDS_K, Sae


class RowEdits:
    """The edits of one row, in their order. `reader` is the SAE with its encoder on the device of the site, where the
    changes are computed. Its decoder rows may be elsewhere, and the rows that are needed are copied."""

    def __init__(self, edits: Sequence[Edit], reader: Sae, device: torch.device) -> None:
        self._edits = tuple(edits)
        self._features = sorted({edit.at.index for edit in edits if isinstance(edit.at, Feature)})
        self._chooses = reader.activation in NEEDS_K
        self._reader = reader if self._chooses else reader.narrowed(self._features)
        self._directions = reader.written(self._features).to(device)

    def change(self, value: Tensor) -> Tensor:
        """What is added to the value [T, width] of the row, in float32 [T, width]: the sum of strength x (t(a) - a) x d
        over the edits. It is exactly 0 where no edit moves an activation."""
        x = value.float()
        activations, scale = self._read(x)
        moved = torch.zeros_like(x)
        for edit in self._edits:
            assert isinstance(edit.at, Feature)
            column = self._features.index(edit.at.index)
            before, target = activations[:, column], edit.target
            after = (before * target.factor + target.offset).clamp(target.low, target.high)
            moved += (edit.strength * (after - before))[:, None] * self._directions[column]
        return moved * scale

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The activations [T, features] of the edited features, and the scale [T or 1, 1] by which the normalisation of
        the SAE multiplies what it writes."""
        read = [self._encode(block) for block in x.split(WIDTH)]
        return torch.cat(read), self._reader.row_scale(x)

    def _encode(self, x: Tensor) -> Tensor:
        activations = self._reader.encode(x)
        return activations[:, self._features] if self._chooses else activations
