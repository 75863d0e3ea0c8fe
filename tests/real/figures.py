"""How far answers of the service and transformers' own passes in bfloat16 are from float32, case by case. All figures are
printed at the end of a run, and kept in benchmarks/results/ with KEEP=1."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import torch
from benchmarks.kept import Kept
from torch import Tensor

from steerserve.rules.models.nearness import (
    HIGH_RATIO,
    MEAN_RATIO,
    MODULE_MEAN_RATIO,
    WRONG_RATIO,
    Distance,
    distance_of,
)

KEEP = bool(os.environ.get("KEEP"))
FEWEST, FEWEST_FOR_QUANTILE = 250, 1000
"""The positions over which the bounds of a whole model hold for the mean and for the quantile. Over fewer, two or three
positions decide the quantile, and it only shows what computes something else."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The distances from float32 of the service and of transformers in bfloat16, over the same positions."""

    positions: int
    served: Distance
    library: Distance
    largest: float

    @property
    def is_near(self) -> bool:
        """Whether the service is as near to float32 as the library, with the bounds for so many positions."""
        mean = MEAN_RATIO if self.positions >= FEWEST else MODULE_MEAN_RATIO
        high = HIGH_RATIO if self.positions >= FEWEST_FOR_QUANTILE else WRONG_RATIO
        served, library = self.served, self.library
        return served.mean <= mean * library.mean and served.high <= high * library.high

    def __str__(self) -> str:
        served, library = self.served, self.library
        return (
            f"{self.positions} positions, mean {served.mean:.3g} (library {library.mean:.3g}), "
            f"99 % {served.high:.3g} ({library.high:.3g}), largest {self.largest:.3g}"
        )


class Figures:
    """The figures of a run."""

    def __init__(self) -> None:
        self._kept = Kept("real")
        self.lines: list[str] = []
        self._cases: dict[str, dict[str, Any]] = {}

    def compare(self, model: str, case: str, served: Tensor, library: Tensor) -> Compared:
        """Note the distances [positions] of a case, and return the comparison."""
        found = Compared(
            len(served),
            distance_of(served.tolist()),
            distance_of(library.tolist()),
            float(served.max()),
        )
        self.lines.append(f"{model}: {case}: {found}")
        self._cases.setdefault(model, {})[case] = asdict(found)
        return found

    def note(self, model: str, case: str, **figures: Any) -> None:
        """Note other figures of a case."""
        self.lines.append(f"{model}: {case}: {figures}")
        self._cases.setdefault(model, {})[case] = figures

    def end(self) -> None:
        """Keep what was found, where that is wanted."""
        if KEEP and self._cases:
            self._kept.end({"models": self._cases})


def rows_off(found: Tensor, true: Tensor) -> Tensor:
    """By how much rows [rows, n] are off the true ones: the length of the difference over that of the true row."""
    return (found - true).norm(dim=-1) / true.norm(dim=-1)


def spread_off(found: Tensor, true: Tensor) -> Tensor:
    """By how many nats log-probabilities [rows, n] are off the true ones: the root of the mean square of each row."""
    return (found - true).square().mean(-1).sqrt()


def pooled(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The distances of several cases together."""
    return torch.cat([served for served, _ in parts]), torch.cat([own for _, own in parts])
