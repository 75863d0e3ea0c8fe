"""All activations of attached SAEs at the tokens of one prompt that are not 0."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from steerserve.messages import ActivationsRead, FeatureValues, Refused
from steerserve.worker.rows.goals import PartedReading
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae.canonical import Sae
from steerserve.worker.sae.sites import Site

STEP_VALUES = 1 << 20
"""The most features times positions that are encoded in one step."""


class ActivationReading(PartedReading):
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

    def work_in_parts(self, row: BatchRow) -> Generator[None, None, ActivationsRead | Refused]:
        if not self._positions:
            return ActivationsRead(
                row.request, row.choice, 0, [FeatureValues() for _ in self.sites]
            )
        read: list[FeatureValues] = []
        for number, sae in enumerate(self._saes):
            parts, self._values[number] = self._values[number], []
            values = parts[0] if len(parts) == 1 else torch.cat(parts)
            found: list[tuple[Tensor, Tensor, Tensor]] = []
            size = max(1, STEP_VALUES // sae.d_sae)
            for first in range(0, len(values), size):
                if read or found:
                    yield
                encoded = sae.encode(values[first : first + size])
                if not bool(torch.isfinite(encoded).all()):
                    why = "the model produced NaN or infinite states"
                    return row.refused("NON_FINITE_LOGITS", why)
                places, features = encoded.nonzero(as_tuple=True)
                found.append((features, places + first, encoded[places, features]))
            read.append(self._packed(found))
        return ActivationsRead(row.request, row.choice, len(self._positions), read)

    def _packed(self, found: Sequence[tuple[Tensor, Tensor, Tensor]]) -> FeatureValues:
        features, places, values = (torch.cat(part) for part in zip(*found, strict=True))
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
