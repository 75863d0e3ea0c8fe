"""What the routes of steering, of profiles and of clusters answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.rules.form import Form

Values = dict[str, float]
"""Feature index, as a text -> value."""


class SteeringState(Form, frozen=True):
    """The live values of one SAE. `enabled` is the one switch of steering. `others` has the values of the other SAEs by
    `<sae_id>@<layer>`, and is left out where no other SAE has values. After values were deleted, `warnings` say which
    edits still steer their features; it is left out where none do."""

    enabled: bool
    values: Values
    others: dict[str, Values] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class LiveInterventions(Form, frozen=True):
    """The live interventions: the edits as they were sent, and the epoch of the live steering. `enabled` is the one
    switch of steering."""

    edits: list[dict[str, object]]
    mode: Literal["add", "replace"]
    preserve_norm: bool
    enabled: bool
    epoch: int
