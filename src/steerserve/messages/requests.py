"""A request to a model, in the form in which it goes to an engine of either kind (`Engine.run`).

Its `goal` says what is made of each prompt, and its `parts` what the request asks for beside that (`parts/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from steerserve.messages.sensing import Reported
from steerserve.messages.values import (
    Echo,
    Message,
    Places,
    Plan,
    Prompt,
    Sampling,
    Suppressed,
)
from steerserve.nouns.lens.rules import AttributedPositions, AttributionMethod
from steerserve.nouns.patches.rules import Cell, Metric


class ReadingGoal(Message, frozen=True):
    """Base of the goals, with the values of a goal that reads each prompt and writes nothing.

    Attributes:
        field: names the prompts in a refusal.
        writes: whether text is written.
    """

    field: ClassVar[str] = "text"
    writes: ClassVar[bool] = False

    @property
    def rows(self) -> int:
        """The choices of each prompt."""
        return 1

    @property
    def max_tokens(self) -> int | None:
        """The number of completion tokens that the request names."""
        return 0

    @property
    def promised(self) -> int:
        """The tokens that each row may write."""
        return 0

    @property
    def is_seeded(self) -> bool:
        return False


class Generate(ReadingGoal, frozen=True, kw_only=True):
    """Complete each prompt `n` times; choice `prompt * n + i` is completion `i` of the prompt. `is_stream` says whether
    the client gets each token as it comes. The events are Started, then the pieces of each choice until its
    `finish`."""

    field: ClassVar[str] = "prompt"
    writes: ClassVar[bool] = True

    sampling: Sampling
    n: int = 1
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


class Score(ReadingGoal, frozen=True, kw_only=True):
    """Score the candidates for the token after each prompt: the tokens `allowed`, or the whole vocabulary. The answer
    lists all allowed tokens, or the `top` most probable of the vocabulary; where `top` is None it lists none. Logits
    are divided by `temperature`. With an `echo` the tokens of the prompts are scored too. The events are Started, then
    Scored for each prompt."""

    field: ClassVar[str] = "prompt"

    temperature: float = 1.0
    top: int | None = None
    allowed: list[int] | None = None
    echo: Echo | None = None

    @property
    def max_tokens(self) -> int | None:
        return self.echo.max_tokens if self.echo else 1


class Embed(ReadingGoal, frozen=True):
    """Compute a vector for each text, unsteered. The events are Started, then Embedded for each text."""

    field: ClassVar[str] = "input"


class Lens(ReadingGoal, frozen=True, kw_only=True):
    """Read the residual stream after each of `layers` at every token of the one prompt, unsteered, as the model's own
    unembedding reads it. The answer lists the `top` most probable next tokens of each position and layer; a `layers` of
    None means all. Positions times layers may be `max_distributions`, and these times `top` may be `max_entries`.
    `path` is the folder or the file of a trained lens; a `layers` of None then means the layers that it has, and the
    last one. The events are Started, then LensRead."""

    layers: list[int] | None
    top: int
    max_distributions: int
    max_entries: int
    path: str | None = None


class Attribute(ReadingGoal, frozen=True, kw_only=True):
    """Attribute the logit of the token `target` after `position` of the one prompt, unsteered, to the features of the
    SAE that is attached as `key` at `layer`: the logit less that of the token `against`, or less the mean over the
    vocabulary. A negative `position` counts from the end. The answer lists the `top` largest contributions by
    magnitude. `steps` is the number of gradients for the method `integrated`. The events are Started, then
    Attributed."""

    position: int
    target: int
    against: int | None
    top: int
    key: str = ""
    layer: int = 0
    method: AttributionMethod = "direct"
    steps: int = 16
    over: AttributedPositions = "position"


class ReadStates(ReadingGoal, frozen=True, kw_only=True):
    """Read the values of `site` at each of `layers` for each prompt, unsteered, at the positions of `places`. The
    events are Started, then StatesRead for each prompt."""

    layers: list[int]
    site: str
    places: Places


class ReadActivations(ReadingGoal, frozen=True, kw_only=True):
    """Read all activations of the SAEs that are attached as `keys` for each prompt, unsteered. Position 0 and special
    tokens are left out. The events are Started, then ActivationsRead for each prompt."""

    keys: list[str]


class ReadParts(ReadingGoal, frozen=True):
    """Read each prompt for the parts of the request alone, steered by its plan. The events are Started, then for each
    prompt PartsRead until its last."""


class Patch(ReadingGoal, frozen=True, kw_only=True):
    """Read the one prompt, unsteered, with values of the text of the tokens `source` in the place of its own: once for
    each of `cells`, and for each of `noise` with its own values. `pairs` has the positions of `source` for those of the
    prompt that are others. With `is_noise` the prompt is the clean text. The events are Started, then Patched."""

    source: list[int]
    cells: list[Cell]
    noise: list[Cell]
    metric: Metric
    pairs: dict[int, int] = {}
    is_noise: bool = False


Goal = (
    Generate | Score | Embed | Lens | Attribute | ReadStates | ReadActivations | ReadParts | Patch
)


class Request(Message, frozen=True, kw_only=True):
    """A request to a model; an engine process gets its prompts as tokens.

    Attributes:
        plan: how the prompts are steered; where `plans` is not empty, it has a plan for each prompt.
        client: whose request it is (`rules/clients.py`). The rows of clients take turns at joining the batch.
        label: names the request in records of monitoring and in events of sensing; without a label it is neither
            monitored nor sensed.
        reported: what sensing leaves out of the prompts.
        parts: what is asked for beside the goal: by the name of the part its form, as `parts.pack` packs it.
    """

    id: int = 0
    goal: Goal
    prompts: Sequence[Prompt]
    plan: Plan = Suppressed()
    plans: Sequence[Plan] = ()
    client: str = ""
    label: str | None = None
    reported: Reported | None = None
    parts: dict[str, msgspec.Raw] = {}

    @property
    def name(self) -> str:
        """Names the request in what an engine records and senses; empty where it is neither recorded nor sensed."""
        return self.label or ""
