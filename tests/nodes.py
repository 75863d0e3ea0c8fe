"""A node of a cluster, as a survey of the nodes sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from steerserve.engines.remote.facts import NodeFacts


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Stands for the answer of one node."""

    name: str
    address: str
    resources: Mapping[str, float]
    facts: NodeFacts | None = None
    folders: Mapping[str, str | None] = field(default_factory=dict)
    error: str | None = None

    @property
    def id(self) -> str:
        return f"id-of-{self.name}"
