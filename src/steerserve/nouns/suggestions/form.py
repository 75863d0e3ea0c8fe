"""What the routes of suggested labels answer."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from steerserve.rules.form import Form


class SuggestedLabel(Form, frozen=True, kw_only=True):
    """A label that a language model suggests for a feature. `score` is the balanced accuracy with which the model tells
    held-out texts in which the feature fires from random ones by the label; null where there were none. `accepted` says
    that it was made a label."""

    index: int
    label: str
    source: Literal["suggested"]
    model: str
    score: float | None
    prompt_version: int
    created_at: datetime
    accepted: bool


class SuggestedLabels(Form, frozen=True, kw_only=True):
    """The result of a job that suggested labels. A feature is `without_examples` where no text has it, and
    `without_label` where the answer of the model was none."""

    sae_id: str
    layer: int
    suggestions: list[SuggestedLabel]
    without_examples: list[int]
    without_label: list[int]


class SuggestionList(Form, frozen=True):
    """The newest suggestion for each feature of an SAE."""

    sae_id: str
    suggestions: list[SuggestedLabel]


class AcceptedLabels(Form, frozen=True):
    """The features that have their suggested label now, and those whose own label was kept."""

    sae_id: str
    accepted: list[int]
    kept: list[int]
