"""The payloads of the live events, which are sent over Socket.IO (`events/socketio.py`).

Payloads of models, SAEs, steering and the state of monitoring have every name twice: in camelCase and in snake_case.
"""

from __future__ import annotations

from typing import NotRequired

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from steerserve.api.answers import ErrorBody, Instant
from steerserve.api.answers.compare import CompareEvents
from steerserve.control.health.views import CardTotals
from steerserve.control.sensing.monitoring_views import FeatureActivation
from steerserve.control.steering.views import Values
from steerserve.rules.jobs import JobFacts
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.rules.sensing.firings import ClusterFiringFacts, EdgeFiringFacts


class ModelEvent(TypedDict):
    """An event of one model: it was unloaded, or its lease was granted or renewed, or ended."""

    modelId: int
    model_id: int


class DownloadProgressEvent(ModelEvent):
    """How far the download of a model is. `progress` is in percent. The bytes per second are left out until they were
    measured."""

    progress: float
    downloadedBytes: int
    downloaded_bytes: int
    totalBytes: int
    total_bytes: int
    speedBps: NotRequired[int]
    speed_bps: NotRequired[int]


class DownloadCompleteEvent(ModelEvent):
    """A model was downloaded to a folder of this machine."""

    localPath: str
    local_path: str


class DownloadErrorEvent(ModelEvent):
    """A download of a model failed."""

    error: ErrorBody


class LoadProgressEvent(ModelEvent):
    """How far the load of a model is. `progress` is in percent."""

    stage: str
    progress: float


class LoadCompleteEvent(ModelEvent):
    """A model is loaded. Its memory is in MiB."""

    memoryUsedMb: int
    memory_used_mb: int


class LoadFailure(TypedDict):
    """Why a load failed."""

    code: str
    message: str


class LoadErrorEvent(ModelEvent):
    """A load failed."""

    error: LoadFailure


class ReplicaEvent(ModelEvent):
    """A replica of the model came into another state; `ended` is the state of a replica that was taken away. `wanted`
    and `serving` count the replicas of the model."""

    wanted: int
    serving: int
    replica: ReplicaView


class SaeEvent(TypedDict):
    """An event of one SAE, such as the end of its download."""

    saeId: str
    sae_id: str


class SaeAttachedEvent(SaeEvent):
    """An SAE was attached. Its memory is in MiB."""

    layer: int
    memoryMb: int
    memory_mb: int


class SaeProgressEvent(SaeEvent):
    """How far the download of an SAE is; `percent` is 100 in the last report only."""

    percent: int


class SaeErrorEvent(SaeEvent):
    """A download of an SAE failed. `error` says why."""

    error: str


class SteeringEvent(TypedDict):
    """The live values after a change: those of the SAE that was attached first, and in `others` those of the other SAEs
    by `<sae_id>@<layer>`. The count of active features is 0 while steering is switched off. `interventions` are the
    edits of the live interventions, where there are any."""

    enabled: bool
    values: Values
    activeCount: int
    active_count: int
    others: NotRequired[dict[str, Values]]
    interventions: NotRequired[list[dict[str, object]]]


class MonitoringStateEvent(TypedDict):
    """The state of monitoring after a change. An empty list of features means that all are monitored."""

    enabled: bool
    monitoredFeatures: list[int]
    monitored_features: list[int]


class ActivationEvent(TypedDict):
    """The largest activations at the last token of a choice. `position` counts from the beginning of the prompt."""

    timestamp: Instant
    request_id: str
    position: int
    activations: list[FeatureActivation]


LiveEvents = TypedDict(
    "LiveEvents",
    {
        "model:download:progress": DownloadProgressEvent,
        "model:download:complete": DownloadCompleteEvent,
        "model:download:error": DownloadErrorEvent,
        "model:load:progress": LoadProgressEvent,
        "model:load:complete": LoadCompleteEvent,
        "model:load:error": LoadErrorEvent,
        "model:unload:complete": ModelEvent,
        "model:replica": ReplicaEvent,
        "model:lease": ModelEvent,
        "sae:attached": SaeAttachedEvent,
        "sae:detached": SaeEvent,
        "sae:download:progress": SaeProgressEvent,
        "sae:download:complete": SaeEvent,
        "sae:download:error": SaeErrorEvent,
        "steering:update": SteeringEvent,
        "monitoring:state": MonitoringStateEvent,
        "monitoring:activation": ActivationEvent,
        "sensing:event": ClusterFiringFacts,
        "circuit:sensing:event": EdgeFiringFacts,
        "job:progress": JobFacts,
        "job:done": JobFacts,
        "system:metrics": CardTotals,
    },
)
"""The payload of each live event, by the name of the event."""


class _Events(BaseModel):
    model_config = ConfigDict(extra="forbid")

    live: LiveEvents
    compare: CompareEvents


def components() -> dict[str, object]:
    """The schemas of the events for the description of the API: `LiveEvents`, `CompareEvents`, and their parts."""
    template = "#/components/schemas/{model}"
    schema = _Events.model_json_schema(mode="serialization", ref_template=template)
    parts: dict[str, object] = schema["$defs"]
    return parts
