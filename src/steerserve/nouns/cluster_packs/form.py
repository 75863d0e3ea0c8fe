"""What a preview of a pack of clusters answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackedDefinition:
    """One definition of a pack. Facts that the pack does not tell are None."""

    file: str
    name: str | None = None
    member_count: int | None = None
    base_model: str | None = None
