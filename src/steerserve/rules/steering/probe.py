"""A probe: at each of its layers a linear classifier of the residual stream (or another site) of a model."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from steerserve.rules.steering.vector import (
    Direction,
    LayerNorm,
    ReadDirections,
    StoredDirections,
    content_digest,
)

ID_PREFIX = "probe_"


class Probe(StoredDirections, frozen=True):
    """A probe as conditions use it: at the k-th of its places it reads w · x + b, where w are the numbers of the k-th
    of `directions`, and b is the k-th of `biases`. `best_layer` is the layer at which it told held-out examples apart
    best; None where that is not known."""

    biases: tuple[float, ...]
    best_layer: int | None = None

    @property
    def chosen(self) -> int | None:
        """The place that is read where no layer is named: the best layer, or else the only one; None where there are
        several and none is known to be the best."""
        layers = [direction.layer for direction in self.directions]
        if self.best_layer is not None:
            return layers.index(self.best_layer)
        return 0 if len(layers) == 1 else None

    def projection(self, index: int, score: float) -> float:
        """The projection p = x · w / |w| at which the k-th reading is `score`."""
        return (score - self.biases[index]) / self.directions[index].norm


class ReadProbe(ReadDirections, frozen=True, kw_only=True):
    """A probe that was read from a file: its directions are its weights, and each has a bias."""

    biases: tuple[float, ...]


class ProbeLayer(LayerNorm, frozen=True):
    """Where a probe reads, the length of its weights there, and its bias."""

    bias: float


def digest(directions: Sequence[Direction], biases: Sequence[float]) -> str:
    """The SHA-256 of the digest of the weights, as text, and of the biases as float64, little-endian."""
    packed = struct.pack(f"<{len(biases)}d", *biases)
    return hashlib.sha256(content_digest(directions).encode() + packed).hexdigest()
