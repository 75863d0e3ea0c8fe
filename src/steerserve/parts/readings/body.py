"""The field `return_readings` of bodies, and `readings` of answers, as types."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

NAMED_MAXIMUM = 16
"""The probes and vectors of one request."""

ReturnReadings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=100)]],
    Field(min_length=1, max_length=NAMED_MAXIMUM),
]


class TokenReadings(TypedDict):
    """What a probe or a vector reads at `site` of `layer`, with a value for each generated token: at the position from
    which the token was drawn. `choice` is there where the answer has several."""

    choice: NotRequired[int]
    id: str
    layer: int
    site: str
    values: list[float]


AllReadings = list[TokenReadings]
