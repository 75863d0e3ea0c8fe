"""Requests for inference as frozen values. The routes pass only these values to the control plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steerserve.rules.inference.compare import Sweep
from steerserve.rules.inference.lens import AttributedPositions, AttributionMethod
from steerserve.rules.inference.runs import Run
from steerserve.rules.saes.attachment import FIRST_SAE, SaeChoice
from steerserve.rules.steering.request import RequestSteering

Conversation = tuple[Mapping[str, object], ...]


def message(role: str, content: str, name: str | None) -> Mapping[str, object]:
    """A message in the form of chat templates. Newer clients name the role `developer` that templates name `system`."""
    named = {} if name is None else {"name": name}
    return {"role": "system" if role == "developer" else role, "content": content, **named}


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt as the ids of its tokens. `place` is where the body of the request has them: `prompt[1]`."""

    ids: tuple[int, ...]
    place: str


Prompt = str | TokenIds | Conversation
"""A text that goes to the model verbatim, its tokens, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How tokens are chosen, with every bound already checked.

    `temperature` 0 is greedy. `top_p` 0 keeps only the most probable token. `repetition_penalty` 1 changes nothing.
    `has_penalty` says that the request names a penalty, also where its two penalties cancel out.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    seed: int | None = None
    has_penalty: bool = False


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """The form of each choice: a JSON object, or with `is_schema` a document that the schema accepts."""

    name: str | None = None
    schema: Any = None
    is_schema: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseIntent:
    """The values that every request has.

    Attributes:
        answer_id: the id of the answer; empty where the answer has none.
        ignored: locations of the fields that the service does not use.
        may_load: whether the request may cause a load of its model.
        lease: the id of the lease that the client claims to hold, which is a secret.
        client: the name under which the requests of one client are counted together (`rules/clients.py`).
        is_strict: whether fields that are not used are refused.
    """

    answer_id: str = ""
    ignored: tuple[str, ...] = ()
    may_load: bool = True
    lease: str | None = field(default=None, repr=False)
    client: str = field(default="", repr=False)
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class GenerateIntent(BaseIntent):
    """Complete each prompt `n` times, or with a `sweep` once at each of its intensities.

    Attributes:
        has_special: whether a text gets the tokenizer's special tokens.
        template: variables for the chat template of conversations.
        is_held: whether the request keeps the steering of its profile to its end, whatever an operator changes
            meanwhile.
        is_reported: whether the answer says where the edits acted.
        parts: what is asked for beside the text (`parts/`), by the names of the parts.
        replayed: the recorded answer whose steering the request has.
    """

    prompts: tuple[Prompt, ...]
    sampling: SamplingParameters
    n: int = 1
    is_stream: bool = False
    has_special: bool = True
    template: Mapping[str, object] | None = None
    profile: str | None = None
    intensity: float | str | None = None
    steering: RequestSteering | None = None
    constraint: OutputConstraint | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    sweep: Sweep | None = None
    is_held: bool = False
    is_reported: bool = False
    replayed: Run | None = None

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def seed(self) -> int | None:
        return self.sampling.seed


@dataclass(frozen=True, slots=True)
class ScoreIntent(BaseIntent):
    """The distribution of the token after each prompt; nothing is generated.

    `top` is the number of alternatives to list; None means that the answer has no log-probabilities. `allowed` has the
    ids of the only tokens that may come next; None allows every token. With `is_echoed` the tokens of the prompts are
    scored too. `max_tokens` is 1, or 0 where an echo has no token after its prompt. With `may_steer` the prompts are
    steered by `steering` or by `profile`. `replayed` is the recorded answer whose steering the request has. `parts` is
    as in `GenerateIntent`.
    """

    prompts: tuple[Prompt, ...]
    temperature: float = 1.0
    top: int | None = None
    allowed: tuple[int, ...] | None = None
    is_keyed_by_id: bool = False
    has_special: bool = True
    template: Mapping[str, object] | None = None
    seed: int | None = None
    is_stream: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict)
    is_echoed: bool = False
    max_tokens: int = 1
    may_steer: bool = False
    profile: str | None = None
    steering: RequestSteering | None = None
    replayed: Run | None = None

    @property
    def choices(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, slots=True)
class EmbedIntent(BaseIntent):
    """One vector per text."""

    prompts: tuple[str, ...]
    is_base64: bool = False

    @property
    def choices(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LensIntent(BaseIntent):
    """The residual stream of a prompt, read as the next token. `layers` are the layers to read, None for all; `top` is
    the number of tokens to list for each position. A trained lens is named by its id or its name (`lens`), or by its
    folder or file (`path`)."""

    prompt: Prompt
    layers: tuple[int, ...] | None = None
    top: int = 5
    lens: str | None = None
    path: str | None = None

    @property
    def choices(self) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionIntent(BaseIntent):
    """What the features of an attached SAE add to a logit after a prompt's token.

    `position` counts from the beginning, or where it is negative from the end. The logit of the token `target` is taken
    less that of `against`, or less the mean over the vocabulary where that is None. `top` is the number of features to
    list. `steps` is the number of gradients of the method `integrated`.
    """

    prompt: Prompt
    position: int
    target: int
    against: int | None = None
    choice: SaeChoice = FIRST_SAE
    top: int = 20
    method: AttributionMethod = "direct"
    steps: int = 16
    over: AttributedPositions = "position"

    @property
    def choices(self) -> int:
        return 1


ClientIntent = GenerateIntent | ScoreIntent | EmbedIntent
"""The requests of `/v1`."""

Intent = ClientIntent | LensIntent | AttributionIntent


def repetition_penalty(frequency: float, presence: float) -> float:
    """The two penalties of the protocol as one repetition penalty (Keskar et al. 2019, arXiv:1909.05858).

    The result is `2 ** ((frequency + presence) / 4)`: 1 when both penalties are 0, 2 when both are 2 (their maximum),
    1/2 when both are -2 (their minimum). It is always positive.
    """
    return float(2.0 ** ((frequency + presence) / 4.0))
