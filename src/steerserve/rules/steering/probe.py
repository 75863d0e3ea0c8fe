"""A probe: at each of its layers a linear classifier of the residual stream (or another site) of a model."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec

from steerserve.rules.form import Form
from steerserve.rules.steering.vector import Convention, Direction, content_digest

ID_PREFIX = "probe_"


class Probe(msgspec.Struct, frozen=True):
    """A probe as conditions use it: at the k-th of its places it reads w · x + b, where w are the numbers of the k-th
    of `directions`, and b is the k-th of `biases`. `best_layer` is the layer at which it told held-out examples apart
    best; None where that is not known."""

    id: str
    name: str
    content_digest: str
    directions: tuple[Direction, ...]
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


class ReadProbe(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from a file of a probe: its weights in the order of layer and site, and a bias for each. `keys` are
    the names of the tensors or fields that became weights. `training` is what a document of this service says."""

    format: str
    directions: tuple[Direction, ...]
    biases: tuple[float, ...]
    keys: tuple[str, ...] = ()
    layer_convention: Convention = "resid_post"
    layer_offset: int = 0
    model_hint: str | None = None
    warnings: tuple[str, ...] = ()
    training: dict[str, object] | None = None


class ProbeLayer(Form, frozen=True):
    """Where a probe reads, the length of its weights there, and its bias."""

    layer: int
    site: str
    norm: float
    bias: float


def digest(directions: Sequence[Direction], biases: Sequence[float]) -> str:
    """The SHA-256 of the digest of the weights, as text, and of the biases as float64, little-endian."""
    packed = struct.pack(f"<{len(biases)}d", *biases)
    return hashlib.sha256(content_digest(directions).encode() + packed).hexdigest()
