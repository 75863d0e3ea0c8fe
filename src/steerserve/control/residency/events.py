"""The events of the resident model, of its replicas and leases, and of the SAEs that are attached to it."""

from __future__ import annotations

from typing import ClassVar

from steerserve.rules.events import Event, LiveEvent
from steerserve.rules.form import Form
from steerserve.rules.residency.replicas import ReplicaView
from steerserve.rules.throttle import WorkReport


class LoadProgress(LiveEvent, frozen=True):
    """How far the load of a model is. `progress` is in percent."""

    wire: ClassVar = "model:load:progress"
    model_id: int
    stage: str
    progress: float

    def work_report(self) -> WorkReport:
        return WorkReport(("load", self.model_id), is_last=self.progress >= 100)


class LoadComplete(LiveEvent, frozen=True):
    """A model is loaded. Its memory is in MiB."""

    wire: ClassVar = "model:load:complete"
    model_id: int
    memory_used_mb: int

    def work_report(self) -> WorkReport:
        return WorkReport(("load", self.model_id), is_last=True)


class LoadFailure(Form, frozen=True):
    """Why a load failed."""

    code: str
    message: str


class LoadError(LiveEvent, frozen=True):
    """A load failed."""

    wire: ClassVar = "model:load:error"
    model_id: int
    error: LoadFailure

    def work_report(self) -> WorkReport:
        return WorkReport(("load", self.model_id), is_last=True)


class UnloadComplete(LiveEvent, frozen=True):
    """A model was unloaded."""

    wire: ClassVar = "model:unload:complete"
    model_id: int


class ReplicaChanged(LiveEvent, frozen=True):
    """A replica of the model came into another state; `ended` is the state of a replica that was taken away. `wanted`
    and `serving` count the replicas of the model."""

    wire: ClassVar = "model:replica"
    model_id: int
    replica: ReplicaView
    wanted: int
    serving: int


class LeaseChanged(LiveEvent, frozen=True):
    """A lease of the model was granted or renewed, or it ended."""

    wire: ClassVar = "model:lease"
    model_id: int


class SaeAttached(LiveEvent, frozen=True):
    """An SAE was attached. Its memory is in MiB."""

    wire: ClassVar = "sae:attached"
    sae_id: str
    layer: int
    memory_mb: int


class SaeDetached(LiveEvent, frozen=True):
    """An SAE was detached."""

    wire: ClassVar = "sae:detached"
    sae_id: str


ATTACHMENTS_CHANGED = (SaeAttached, SaeDetached, LoadComplete, UnloadComplete)
"""The events after which other SAEs may be attached."""


class ModelLeaving(Event, frozen=True):
    """The model is being unloaded because somebody wants that, or wants another model."""

    model_id: int


class RequestsHeld(Event, frozen=True):
    """A change of what is attached waits for the requests that run."""
