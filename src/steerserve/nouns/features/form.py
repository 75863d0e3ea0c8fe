"""What the routes of features and their labels answer."""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from steerserve.control.saes.example_views import FeatureExample
from steerserve.nouns.corpora.form import CorpusStatistics
from steerserve.nouns.monitoring.form import FeatureFigures
from steerserve.rules.form import Form


class FeatureLabel(Form, frozen=True):
    """The label of one feature."""

    feature_idx: int
    label: str


class LabelPage(Form, frozen=True):
    """A page of the labels of an SAE. `matched` counts the labels that fit the query, `total` all labels of the SAE."""

    sae_id: str
    labels: list[FeatureLabel]
    matched: int
    total: int
    limit: int
    offset: int


class ImportedLabels(Form, frozen=True):
    """How many labels were imported, and how many the SAE has now."""

    sae_id: str
    imported: int
    total: int
    warnings: list[str]


class SimilarFeature(Form, frozen=True):
    """One result of a search. `cosine` compares its decoder direction with that of the feature that the request names,
    and is null where it names none.

    `value` is what a search finds: by promoted tokens what the feature adds to the logit of the word, which of several
    tokens is the least; by examples the largest activation at the word; by text the largest activation on the text,
    which is at the token `token` at this position of the prompt, and `index` is the feature again. `share` is the
    activation over the feature's largest one that is known, and null where none is known. `example` is the strongest
    one in the newest corpus, where examples are asked for; null where there is none."""

    feature_idx: int
    label: str | None
    cosine: float | None
    value: float | UnsetType = UNSET
    share: float | UnsetType | None = UNSET
    index: int | UnsetType = UNSET
    position: int | UnsetType = UNSET
    token: str | UnsetType = UNSET
    example: FeatureExample | UnsetType | None = UNSET


class FeatureSearch(Form, frozen=True):
    """The features that a search found: in a search by text those that fire on it. `matched` counts all features that
    fit the search."""

    sae_id: str
    query: str | None
    feature_idx: int | None
    features: list[SimilarFeature]
    matched: int


class TokenEffect(Form, frozen=True):
    """What a direction of the residual stream adds to the logit of one token: the direction through the final norm's
    weight and the unembedding, the mean over the vocabulary taken off."""

    token_id: int
    token: str
    value: float


class DirectionTokens(Form, frozen=True):
    """The tokens whose logits a direction of a vector raises most, and those that it lowers most. Both are null at a
    site whose values are not added to the residual stream."""

    layer: int
    site: str
    promotes: list[TokenEffect] | None
    suppresses: list[TokenEffect] | None


class VectorTokens(Form, frozen=True):
    """The promoted and suppressed tokens of a vector, one entry for each of its directions."""

    vector_id: str
    layers: list[DirectionTokens]


class FeatureDetails(Form, frozen=True, kw_only=True):
    """One feature. Norms are lengths in the model's residual stream. `threshold` is null for activations without one.
    `layer`, `residual_norm` (the median length of the activations that the SAE reads) and `typical_strength` (a usual
    value for steering the feature) are null while the SAE is not attached. `statistics` is null for an SAE that was
    never monitored. `promotes` has the tokens whose logits the decoder direction raises most, and `suppresses` those
    that it lowers most; both are null while the SAE is not attached, and for an SAE that does not write into the
    residual stream. `corpora` has what each corpus that was read says about it: of an attached SAE only those that were
    read in the same model."""

    sae_id: str
    feature_idx: int
    label: str | None
    decoder_norm: float
    encoder_norm: float
    encoder_bias: float
    threshold: float | None
    layer: int | None
    residual_norm: float | None
    typical_strength: float | None
    statistics: FeatureFigures | None
    promotes: list[TokenEffect] | None = None
    suppresses: list[TokenEffect] | None = None
    corpora: list[CorpusStatistics] = field(default_factory=list)
