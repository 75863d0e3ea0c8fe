"""What a measurement of effects answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from steerserve.nouns.effects.rules import (
    Calibrated,
    EffectRow,
    EffectSummary,
    Suggested,
    Supported,
)
from steerserve.rules.form import Form


class TargetWords(Form, frozen=True):
    """The words whose probability was measured, and the words that they are compared with."""

    words: list[str]
    control: list[str]


class Effects(Form, frozen=True, kw_only=True):
    """What a lever does at each strength.

    `lever` is the lever as it was asked for, and `steering_state` the digest of its steering at the strength 1. `plain`
    has the texts of the model without steering. `rows` has the lever, in the order of the strengths asked for, and
    `random` has as many random directions of the same length in its place, all texts of a strength together;
    `random_missing` says why there are none. `digest` is the SHA-256 of all fields but `digest`, `id` and `not_kept`.
    `id` is that of the kept result; where it could not be kept, `not_kept` says why."""

    id: str | None
    not_kept: str | None
    digest: str
    model: str
    system_fingerprint: str
    lever: dict[str, object]
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
    suggested: Suggested
    random: list[EffectRow]
    random_calibrated: Calibrated | None
    random_missing: str | None


class EffectRecord(EffectSummary, frozen=True, kw_only=True):
    """A kept result without its figures, and the documents that it is evidence for."""

    id: str
    created_at: datetime
    evidence_for: Sequence[Supported]


class KeptEffects(EffectRecord, frozen=True, kw_only=True):
    """A kept result."""

    result: Effects


class EffectList(Form, frozen=True):
    """A page of the kept results, the newest first, and how many there are in all."""

    effects: list[EffectRecord]
    total: int


class DeletedEffects(Form, frozen=True):
    """The result that was deleted."""

    effect_id: str
