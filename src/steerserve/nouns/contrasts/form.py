"""What a contrast answers."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from steerserve.control.saes.example_views import FeatureExample
from steerserve.rules.form import Form


class ContrastedTexts(Form, frozen=True):
    """How many texts a contrast had, and how many of them were held out."""

    positives: int
    negatives: int
    held_out: int


class ContrastedFeature(Form, frozen=True, kw_only=True):
    """One feature of a contrast. `auc` is the probability that the feature's pooled activation is larger in a positive
    text than in a negative one, with its 95 % interval, which is null where a group has one text. The means and shares
    are those of the texts that are not held out; a share counts the texts in which the feature fires. `promotes` has
    the three tokens that the feature promotes most, and is null where they are not known. `example` is the strongest
    one in the newest corpus, where examples are asked for; null where there is none."""

    index: int
    label: str | None
    auc: float
    auc_low: float | None
    auc_high: float | None
    auc_held_out: float | None
    mean_positive: float
    mean_negative: float
    share_positive: float
    share_negative: float
    p_corrected: float
    promotes: list[str] | None
    example: FeatureExample | UnsetType | None = UNSET


class Contrast(Form, frozen=True, kw_only=True):
    """The features that tell the positive texts from the negative ones best, and how many features were compared."""

    sae_id: str
    layer: int
    texts: ContrastedTexts
    features: list[ContrastedFeature]
    compared: int
