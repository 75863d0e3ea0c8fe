"""What is armed for sensing, as columns: one column for each feature of each armed cluster or circuit.

All columns of one SAE are encoded by one product. A column fires where its activation is above its threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steerserve.messages import ArmedCircuit, ArmedCluster
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.target import Target, target_of
from steerserve.worker.sae.canonical import NEEDS_K

ENCODE_BYTES = 1 << 26
"""The most bytes of the features that are encoded at once, positions x features in float32."""

ArmedSubject = ArmedCluster | ArmedCircuit


class Fires(NamedTuple):
    """Firings of one row in the order of their positions: positions, columns and activations, each [n]."""

    positions: NDArray[np.int64]
    columns: NDArray[np.int64]
    activations: NDArray[np.float32]

    def where(self, chosen: NDArray[np.bool_]) -> Fires:
        return Fires(self.positions[chosen], self.columns[chosen], self.activations[chosen])

    def part(self, first: int, end: int) -> Fires:
        """A copy of the firings [first, end)."""
        positions, columns = self.positions[first:end], self.columns[first:end]
        return Fires(positions.copy(), columns.copy(), self.activations[first:end].copy())


@dataclass(frozen=True, slots=True)
class SensedSite:
    """The columns at one attached SAE. `places` [columns] has the place of each column's feature among the features of
    the target, `thetas` [columns] the thresholds. `width` is the number of features that are computed for a row."""

    target: Target
    places: Tensor
    thetas: Tensor
    columns: tuple[int, ...]
    width: int

    def activations(self, rows: Tensor) -> Tensor:
        """The activations [n, columns] of values [n, d_in] where they are above the thresholds, and 0 elsewhere."""
        step = max(1, ENCODE_BYTES // (4 * self.width))
        parts = []
        for first in range(0, len(rows), step):
            values = self.target.encode(rows[first : first + step])[:, self.places]
            fires = (values > self.thetas) & torch.isfinite(values)
            parts.append(torch.where(fires, values, values.new_zeros(())))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True, eq=False)
class ArmedPart:
    """One armed cluster or circuit, its first column, and the column behind its last one."""

    subject: ArmedSubject
    first: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Arming:
    """Everything that is armed at one time. `number` names it; rows that begin later may have another one. `sites` are
    the SAEs that are read, by their numbers."""

    number: int
    parts: tuple[ArmedPart, ...]
    sites: dict[int, SensedSite]
    width: int

    def fires(self, values: dict[int, Tensor]) -> NDArray[np.float32]:
        """The activations [n, width] of all columns where they fire, from the values [n, d_in] of each site."""
        order = [column for number in values for column in self.sites[number].columns]
        found = [self.sites[number].activations(rows) for number, rows in values.items()]
        if len({part.device for part in found}) > 1:
            found = [part.cpu() for part in found]
        together = torch.cat(found, dim=1).cpu().numpy()  # one transfer
        if order == list(range(self.width)):
            return together
        sorted_columns = np.zeros((len(together), self.width), dtype=np.float32)
        sorted_columns[:, order] = together
        return sorted_columns


def make_arming(number: int, subjects: Sequence[ArmedSubject], saes: HookedSaes) -> Arming | None:
    """The arming of these clusters and circuits; None where there are none.

    Raises:
        Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; INSUFFICIENT_MEMORY as `HookedSaes.sae`.
    """
    parts: list[ArmedPart] = []
    at: dict[str, list[tuple[int, int, float]]] = {}
    width = 0
    for subject in subjects:
        columns = list(_columns(subject))
        for column, (key, feature, theta) in enumerate(columns, width):
            at.setdefault(key, []).append((column, feature, theta))
        parts.append(ArmedPart(subject, width, width + len(columns)))
        width += len(columns)
    if not parts:
        return None
    sites = {}
    for key, wanted in at.items():
        site = _site(saes, key, wanted)
        sites[site.target.number] = site
    return Arming(number, tuple(parts), sites, width)


def keys_of(subject: ArmedSubject) -> set[str]:
    """The keys of the SAEs that a cluster or circuit reads."""
    return {key for key, _, _ in _columns(subject)}


def _columns(subject: ArmedSubject) -> Iterator[tuple[str, int, float]]:
    """SAE key, feature and threshold of each column of a cluster or circuit."""
    if isinstance(subject, ArmedCluster):
        yield from ((subject.key, member.feature, member.theta) for member in subject.members)
    else:
        yield from ((one.key, one.feature, one.theta) for one in subject.features)


def _site(saes: HookedSaes, key: str, wanted: Sequence[tuple[int, int, float]]) -> SensedSite:
    features = sorted({feature for _, feature, _ in wanted})
    target = target_of(saes, key, features, 1)
    places = [features.index(feature) for _, feature, _ in wanted]
    is_whole = saes.find(key).sae.activation in NEEDS_K
    return SensedSite(
        target,
        torch.tensor(places, device=target.device),
        torch.tensor([theta for _, _, theta in wanted], dtype=torch.float32, device=target.device),
        tuple(column for column, _, _ in wanted),
        target.d_sae if is_whole else len(features),
    )
