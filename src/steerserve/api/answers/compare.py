"""The events of a streamed comparison."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from steerserve.control.error_codes import ErrorCode
from steerserve.control.inference.views import FinishReason, ReadFeature, SteeredSide
from steerserve.rules.form import Form


class StartedSide(SteeredSide, frozen=True):
    """A side of a comparison that has begun. `side` is the number that its events have."""

    side: int


class ReadSae(Form, frozen=True):
    """The SAE that activations are read from."""

    sae_id: str
    layer: int


class CompareStarted(Form, frozen=True, kw_only=True):
    """The first event. `sae` is null where the request does not ask for activations."""

    model: str
    system_fingerprint: str
    prompt_tokens: int
    sae: ReadSae | None
    sides: list[StartedSide]


class ReadToken(Form, frozen=True, kw_only=True):
    """One token with its text and its activations."""

    position: int
    token_id: int
    text: str
    features: list[ReadFeature]


class ComparePrompt(Form, frozen=True, kw_only=True):
    """The tokens of the prompt of one side, where the request asks for their activations."""

    side: int
    intensity: float
    tokens: list[ReadToken]


class CompareText(Form, frozen=True, kw_only=True):
    """New text of one side. `completion_tokens` counts the tokens of the side so far. `token` is there where the
    request asks for activations, and is null where the event has no new token."""

    side: int
    intensity: float
    text: str
    finish_reason: FinishReason | None
    completion_tokens: int
    token: ReadToken | UnsetType | None = UNSET


class CompareFailed(Form, frozen=True, kw_only=True):
    """The last event of a comparison that failed. `retry_after` is in seconds."""

    code: ErrorCode
    message: str
    details: dict[str, object]
    retry_after: int | UnsetType = UNSET


class CompareDone(Form, frozen=True, kw_only=True):
    """The last event of a comparison that succeeded. It has no fields."""


class CompareEvents(Form, frozen=True, kw_only=True):
    """The data of each event of a streamed comparison, by the name of the event: one `started`, then `prompt` and
    `text`, at last `done` or `error`."""

    started: CompareStarted
    prompt: ComparePrompt
    text: CompareText
    done: CompareDone
    error: CompareFailed
