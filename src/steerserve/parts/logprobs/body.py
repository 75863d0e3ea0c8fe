"""The field `return_logprobs` of bodies, and `logprobs` of answers, as types."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from steerserve.parts.bodies import WholeBody

LOGPROBS_MAXIMUM = 20


class ReturnLogprobs(WholeBody):
    """The log-probabilities of the generated tokens that the answer carries: under the steered model, and under the
    model without steering, which reads the same tokens. `top` is the number of alternatives to list for each token."""

    top: Annotated[int, Field(ge=0, le=LOGPROBS_MAXIMUM)] | None = None
    of: Annotated[list[Literal["steered", "plain"]], Field(min_length=1, max_length=2)] | None = (
        None
    )


class TokenLogprob(TypedDict):
    """A token, and its log-probability in nats."""

    token_id: int
    token: str
    logprob: float


class WrittenDistribution(TypedDict):
    """The log-probability of a generated token, and the most probable tokens in its place, most probable first."""

    logprob: float
    top: list[TokenLogprob]


class WrittenLogprobs(TypedDict):
    """A generated token under the steered model and under the model without steering, as far as these were asked for.
    `choice` is there where the answer has several."""

    choice: NotRequired[int]
    token_id: int
    token: str
    steered: NotRequired[WrittenDistribution]
    plain: NotRequired[WrittenDistribution]


AllLogprobs = list[WrittenLogprobs]
