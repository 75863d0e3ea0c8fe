"""All activations of attached SAEs at the tokens of one prompt that are not 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from steerserve.messages import ActivationsRead, FeatureValues, Refused
from steerserve.worker.rows.goals import StateReading
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

STEP_VALUES = 1 << 20
"""The most features times positions that are encoded in one step."""


class ActivationReading(StateReading):
    """Encodes the values at these `positions` of the prompt with each of `saes`, which read `sites`, some positions in
    each step. The encoder of each SAE is on the device of its site."""

    def __init__(
        self, sites: Sequence[Site], saes: Sequence[Sae], positions: Sequence[int]
    ) -> None:
        super().__init__(sites)
        self._saes = saes
        self._positions = positions
        self._starts = [0] * len(sites)
        self._values: list[list[Tensor]] = [[] for _ in sites]
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []
        self._read: list[FeatureValues] = []
        self._done = 0

    def copied(self, number: int, value: Tensor) -> Callable[[], None]:
        start = self._starts[number]
        end = start + len(value)
        wanted = [at - start for at in self._positions if start <= at < end]
        copy = value[torch.tensor(wanted, device=value.device)] if wanted else None

        def take_in() -> None:
            self._starts[number] = end
            if copy is not None:
                self._values[number].append(copy)

        return take_in

    def work(self, row: BatchRow) -> ActivationsRead | Refused | None:
        number = len(self._read)
        if not self._positions:
            return ActivationsRead(
                row.request, row.choice, 0, [FeatureValues() for _ in self.sites]
            )
        if len(self._values[number]) > 1:
            self._values[number] = [torch.cat(self._values[number])]
        sae, (values,) = self._saes[number], self._values[number]
        size = max(1, STEP_VALUES // sae.d_sae)
        encoded = sae.encode(values[self._done : self._done + size])
        if not bool(torch.isfinite(encoded).all()):
            return row.refused("NON_FINITE_LOGITS", "the model produced NaN or infinite states")
        places, features = encoded.nonzero(as_tuple=True)
        self._found.append((features, places + self._done, encoded[places, features]))
        self._done += size
        if self._done < len(values):
            return None
        self._read.append(self._packed())
        self._values[number], self._found, self._done = [], [], 0
        if len(self._read) < len(self.sites):
            return None
        return ActivationsRead(row.request, row.choice, len(self._positions), self._read)

    def _packed(self) -> FeatureValues:
        features, places, values = (torch.cat(part) for part in zip(*self._found, strict=True))
        # the places rise, and stay in their order within a feature
        order = features.sort(stable=True).indices
        unique, counts = features[order].unique_consecutive(return_counts=True)
        at = torch.tensor(self._positions, device=places.device)[places[order]]
        return FeatureValues(
            unique.cpu().numpy().astype("<u4").tobytes(),
            counts.cpu().numpy().astype("<u4").tobytes(),
            at.cpu().numpy().astype("<u4").tobytes(),
            values[order].cpu().numpy().astype("<f4").tobytes(),
        )
