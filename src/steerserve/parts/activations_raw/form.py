"""`return_activations_raw`: the values that a forward pass computes at sites of the model, in an answer."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

from steerserve.errors import Refusal
from steerserve.messages import Message
from steerserve.parts.part import BodyField, Part, Resident, Sent
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference.names import GGUF
from steerserve.rules.saes.sites import EMBED, LOGITS, PATTERN, READABLE
from steerserve.rules.steering import interventions
from steerserve.rules.steering.placing import ModelFacts
from steerserve.rules.steering.positions import ALL, Positions
from steerserve.rules.units import MIB

FIELD = "return_activations_raw"
SITES_MAXIMUM = 1024
"""The sites that one request may read, each counted at each layer."""

DTYPES: Mapping[str, int] = MappingProxyType({"float32": 4, "float16": 2, "bfloat16": 2})
"""The name of a type -> the bytes of one of its numbers."""

Dtype = Literal["float32", "float16", "bfloat16"]


class RawSite(Message, frozen=True):
    """A site at a layer; None for the logits, which belong to no layer. `where` is its place in the request. `heads`
    are the heads that are read; None for all."""

    where: str
    site: str
    layer: int | None
    heads: tuple[int, ...] | None = None


class RawReads(Message, frozen=True):
    """The sites to read at these positions.

    Attributes:
        is_before: whether the values are read before the edits at their site.
        dtype: the type of the numbers that are sent.
        is_listed: whether the numbers are told as a list, so that they travel as float32.
        max_bytes: the most bytes of the values of a request; `all_max_bytes` of all requests that run.
        piece_bytes: the most bytes of a piece of the values where a job reads the prompt; None where a request does. A
            job bounds its values itself, and positions that a prompt does not have are left out.
    """

    sites: tuple[RawSite, ...]
    positions: Positions
    is_before: bool
    dtype: Dtype
    is_listed: bool
    max_bytes: int
    all_max_bytes: int
    piece_bytes: int | None = None

    @property
    def form(self) -> RawReads:
        """What a row gets."""
        return self


class RawValues(Message, frozen=True):
    """The values [positions, *shape] of one site in little-endian numbers, in the order of the positions."""

    path: str
    shape: tuple[int, ...]
    data: bytes


class RawSums(Message, frozen=True):
    """Of the values of one site at all positions of a row: their sum [numbers] in little-endian float64, and the sum of
    their lengths."""

    values: bytes
    lengths: float


class RawChunk(Message, frozen=True):
    """What a row has read: one entry for each site that was asked for. Of several pieces the last one has the sums."""

    positions: tuple[int, ...]
    values: tuple[RawValues, ...]
    sums: tuple[RawSums, ...] = ()


SiteAsked = tuple[str, tuple[int, ...] | None, tuple[int, ...] | None]
"""A site, its layers, which are None for all layers that have it, and its heads, which are None for all."""


@dataclass(frozen=True, slots=True)
class RawAsked:
    """What a body asks for."""

    sites: tuple[SiteAsked, ...]
    positions: Positions
    is_before: bool
    dtype: Dtype
    is_listed: bool


class RawActivationsPart(Part[RawReads, RawChunk]):
    name = "activations_raw"
    fields = MappingProxyType(
        {
            FIELD: BodyField(
                "steerserve.parts.activations_raw.body:ReturnActivationsRaw",
                is_refused=False,
                is_scored=True,
                known=MappingProxyType(
                    {
                        "sites": dict.fromkeys(("heads", "layers", "site")),
                        **dict.fromkeys(("dtype", "encoding", "point", "positions")),
                    }
                ),
            )
        }
    )
    told = MappingProxyType(
        {"activations_raw": "steerserve.parts.activations_raw.body:AllActivationsRaw"}
    )
    form = RawReads
    chunk = RawChunk
    row = "steerserve.parts.activations_raw.row:RawRow"

    def parse(self, body: Mapping[str, Any], sent: Sent) -> RawAsked | None:
        """Raises:
        Refusal: INVALID_PARAMETER, whose `param` names the place.
        """
        asked = body.get(FIELD)
        if asked is None:
            return None
        positions = ALL
        if asked.positions is not None:
            where = f"{FIELD}.positions"
            positions = interventions.parse_positions(asked.positions, where)
        return RawAsked(
            parse_sites(asked.sites, f"{FIELD}.sites"),
            positions,
            asked.point == "before",
            asked.dtype or "float32",
            asked.encoding == "list",
        )

    def check_engine(self, asked: RawAsked, engine: str) -> None:
        """Raises:
        Refusal: FIELD_NOT_HONOURED for a GGUF model, whose layers nothing reads.
        """
        if engine == GGUF:
            why = f"{FIELD}: a GGUF model has no layers that could be read"
            raise Refusal("FIELD_NOT_HONOURED", why, param=FIELD)

    def plan(self, asked: RawAsked, resident: Resident) -> RawReads:
        """Raises:
        Refusal: INVALID_PARAMETER for a site or a layer that the model does not have, and for too many sites.
        """
        settings = resident.settings
        return RawReads(
            place_sites(asked.sites, resident.model, f"{FIELD}.sites"),
            asked.positions,
            asked.is_before,
            asked.dtype,
            asked.is_listed,
            settings.activations_raw_max_mb * MIB,
            settings.activations_raw_all_mb * MIB,
        )

    def tell(
        self,
        planned: RawReads,
        chunks: Mapping[int, Sequence[RawChunk]],
        texts: Sequence[str],
    ) -> dict[str, object]:
        """An entry for each choice and each site."""
        is_plain = any(asked.site == PATTERN for asked in planned.sites)
        told = [
            {
                **({"choice": choice} if len(texts) > 1 else {}),
                "site": asked.site,
                "layer": asked.layer,
                "module_path": values.path,
                "dtype": planned.dtype,
                "shape": [len(chunk.positions), *values.shape],
                **({} if asked.heads is None else {"heads": asked.heads}),
                **({"attention": "plain"} if is_plain else {}),
                "positions": chunk.positions,
                "data": _told_data(values, len(chunk.positions), planned),
            }
            for choice, parts in chunks.items()
            for chunk in parts
            for asked, values in zip(planned.sites, chunk.values, strict=True)
        ]
        return {"activations_raw": told}


ACTIVATIONS_RAW = RawActivationsPart()


class SiteBody(Protocol):
    """A site in a body."""

    @property
    def site(self) -> str: ...
    @property
    def layers(self) -> list[int] | Literal["all"] | None: ...
    @property
    def heads(self) -> list[int] | None: ...


def parse_sites(
    asked: Sequence[SiteBody], field: str, known: Mapping[str, str] = READABLE
) -> tuple[SiteAsked, ...]:
    """The sites of a body, whose list of them is called `field`. They are some of the `known` ones.

    Raises:
        Refusal: INVALID_PARAMETER, whose `param` names the place.
    """
    sites: list[SiteAsked] = []
    for place, one in enumerate(asked):
        where = f"{field}[{place}]"
        if one.site not in known:
            raise refuse_parameter(f"{where}.site", f"must be one of {', '.join(known)}")
        if one.site == LOGITS and one.layers is not None:
            raise refuse_parameter(f"{where}.layers", "the logits belong to no layer")
        if one.site != LOGITS and one.layers is None:
            raise refuse_parameter(f"{where}.layers", "name the layers of the site, or all")
        layers = None
        if isinstance(one.layers, list):
            layers = _unlike(one.layers, f"{where}.layers")
        if layers is not None and one.site == EMBED and layers != (0,):
            raise refuse_parameter(f"{where}.layers", "the token embedding is at layer 0")
        heads = None if one.heads is None else _unlike(one.heads, f"{where}.heads")
        sites.append((one.site, layers, heads))
    return tuple(sites)


def place_sites(asked: Sequence[SiteAsked], model: ModelFacts, field: str) -> tuple[RawSite, ...]:
    """The sites at all their layers.

    Raises:
        Refusal: INVALID_PARAMETER for a site or a layer that the model does not have, and for too many sites.
    """
    sites: list[RawSite] = []
    for place, (site, layers, heads) in enumerate(asked):
        where = f"{field}[{place}]"
        if model.readable and site not in model.readable:
            has = ", ".join(model.readable)
            why = f"this model has no {site} ({READABLE[site]}); it has {has}"
            raise refuse_parameter(f"{where}.site", why, sites=list(model.readable))
        every = model.readable.get(site, ())
        for layer in layers or ():
            if layer >= model.layers:
                why = f"{layer} is outside [0, {model.layers})"
                raise refuse_parameter(f"{where}.layers", why, layers=model.layers)
            if layer not in every:
                why = f"layer {layer} of this model has no {site}; the layers {_spelled(every)} have it"
                raise refuse_parameter(f"{where}.layers", why, layers=list(every))
        at = (None,) if site == LOGITS else layers or every
        sites += (RawSite(where, site, layer, heads) for layer in at)
    if len(sites) > SITES_MAXIMUM:
        why = f"{len(sites)} sites at all layers; at most {SITES_MAXIMUM}"
        raise refuse_parameter(field, why, maximum=SITES_MAXIMUM)
    return tuple(sites)


def _told_data(values: RawValues, count: int, planned: RawReads) -> object:
    """Base64 of the numbers, or the numbers in nested lists."""
    if not planned.is_listed:
        return base64.b64encode(values.data).decode()
    numbers = iter(array("f", values.data))
    return _nested(numbers, (count, *values.shape))


def _nested(numbers: Iterator[float], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return [next(numbers) for _ in range(shape[0])]
    return [_nested(numbers, shape[1:]) for _ in range(shape[0])]


def _spelled(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _unlike(numbers: Sequence[int], where: str) -> tuple[int, ...]:
    """The numbers, no two of which are the same."""
    for place, number in enumerate(numbers):
        if number in numbers[:place]:
            raise refuse_parameter(f"{where}[{place}]", f"{number} is there twice")
    return tuple(numbers)
