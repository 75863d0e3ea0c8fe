"""What the routes of the lens and of attribution answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.nouns.lens.rules import AttributedPositions, AttributionMethod, LensKind
from steerserve.rules.form import Form


class TokenText(Form, frozen=True):
    """A token, and its text."""

    token_id: int
    token: str


class ProbableToken(Form, frozen=True):
    """One of the most probable next tokens, and its probability over the whole vocabulary."""

    token_id: int
    token: str
    prob: float


class LayerLens(Form, frozen=True):
    """One layer of a lens: for each token of the text the most probable next tokens, the most probable first."""

    layer: int
    positions: list[list[ProbableToken]]


class LensAnswer(Form, frozen=True, kw_only=True):
    """The residual stream after each layer, read as the next token by the model's own final norm and output embedding,
    after the map of a trained lens where `kind` is not `logit`. `lens_id` is that of a registered lens, and null for
    others. What the last layer has is the distribution of the model itself."""

    model: str
    system_fingerprint: str
    kind: Literal["logit"] | LensKind
    lens_id: str | None
    tokens: list[TokenText]
    layers: list[LayerLens]


class AttributedFeature(Form, frozen=True, kw_only=True):
    """A feature that is active at a position, and what it adds to the difference of logits. A feature without a label
    has no field `label`."""

    index: int
    position: int
    activation: float
    contribution: float
    label: str | UnsetType = UNSET


class AttributionAnswer(Form, frozen=True, kw_only=True):
    """A difference of logits at one position, attributed to the features of one SAE.

    `whole` is the model's own logit of `target` after this position, less that of `against`, or less the mean over the
    vocabulary where `against` is null. `whole_before_softcap` is the same before the softcap of the logits, and null
    for a model without one. `total` is the sum of the contributions of all `active` features, `left_out` is `whole`
    less `total`, and `explained` is `total` over `whole`, which is null where `whole` is 0. With `direct_only` later
    parts of the model read what the features write too, and only the direct path to the logits is counted.

    The methods `gradient` and `integrated` count all paths. `effect` is then by how much the difference falls in a run
    in which all `active` features are taken away, `explained` is `total` over `effect`, and `error` is the contribution
    of what the SAE does not rebuild. Both are null for the method `direct`.
    """

    model: str
    system_fingerprint: str
    sae_id: str
    layer: int
    method: AttributionMethod
    over: AttributedPositions
    steps: int | None
    position: int
    token: TokenText
    target: TokenText
    against: TokenText | None
    features: list[AttributedFeature]
    active: int
    total: float
    whole: float
    whole_before_softcap: float | None
    left_out: float
    explained: float | None
    effect: float | None
    error: float | None
    direct_only: bool
