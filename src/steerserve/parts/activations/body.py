"""The field `return_sae_activations` of bodies, and `sae_activations` of answers, as types."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from steerserve.parts.bodies import WholeBody


class Positions(WholeBody):
    """The positions from `start` up to but without `end`, counted from the beginning of the prompt."""

    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=1)]


class ReturnActivations(WholeBody):
    """The SAE activations that the answer carries."""

    sae_id: str | None = None
    layer: Annotated[int, Field(ge=0)] | None = None
    features: list[int] | None = None
    top_k: int | None = None
    positions: Literal["last", "prompt", "completion", "all"] | Positions | None = None
    read_point: Literal["post_steering", "pre_steering"] | None = None
    stream_positions: bool | None = None
    rank: Literal["value", "share", "rarity"] | None = None


class TokenActivation(TypedDict):
    """The activation of one feature; a feature without a label has no field `label`."""

    index: int
    value: float
    label: NotRequired[str]
    weight: NotRequired[float]


class TokenActivations(TypedDict):
    """The activations at one token. `position` counts from the beginning of the prompt."""

    position: int
    token_id: int
    features: list[TokenActivation]


class SaeActivations(TypedDict):
    """The activations that a request asks for, and the SAE that they were read from."""

    sae_id: str
    layer: int
    read_point: Literal["post_steering", "pre_steering", "unsteered"]
    positions: list[TokenActivations]
    note: str
