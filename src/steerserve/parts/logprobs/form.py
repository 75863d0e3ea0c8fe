"""The log-probabilities of the tokens of an answer, under the steered model and under the model without steering."""

from __future__ import annotations

from steerserve.messages import Distribution, Message
from steerserve.parts.part import Part


class Logprobs(Message, frozen=True):
    """The `top` most probable tokens at each token that is written, under the steered model, under the model without
    steering, or both. An answer has at most `max_entries` log-probabilities."""

    top: int
    has_steered: bool
    has_plain: bool
    max_entries: int


class WrittenToken(Message, frozen=True):
    """A token that was written: under the logits from which it was drawn, and under those of the model without
    steering; None where that was not asked for."""

    token: int
    text: str
    steered: Distribution | None
    plain: Distribution | None


LOGPROBS = Part(
    "logprobs", Logprobs, list[WrittenToken], "steerserve.parts.logprobs.row:LogprobsRow"
)
