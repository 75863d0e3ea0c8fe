"""Counts the loads and unloads among the events of the bus."""

from __future__ import annotations

from steerserve.control.metrics import Metrics
from steerserve.control.residency.events import (
    LoadComplete,
    LoadError,
    LoadProgress,
    UnloadComplete,
)
from steerserve.rules.events import Event


def count_load(metrics: Metrics, event: Event) -> None:
    """Note in the metrics what an event says of a load."""
    match event:
        case LoadProgress():
            metrics.load_began(event.model_id)
        case LoadComplete():
            metrics.load_ended(event.model_id, "loaded")
        case LoadError():
            metrics.load_ended(event.model_id, "failed")
        case UnloadComplete():
            metrics.unloaded()
