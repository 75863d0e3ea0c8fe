"""The events of monitoring and of sensing. They do not have the text around what fired."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from steerserve.control.bus import LiveEvent
from steerserve.control.sensing.monitoring_views import FeatureActivation
from steerserve.rules.sensing.firings import ClusterFiringFacts, EdgeFiringFacts
from steerserve.rules.throttle import WorkReport

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


class ClusterFired(LiveEvent, frozen=True):
    """Members of a cluster fired together."""

    wire: ClassVar = "sensing:event"
    content: ClassVar = "firing"
    firing: ClusterFiringFacts


class CircuitFired(LiveEvent, frozen=True):
    """An edge of a circuit fired."""

    wire: ClassVar = "circuit:sensing:event"
    content: ClassVar = "firing"
    firing: EdgeFiringFacts
