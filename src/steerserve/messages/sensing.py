"""The messages of sensing: what is armed in the engine, and what was sensed in a row."""

from __future__ import annotations

from steerserve.messages.values import Message

# ------------------------------------------------------------- what is armed


class ClusterMember(Message, frozen=True):
    """A member of a cluster; `theta` is infinite for a member that never fires."""

    feature: int
    theta: float
    label: str | None = None


class ArmedCluster(Message, frozen=True):
    """The cluster `subject`, sensed at the attached SAE `key`. An event has at least `min_k` members that fire
    together. `context_tokens` tokens are kept on each side of an event. `history` is the number of this arming, which
    names the history of the tokens that are reported under it; with 0, every row reports all its firings."""

    subject: str
    title: str
    key: str
    members: list[ClusterMember]
    min_k: int
    max_events: int
    context_tokens: int
    history: int = 0


class CircuitFeature(Message, frozen=True):
    """A feature of a sensed edge, at the attached SAE `key`."""

    key: str
    layer: int
    feature: int
    theta: float


class CircuitEdge(Message, frozen=True):
    """A sensed edge between two places of the list of features. The rung, its phrase and the kind are repeated in the
    events of the edge."""

    name: str
    up: int
    down: int
    rung: int
    phrase: str
    kind: str | None = None


class ArmedCircuit(Message, frozen=True):
    """The circuit `subject`. Its downstream features fire at most `max_lag` tokens after the upstream features."""

    subject: str
    title: str
    features: list[CircuitFeature]
    edges: list[CircuitEdge]
    max_lag: int
    max_events: int
    context_tokens: int


# ------------------------------------------------------------- what was sensed


class Reported(Message, frozen=True):
    """How many of the first tokens of each prompt are reported already, by the history of the arming `history`. Rows
    that begin under another arming report all their tokens."""

    history: int
    tokens: list[int]


class Window(Message, frozen=True):
    """The tokens around an event and their text; `parts` is the text before, in and after the event."""

    token_ids: list[int] | None = None
    text: str | None = None
    parts: tuple[str, str, str] | None = None


class SensedSpan(Message, frozen=True):
    """Members of a cluster that fired together at the positions `start` to `end`, each with its largest activation."""

    start: int
    end: int
    phase: str
    fired: list[tuple[int, float]]
    score: float
    summary: str
    is_truncated: bool
    window: Window
    ambient: int | None = None


class SensedSpans(Message, frozen=True):
    """The firings of the cluster `subject` in one choice of the request `label`. It comes before the end of the
    choice, also where nothing fired. `overhead_ms` is the time that sensing took for this choice. `reported` are the
    first tokens of the choice, as far as their firings are reported now or were before; it is empty where the arming
    `history` has no history."""

    id: int
    label: str
    choice: int
    subject: str
    overhead_ms: float
    spans: list[SensedSpan]
    history: int = 0
    reported: list[int] = []


class FeatureFiring(Message, frozen=True):
    layer: int
    feature: int
    position: int
    activation: float


class SensedEdge(Message, frozen=True):
    """One firing of an edge."""

    edge: CircuitEdge
    up: FeatureFiring
    down: FeatureFiring
    phase: str
    summary: str
    is_truncated: bool
    window: Window
    ambient: int | None = None


class SensedEdges(Message, frozen=True):
    """The firings of the circuit `subject` in one choice; see `SensedSpans`. The firings of `truncated_layers` are not
    complete."""

    id: int
    label: str
    choice: int
    subject: str
    overhead_ms: float
    edges: list[SensedEdge]
    truncated_layers: list[int]
