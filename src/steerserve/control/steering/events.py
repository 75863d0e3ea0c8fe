"""The events of the live steering, and of the documents that serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from steerserve.rules.events import Event, LiveEvent

_Values = dict[str, float]


class SteeringUpdate(LiveEvent, frozen=True, kw_only=True):
    """The live values after a change: those of the SAE that was attached first, and in `others` those of the other SAEs
    by `<sae_id>@<layer>`. The count of active features is 0 while steering is switched off. `interventions` are the
    edits of the live interventions, where there are any."""

    wire: ClassVar = "steering:update"
    enabled: bool
    values: _Values
    active_count: int
    others: dict[str, _Values] = msgspec.field(default_factory=dict)
    interventions: list[dict[str, object]] = msgspec.field(default_factory=list)


def steering_update(
    enabled: bool,
    values: _Values,
    others: Mapping[str, _Values] | None = None,
    interventions: Sequence[dict[str, object]] = (),
) -> SteeringUpdate:
    """The event of these values, with the count of the active features."""
    others = dict(others or {})
    count = sum(map(len, (values, *others.values())))
    return SteeringUpdate(
        enabled=enabled,
        values=values,
        active_count=count if enabled else 0,
        others=others,
        interventions=list(interventions),
    )


class ActiveProfileChanged(Event, frozen=True):
    """Another profile or cluster is active now, or none. The cause may be an operator, a detached SAE, or the end of an
    engine."""

    profile_id: str | None


class ServedCircuitsChanged(Event, frozen=True):
    """Other circuits serve now, or the same ones otherwise. The cause may be an operator, a detached SAE, or the end of
    an engine."""

    circuit_ids: tuple[str, ...]
