"""Everything that steers every request of the service: values, edits, the active profile or cluster, and circuits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import typer

from steerserve.client import Client
from steerserve.control.steering.views import LiveInterventions
from steerserve.nouns.circuits.form import CircuitRecord
from steerserve.nouns.profiles.form import ServingProfile
from steerserve.terminal import output

Values = Mapping[str, float]
"""Feature -> value."""
CLEARING = "`steerserve steer --off` clears it"


@dataclass(frozen=True, slots=True)
class Steered:
    """What steers every request.

    Attributes:
        sae_id: the SAE whose features `values` names; None where no SAE is attached.
        values: the sums over everything that adds to a feature.
        others: the values of the other attached SAEs by `<sae_id>@<layer>`.
    """

    sae_id: str | None
    values: Values
    others: Mapping[str, Values]
    live: LiveInterventions
    profile: ServingProfile | None
    circuits: list[CircuitRecord]

    @property
    def is_empty(self) -> bool:
        found = (self.values, self.others, self.live.edits, self.profile, self.circuits)
        return not any(found)

    def plain(self) -> dict[str, object]:
        """The same as JSON."""
        return {
            "enabled": self.live.enabled,
            "values": self.values,
            **({"others": self.others} if self.others else {}),
            "interventions": self.live.edits,
            "active_profile": self.profile,
            "circuits": self.circuits,
        }


def read(client: Client, sae_id: str | None = None) -> Steered:
    """What steers every request now. `sae_id` names the SAE of `values`, by default the one attached first."""
    first = sae_id or client.saes.attachment().sae_id
    state = None if first is None else client.steering.get(sae_id=sae_id)
    others = state.others if state is not None and isinstance(state.others, dict) else {}
    active = client.circuits.active()
    return Steered(
        first,
        {} if state is None else state.values,
        others,
        client.interventions.get(),
        client.health.detailed().active_profile,
        active if isinstance(active, list) else [],
    )


def show(client: Client, found: Steered) -> None:
    """Print what steers every request, with the labels of features."""
    if found.is_empty:
        typer.echo("nothing is set")
        return
    if found.values or found.others:
        output.show_table(["SAE", "feature", "label", "value"], _values(client, found))
    if found.live.edits:
        output.show_table(["edit", "of", "value", "more"], [_edit(one) for one in found.live.edits])
        if found.live.mode == "replace":
            typer.echo("the edits act in place of the values")
    if found.profile is not None:
        kind = "cluster" if found.profile.source_kind == "cluster" else "profile"
        _say(f"{kind} {found.profile.name} is active at intensity {found.profile.intensity:g}")
    for circuit in found.circuits:
        _say(f"circuit {circuit.name} serves at intensity {circuit.intensity:g}")
    if not found.live.enabled:
        typer.echo("steering is switched off")


def _say(text: str) -> None:
    typer.echo(output.readable(text))


def _values(client: Client, found: Steered) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for name, values in ((found.sae_id or "", found.values), *found.others.items()):
        named = _labels(client, name.partition("@")[0], values)
        rows += [(name, index, named.get(int(index)), value) for index, value in values.items()]
    return rows


def _labels(client: Client, sae_id: str, values: Values) -> dict[int, str]:
    if not values:
        return {}
    found = client.features.labels(sae_id, features=",".join(values), limit=len(values))
    return {one.feature_idx: one.label for one in found}


def _edit(edit: Mapping[str, Any]) -> tuple[object, ...]:
    """An edit as a row: its op, what it edits, its value, and its other fields."""
    feature, vector = edit.get("feature"), edit.get("vector")
    of = _direction(vector) if feature is None else f"feature {feature.get('index')}"
    shown = ("op", "feature", "vector", "value")
    more = {name: value for name, value in edit.items() if name not in shown}
    if isinstance(feature, dict):
        more = {name: value for name, value in feature.items() if name != "index"} | more
    if "to" in more:
        more["to"] = _direction(more["to"])
    return edit["op"], of, edit.get("value"), msgspec.json.encode(more).decode() if more else ""


def _direction(vector: object) -> str:
    """A stored vector by its name. A direction that the edit itself has is told by its layer."""
    if isinstance(vector, dict):
        return f"a direction at layer {vector.get('layer')}"
    return f"vector {vector}"
