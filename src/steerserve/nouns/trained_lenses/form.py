"""What the routes of trained lenses answer."""

from __future__ import annotations

from steerserve.nouns.lens.rules import LensRecord
from steerserve.rules.form import Form


class LensList(Form, frozen=True):
    """A page of the trained lenses, and how many there are in all."""

    lenses: list[LensRecord]
    total: int


class DeletedLens(Form, frozen=True):
    """The trained lens that was deleted."""

    lens_id: str
