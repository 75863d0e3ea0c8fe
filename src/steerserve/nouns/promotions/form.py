"""The result of a job that computes promoted tokens."""

from __future__ import annotations

from steerserve.rules.form import Form


class PromotedFeatures(Form, frozen=True):
    """The result of a job that computed the promoted tokens of all features of an attached SAE, `tokens` of each."""

    sae_id: str
    layer: int
    features: int
    tokens: int
