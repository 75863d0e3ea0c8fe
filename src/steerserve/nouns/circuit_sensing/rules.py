"""Circuit sensing: which edges of a circuit can be observed, and when an edge is observed to fire.

An edge fires when its downstream feature fires at most `lag` tokens after its upstream feature. An observation is no
evidence: it never raises the rung of an edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from steerserve.nouns.circuits.rules.document import AuthoredEdge
from steerserve.nouns.cluster_sensing.rules import DECODE, PREFILL, SUMMARY_CHARACTERS, Thresholds

UnsensableReason = Literal[
    "endpoint_not_a_feature", "layer_not_attached", "no_activation_threshold"
]
NOT_A_FEATURE: UnsensableReason = "endpoint_not_a_feature"
NOT_ATTACHED: UnsensableReason = "layer_not_attached"
NO_THRESHOLD: UnsensableReason = "no_activation_threshold"
BLOCK = 1024
"""Positions of a prompt over which the firings of a layer are counted, whatever the passes are that read them."""
LEAST_FIRES = 2048
FED_WHEN_SHED = 64
"""Positions of one feature in one block that are still used where its layer fires too often."""


# ------------------------------------------------------------- sensable edges


@dataclass(frozen=True, slots=True)
class AttachedLayer:
    """The one SAE that is attached at a layer."""

    key: str
    d_sae: int


@dataclass(frozen=True, slots=True)
class UnsensableEdge:
    """An edge that cannot be observed, and why."""

    edge_key: str
    reason: UnsensableReason
    detail: str


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """Which edges of a circuit are observed. `thetas` has the threshold of each feature of these edges, by layer and
    index."""

    edges: tuple[AuthoredEdge, ...]
    unsensable: tuple[UnsensableEdge, ...]
    thetas: Mapping[tuple[int, int], float]

    @property
    def layers(self) -> list[int]:
        return sorted({layer for layer, _ in self.thetas})


def plan(
    edges: Iterable[AuthoredEdge],
    attached: Mapping[int, AttachedLayer],
    maxima: Iterable[tuple[int, int, float | None]],
    thresholds: Thresholds,
) -> EdgePlan:
    """Divide the edges of a circuit. An edge that is listed twice counts once.

    Args:
        attached: the SAE of each layer that has exactly one.
        maxima: (layer, feature, max_activation) of the members. Of several maxima of one feature the largest counts.
    """
    largest: dict[tuple[int, int], float | None] = {}
    for layer, feature, peak in maxima:
        usable = peak if peak is not None and 0 < peak < math.inf else None
        known = largest.get((layer, feature))
        largest[layer, feature] = max(known or 0.0, usable or 0.0) or None
    thetas: dict[tuple[int, int], float] = {}
    sensable: dict[str, AuthoredEdge] = {}
    unsensable: dict[str, UnsensableEdge] = {}
    for edge in edges:
        why = _fault(edge, attached, largest, thresholds)
        if why is not None:
            unsensable.setdefault(edge.key, UnsensableEdge(edge.key, *why))
            continue
        sensable.setdefault(edge.key, edge)
        for end in (edge.up, edge.down):
            assert end.feature_idx is not None
            at = end.layer, end.feature_idx
            thetas[at] = thresholds.theta(largest.get(at))
    return EdgePlan(tuple(sensable.values()), tuple(unsensable.values()), thetas)


def _fault(
    edge: AuthoredEdge,
    attached: Mapping[int, AttachedLayer],
    largest: Mapping[tuple[int, int], float | None],
    thresholds: Thresholds,
) -> tuple[UnsensableReason, str] | None:
    """Why an edge cannot be observed: the first reason that either end has, in the order of `UnsensableReason`."""
    ends = []
    for end in (edge.up, edge.down):
        if end.feature_idx is None:
            return NOT_A_FEATURE, f"the end at layer {end.layer} is a cluster and not one feature"
        ends.append((end.layer, end.feature_idx))
    for layer, feature in ends:
        sae = attached.get(layer)
        if sae is None:
            return NOT_ATTACHED, f"layer {layer} does not have exactly one attached SAE"
        if feature >= sae.d_sae:
            return NOT_ATTACHED, f"the SAE at layer {layer} has no feature {feature}"
    for layer, feature in ends:
        if not math.isfinite(thresholds.theta(largest.get((layer, feature)))):
            why = f"feature {feature}@{layer} has no positive max_activation, and there is no floor"
            return NO_THRESHOLD, why
    return None


# ------------------------------------------------------------- firing


@dataclass(slots=True)
class Observation:
    """One firing of the edge with this place in its list: the upstream feature at `up`, the downstream feature at
    `down`, each as (position, activation). `is_truncated` says that later firings were not recorded."""

    edge: int
    up: tuple[int, float]
    down: tuple[int, float]
    phase: str
    is_truncated: bool = False

    @property
    def lag(self) -> int:
        return self.down[0] - self.up[0]


class EdgeTracker:
    """Observes the edges of one circuit in one row. Nothing in it is shared with another circuit or another row.

    The firings of all layers come in the order of their positions, so the newest firing of a feature before a position
    is all that an edge needs: if that firing is too old, every older firing is too old.

    Args:
        edges: of each edge, the places of its two features in the list of features.
        layers: the layer of each feature.
        lag: the most tokens from the upstream to the downstream feature.
        most: the most observations of the row.
        prompt_tokens: positions below this are of the prompt.
    """

    def __init__(
        self,
        edges: Sequence[tuple[int, int]],
        layers: Sequence[int],
        lag: int,
        most: int,
        prompt_tokens: int,
    ) -> None:
        self._layers = layers
        self._lag = lag
        self._most = most
        self._limit = max(8 * most, LEAST_FIRES)
        self._prompt_tokens = prompt_tokens
        self._upstream: dict[int, list[tuple[int, int]]] = {}
        for edge, (up, down) in enumerate(edges):
            self._upstream.setdefault(down, []).append((edge, up))
        self._newest: dict[int, tuple[int, float]] = {}
        self._before: dict[int, tuple[int, float]] = {}
        self._block = -1
        self._fires: dict[int, int] = {}
        self._fed: dict[int, int] = {}
        self.observed: list[Observation] = []
        self.truncated_layers: set[int] = set()

    def feed(self, position: int, place: int, activation: float) -> None:
        """A feature fires at a position. Firings come in the order of their positions, whatever their layers are."""
        if position < self._prompt_tokens and not self._counted(position, place):
            return
        for edge, up in self._upstream.get(place, ()):
            fire = self._newest.get(up)
            if fire is not None and fire[0] == position:
                fire = self._before.get(up)
            if fire is not None and position - fire[0] <= self._lag:
                self._observe(edge, fire, (position, activation), place)
        last = self._newest.get(place)
        if last is not None:
            self._before[place] = last
        self._newest[place] = position, activation

    def _counted(self, position: int, place: int) -> bool:
        """Whether a firing in the prompt is used. (1) The firings of each layer are counted in each block of positions.
        (2) Where a layer has more than the limit, a feature that has had its share in this block is not used."""
        if position // BLOCK != self._block:  # (1)
            self._block = position // BLOCK
            self._fires, self._fed = {}, {}
        layer = self._layers[place]
        self._fires[layer] = self._fires.get(layer, 0) + 1
        self._fed[place] = self._fed.get(place, 0) + 1
        if self._fires[layer] <= self._limit:
            return True
        self.truncated_layers.add(layer)
        return self._fed[place] <= FED_WHEN_SHED  # (2)

    def _observe(
        self, edge: int, up: tuple[int, float], down: tuple[int, float], place: int
    ) -> None:
        if len(self.observed) < self._most:
            phase = PREFILL if down[0] < self._prompt_tokens else DECODE
            self.observed.append(Observation(edge, up, down, phase))
            return
        self.truncated_layers.add(self._layers[place])
        if self.observed:
            self.observed[-1].is_truncated = True


def summary(title: str, edge_key: str, observed: Observation, phrase: str) -> str:
    """One line about an observation, without text of the request."""
    tokens = "token" if observed.lag == 1 else "tokens"
    line = (
        f"{title[:60]}: {edge_key} fired, {observed.lag} {tokens} apart, during {observed.phase} "
        f"@ {observed.up[0]}-{observed.down[0]} (evidence: {phrase})"
    )
    return line[:SUMMARY_CHARACTERS]
