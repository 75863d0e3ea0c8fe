"""What monitoring answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from msgspec import UNSET, UnsetType, structs

from steerserve import messages as m
from steerserve.control.saes.example_views import FeatureExample
from steerserve.nouns.monitoring.rules import ReadPoint
from steerserve.rules.events import LiveEvent
from steerserve.rules.form import Form
from steerserve.rules.sensing.firings import ContextParts
from steerserve.rules.throttle import WorkReport

Metric = Literal["mean", "max", "active_ratio", "count"]


class MonitoringReport(Form, frozen=True, kw_only=True):
    """The state of monitoring. `sae_id` and `layer` are null while no SAE is attached. An empty `monitored_features`
    means that all features are monitored. Activations are read at `read_point`."""

    enabled: bool
    sae_attached: bool
    sae_id: str | None
    layer: int | None
    monitored_features: tuple[int, ...]
    history_size: int
    history_count: int
    top_k: int
    read_point: ReadPoint


class FeatureActivation(Form, frozen=True):
    """The activation of one feature; a feature without a label has no field `label`. `weight` is the number that ranks
    it among the first, where a rank other than `value` is asked for."""

    feature_index: int
    activation: float
    label: str | UnsetType = UNSET
    weight: float | UnsetType = UNSET


class MonitoredToken(Form, frozen=True, kw_only=True):
    """What was recorded at the last token of a choice. `token_position` counts from the beginning of the prompt.
    `fired` counts all features that were active there."""

    timestamp: datetime
    request_id: str
    sae_id: str
    layer: int
    choice: int
    token_position: int
    token_id: int
    activations: list[FeatureActivation]
    top_k: list[FeatureActivation]
    fired: int
    read_point: ReadPoint


class MonitoringHistory(Form, frozen=True):
    """Records, the newest first. `left_out` counts the records that fit the request and not the answer, where there are
    such records."""

    records: list[MonitoredToken]
    total: int
    left_out: int | UnsetType = UNSET


class MonitoredContext(Form, frozen=True, kw_only=True):
    """The text around a monitored token, and the activation of the feature there. `context_parts` is null where a cut
    would split a character."""

    activation: float
    request_id: str
    choice: int
    token_position: int
    context_text: str | None
    context_parts: ContextParts | None


class FeatureContexts(Form, frozen=True):
    """The contexts in which a feature was strongest, the strongest first. The last `size` monitored tokens have
    contexts, and `kept` of them are there yet. A `size` of 0 means that the operator keeps none."""

    sae_id: str
    feature_idx: int
    size: int
    kept: int
    contexts: list[MonitoredContext]


class Cleared(Form, frozen=True):
    """How many entries were forgotten."""

    cleared: int
    message: str


class FeatureFigures(Form, frozen=True):
    """The figures of one feature over the observed tokens. `active_ratio` is the fraction of the tokens at which the
    feature was active; `mean`, `std`, `min` and `max` are those of its activations there. A feature without a label has
    no field `label`. `example` is the strongest one in the newest corpus, where examples are asked for; null where
    there is none. `weight` is the number that ranks it, where a rank other than `value` is asked for."""

    feature_idx: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    active_ratio: float
    label: str | UnsetType = UNSET
    example: FeatureExample | UnsetType | None = UNSET
    weight: float | UnsetType = UNSET


class CountedFeatures(Form, frozen=True, kw_only=True):
    """The figures of features, and the figures over all features."""

    features: list[FeatureFigures]
    total_activations: int
    tokens: int
    lost_requests: int
    since: datetime | None


class MonitoringStatistics(CountedFeatures, frozen=True, kw_only=True):
    """The figures of the features. `left_out` counts the features that fit the request and not the answer, where there
    are such features. `total_activations` counts the active features of all `tokens`. `lost_requests` are the
    completions whose tokens are missing, because their replica ended by itself. `since` is when counting began, null
    for an SAE that was never monitored."""

    left_out: int | UnsetType = UNSET


class TopFeatures(CountedFeatures, frozen=True, kw_only=True):
    """The `k` features with the largest values of a figure."""

    metric: Metric
    k: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The statistics of one SAE as the engine counts them, without labels. `weights` are the numbers that rank the
    features, none where they are ranked by value."""

    sae_id: str
    features: list[m.FeatureCount]
    tokens: int
    activations: int
    since: datetime | None
    lost_requests: int
    weights: Sequence[float] = ()


def figures(
    counted: m.FeatureCount,
    label: str | UnsetType = UNSET,
    weight: float | UnsetType = UNSET,
) -> FeatureFigures:
    """The figures of one feature with its label, if it has one, and with the number that ranks it."""
    return FeatureFigures(**structs.asdict(counted), label=label, weight=weight)


ACTIVATION_SECONDS = 0.1
"""The least time between two monitoring events. The history of monitoring has the records between them."""


class MonitoringState(LiveEvent, frozen=True):
    """The state of monitoring after a change. An empty list of features means that all are monitored."""

    wire: ClassVar = "monitoring:state"
    enabled: bool
    monitored_features: list[int]


class MonitoringActivation(LiveEvent, frozen=True, rename=None):
    """The largest activations at the last token of a choice. `position` counts from the beginning of the prompt."""

    wire: ClassVar = "monitoring:activation"
    timestamp: datetime
    request_id: str
    position: int
    activations: list[FeatureActivation]

    def work_report(self) -> WorkReport:
        return WorkReport(("monitoring", 0), least=ACTIVATION_SECONDS)
