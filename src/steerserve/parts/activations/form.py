"""The activations of an attached SAE that an answer carries."""

from __future__ import annotations

from steerserve.messages import Message
from steerserve.parts.part import Part


class Tap(Message, frozen=True):
    """Activations to read at the attached SAE `key`; `rules/inference/activations` explains the values. With
    `is_streamed` the readings of a position are sent as soon as the position was read."""

    key: str
    features: list[int] | None
    top_k: int
    positions: str | tuple[int, int]
    is_before: bool
    max_entries: int
    is_streamed: bool = False


class Reading(Message, frozen=True):
    """Features at one position, as [index, value]: the largest by magnitude first, equals by index. `text` is the text
    of the token; empty where the readings are not streamed. `weights` has the number of each feature by which they are
    ranked, where that is not the value."""

    position: int
    token: int
    features: list[tuple[int, float]]
    text: str = ""
    weights: list[float] = []


ACTIVATIONS = Part(
    "activations", Tap, list[Reading], "steerserve.parts.activations.row:ActivationsRow"
)
