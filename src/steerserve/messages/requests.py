"""The requests to a model, as an engine of either kind gets them (`Engine.run`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from steerserve.messages.values import (
    Constraint,
    Divergence,
    Echo,
    Logprobs,
    Places,
    Plan,
    Pool,
    Prompt,
    Sampling,
    Suppressed,
    Tap,
)
from steerserve.rules.inference.lens import AttributedPositions, AttributionMethod
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.vector import Direction


@dataclass(frozen=True)
class Request:
    """What every request has, and what whoever sends it to an engine asks of it.

    Attributes:
        prompts: the prompts as the client brought them, or as tokens.
        field: names the prompts in a refusal.
    """

    field: ClassVar[str] = "prompt"

    prompts: Sequence[Prompt]

    @property
    def client(self) -> str:
        """The client whose request it is."""
        return ""

    @property
    def rows(self) -> int:
        """The choices of each prompt."""
        return 1

    @property
    def max_tokens(self) -> int | None:
        """The number of completion tokens that the request names."""
        return 1

    @property
    def promised(self) -> int:
        """The tokens that each row may write."""
        return 0

    @property
    def is_seeded(self) -> bool:
        return False

    @property
    def name(self) -> str:
        """Names the request in what an engine records and senses; empty where it is neither recorded nor sensed."""
        return ""


@dataclass(frozen=True)
class Generation(Request):
    """Complete each prompt `n` times. The fields are those of `Generate`. The events are Started, then the pieces of
    each choice until its `finish`."""

    n: int
    sampling: Sampling
    plan: Plan
    constraint: Constraint | None = None
    tap: Tap | None = None
    label: str | None = None
    plans: Sequence[Plan] = ()
    client: str = ""
    counted: tuple[Edit, ...] | None = None
    logprobs: Logprobs | None = None
    divergence: Divergence | None = None
    readings: tuple[Direction, ...] = ()
    is_stream: bool = False

    @property
    def rows(self) -> int:
        return self.n

    @property
    def max_tokens(self) -> int | None:
        return self.sampling.max_tokens

    @property
    def promised(self) -> int:
        named = self.sampling.max_tokens
        return named if named is not None else self.sampling.default_max_tokens

    @property
    def is_seeded(self) -> bool:
        return self.sampling.seed is not None

    @property
    def name(self) -> str:
        return self.label or ""


@dataclass(frozen=True)
class Scoring(Request):
    """Score the candidates for the token after each prompt. The fields are those of `Score`. The events are Started,
    then Scored for each prompt, with a pool behind the Pooled of the prompt."""

    temperature: float
    top: int | None
    allowed: list[int] | None = None
    tap: Tap | None = None
    echo: Echo | None = None
    client: str = ""
    plan: Plan = field(default_factory=Suppressed)
    pool: Pool | None = None

    @property
    def max_tokens(self) -> int | None:
        return self.echo.max_tokens if self.echo else 1


@dataclass(frozen=True)
class Embedding(Request):
    """Compute a vector for each text. The events are Started, then Embedded for each text."""

    field: ClassVar[str] = "input"

    client: str = ""

    @property
    def max_tokens(self) -> int | None:
        return 0


@dataclass(frozen=True)
class LensReading(Request):
    """Read the residual stream of one prompt as the unembedding reads it. The fields are those of `Lens`. The events
    are Started, then LensRead."""

    field: ClassVar[str] = "text"

    layers: Sequence[int] | None
    top: int
    max_distributions: int
    max_entries: int
    client: str = ""
    path: str | None = None

    @property
    def max_tokens(self) -> int | None:
        return 0


@dataclass(frozen=True)
class Attribution(Request):
    """Attribute a difference of logits to features. The fields are those of `Attribute`. The events are Started, then
    Attributed."""

    field: ClassVar[str] = "text"

    position: int
    target: int
    against: int | None
    key: str
    layer: int
    top: int
    client: str = ""
    method: AttributionMethod = "direct"
    steps: int = 16
    over: AttributedPositions = "position"

    @property
    def max_tokens(self) -> int | None:
        return 0


@dataclass(frozen=True)
class StatesReading(Request):
    """Read the values of a site at several layers for each prompt. The fields are those of `ReadStates`. The events are
    Started, then StatesRead for each prompt."""

    field: ClassVar[str] = "text"

    layers: Sequence[int]
    site: str
    places: Places
    client: str = ""

    @property
    def max_tokens(self) -> int | None:
        return 0


@dataclass(frozen=True)
class ActivationsReading(Request):
    """Read all activations of attached SAEs for each prompt. The fields are those of `ReadActivations`. The events are
    Started, then ActivationsRead for each prompt."""

    field: ClassVar[str] = "text"

    keys: Sequence[str]
    client: str = ""

    @property
    def max_tokens(self) -> int | None:
        return 0
