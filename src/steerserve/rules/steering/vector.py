"""A vector: directions of the residual stream (or another site) of a model, one for each layer that it has."""

from __future__ import annotations

import msgspec

ADD, PROJECT = "add", "project"
OPERATIONS = (ADD, PROJECT)


class Direction(msgspec.Struct, frozen=True, order=True, tag=True, cache_hash=True):
    """A direction at one site of one layer. `data` has its numbers as float32, little-endian, [width]."""

    layer: int
    site: str
    data: bytes

    @property
    def width(self) -> int:
        """The number of its numbers."""
        return len(self.data) // 4


class Vector(msgspec.Struct, frozen=True):
    """A vector as edits use it. `operation` is `project` for a vector that must be projected out and never added.
    `directions` are in the order of layer and site, and no two of them have both the same."""

    id: str
    name: str
    content_digest: str
    directions: tuple[Direction, ...]
    operation: str = ADD
