"""What a measurement of effects answers."""

from __future__ import annotations

from typing import Any

from steerserve.rules.form import Form
from steerserve.rules.inference.effects import Calibrated, EffectRow


class TargetWords(Form, frozen=True):
    """The words whose probability was measured, and the words that they are compared with."""

    words: list[str]
    control: list[str]


class Effects(Form, frozen=True, kw_only=True):
    """What a lever does at each strength.

    `lever` is the lever as it was asked for, and `steering_state` the digest of its steering at the strength 1. `plain`
    has the texts of the model without steering. `rows` has the lever, in the order of the strengths asked for, and
    `random` has as many random directions of the same length in its place, all texts of a strength together;
    `random_missing` says why there are none. `digest` is the SHA-256 of all other fields."""

    digest: str
    model: str
    system_fingerprint: str
    lever: dict[str, Any]
    steering_state: str | None
    prompts: int
    are_stock: bool
    tokens: int
    temperature: float
    seed: int
    target: TargetWords | None
    random_directions: int
    plain: EffectRow
    rows: list[EffectRow]
    calibrated: Calibrated
    random: list[EffectRow]
    random_calibrated: Calibrated | None
    random_missing: str | None
