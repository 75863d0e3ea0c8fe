"""One vector of activations for each prompt, which jobs read."""

from __future__ import annotations

from typing import Literal

from steerserve.messages import Message
from steerserve.parts.part import Part


class Pool(Message, frozen=True):
    """The activations of the attached SAE `key`: the largest of each feature over the positions (`max`), their mean
    (`mean`), or those at the last position (`last`). Position 0 and special tokens are left out, unless
    `has_special`."""

    key: str
    how: Literal["max", "mean", "last"]
    has_special: bool = False


class Pooled(Message, frozen=True):
    """The vector of one prompt, over `positions` positions. `features` are the indices of the features that are not 0,
    as little-endian uint32 in their order, and `values` their values, as little-endian float32. They are empty where no
    position is left."""

    positions: int
    features: bytes
    values: bytes


class PoolPart(Part[Pool, Pooled]):
    name = "pool"
    form = Pool
    chunk = Pooled
    row = "steerserve.parts.pool.row:PoolRow"


POOL = PoolPart()
