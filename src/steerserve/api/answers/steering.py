"""What the routes of steering and of comparisons answer, and the events of a comparison."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from steerserve.api.answers import ErrorCode

Values = dict[str, float]
"""Feature index, as a text -> value."""
FinishReason = Literal["stop", "length"]


class SteeringState(TypedDict):
    """The live values of one SAE. `enabled` is the one switch of steering. `others` has the values of the other SAEs by
    `<sae_id>@<layer>`, and is left out where no other SAE has values."""

    enabled: bool
    values: Values
    others: NotRequired[dict[str, Values]]


class ReadFeature(TypedDict):
    """The activation of one feature; a feature without a label has no field `label`."""

    index: int
    value: float
    label: NotRequired[str]


class ReadPosition(TypedDict):
    """The activations at one token. `position` counts from the beginning of the prompt."""

    position: int
    token_id: int
    features: list[ReadFeature]


class SideActivations(TypedDict):
    """The activations that a side of a comparison has, and the SAE that they were read from."""

    sae_id: str
    layer: int
    positions: list[ReadPosition]


class SteeredSide(TypedDict):
    """How a side of a comparison is steered: its intensity, its values by `<sae_id>@<layer>`, and the digest of the
    steering, which is null where nothing is added."""

    intensity: float
    steering: dict[str, Values]
    steering_state: str | None


class ComparedSide(SteeredSide):
    """One completion of a comparison. `sae_activations` is null where the request does not ask for activations."""

    text: str
    finish_reason: FinishReason | None
    completion_tokens: int
    sae_activations: SideActivations | None


class Comparison(TypedDict):
    """The completions of a prompt, in the order of the intensities of the request."""

    model: str
    system_fingerprint: str
    prompt_tokens: int
    sides: list[ComparedSide]


class StartedSide(SteeredSide):
    """A side of a comparison that has begun. `side` is the number that its events have."""

    side: int


class ReadSae(TypedDict):
    """The SAE that activations are read from."""

    sae_id: str
    layer: int


class CompareStarted(TypedDict):
    """The first event. `sae` is null where the request does not ask for activations."""

    model: str
    system_fingerprint: str
    prompt_tokens: int
    sae: ReadSae | None
    sides: list[StartedSide]


class ReadToken(ReadPosition):
    """One token with its text and its activations."""

    text: str


class ComparePrompt(TypedDict):
    """The tokens of the prompt of one side, where the request asks for their activations."""

    side: int
    intensity: float
    tokens: list[ReadToken]


class CompareText(TypedDict):
    """New text of one side. `completion_tokens` counts the tokens of the side so far. `token` is there where the
    request asks for activations, and is null where the event has no new token."""

    side: int
    intensity: float
    text: str
    finish_reason: FinishReason | None
    completion_tokens: int
    token: NotRequired[ReadToken | None]


class CompareFailed(TypedDict):
    """The last event of a comparison that failed. `retry_after` is in seconds."""

    code: ErrorCode
    message: str
    details: dict[str, Any]
    retry_after: NotRequired[int]


class CompareDone(TypedDict):
    """The last event of a comparison that succeeded. It has no fields."""


class CompareEvents(TypedDict):
    """The data of each event of a streamed comparison, by the name of the event: one `started`, then `prompt` and
    `text`, at last `done` or `error`."""

    started: CompareStarted
    prompt: ComparePrompt
    text: CompareText
    done: CompareDone
    error: CompareFailed
