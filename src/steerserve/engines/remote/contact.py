"""Where an engine on another node is reached. A contact is made on the node, and says nothing secret."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.engines.remote.facts import NodeFacts


@dataclass(frozen=True, slots=True)
class Contact:
    """One host that waits for its peer. `certificate` is the one that the host shows, in PEM. `pid` is the process of
    the engine on the node."""

    host: str
    port: int
    certificate: str
    pid: int | None
    facts: NodeFacts
