"""The field `return_activations_raw` of bodies, and `activations_raw` of answers, as types."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from steerserve.parts.bodies import WholeBody

Dtype = Literal["float32", "float16", "bfloat16"]
LAYERS_MAXIMUM = 1024
_POSITIONS = {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}
_Numbers = Annotated[
    list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=LAYERS_MAXIMUM)
]


class RawSiteAsked(WholeBody):
    """A site of the model, at layers that have it; the logits belong to no layer. `heads` limits `hook_z`, `q`, `k`,
    `v` and `pattern` to these heads."""

    site: str
    layers: _Numbers | Literal["all"] | None = None
    heads: _Numbers | None = None


class ReturnActivationsRaw(WholeBody):
    """The values of sites that the answer carries, as the forward pass computes them."""

    sites: Annotated[list[RawSiteAsked], Field(min_length=1, max_length=64)]
    positions: Annotated[object, WithJsonSchema(_POSITIONS)] = None
    point: Literal["after", "before"] | None = None
    dtype: Dtype | None = None
    encoding: Literal["base64", "list"] | None = None


class SiteActivations(TypedDict):
    """The values at one site of one layer, one row for each position. `choice` is there where the answer has several,
    and `heads` where the request names heads. `layer` is null for the logits. With `attention`, the layers computed
    attention in the plain way for this answer, because the request reads a `pattern`; the last bits of its values may
    then differ from those of an answer without one."""

    choice: NotRequired[int]
    site: str
    layer: int | None
    module_path: str
    dtype: Dtype
    shape: list[int]
    heads: NotRequired[list[int]]
    attention: NotRequired[Literal["plain"]]
    positions: list[int]
    data: str | list[list[float]] | list[list[list[float]]]


AllActivationsRaw = list[SiteActivations]
