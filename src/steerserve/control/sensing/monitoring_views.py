"""The views of monitoring that leave its owner."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from steerserve import messages as m

FeatureCount = m.FeatureCount
FeatureContext = m.FeatureContext


@dataclass(frozen=True, slots=True)
class State:
    """The present state of monitoring. `sae_id` and `layer` are None while no SAE is attached."""

    enabled: bool
    sae_id: str | None
    layer: int | None
    features: tuple[int, ...] | None
    history_size: int
    history_count: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Statistics of one SAE. `since` is when counting began, None if the SAE was never monitored. `activations` counts
    the active features of all `tokens`. `lost_requests` are the completions whose tokens are missing, because their
    replica ended by itself."""

    sae_id: str
    features: list[FeatureCount]
    tokens: int
    activations: int
    since: datetime | None
    lost_requests: int


@dataclass(frozen=True, slots=True)
class KeptContexts:
    """Contexts of one feature, the largest value first. The last `size` monitored tokens have contexts, and `kept` of
    them are there yet. A `size` of 0 keeps none."""

    sae_id: str
    size: int
    kept: int
    contexts: list[FeatureContext]
