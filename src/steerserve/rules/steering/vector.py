"""A vector: directions of the residual stream (or another site) of a model, one for each layer that it has."""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from steerserve.errors import Refusal
from steerserve.rules.bounds import DIRECTIONS, VECTOR_WIDTH
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.form import Form
from steerserve.rules.saes.sites import EDITABLE, RESID_POST, RESID_PRE
from steerserve.rules.text import name_fault, shown

ADD, PROJECT = "add", "project"
OPERATIONS = (ADD, PROJECT)
Operation = Literal["add", "project"]

NAME_MAXIMUM = 120
ID_PREFIX = "vec_"
KIND = "steerserve.vector"
SUGGESTED = "suggested_value"
"""The `kind` of exported JSON documents, and the format of exported safetensors files."""

LAYER_MAXIMUM = 9999
FLOAT_MAXIMUM = 3.4028234663852886e38

Convention = Literal["resid_post", "gguf", "resid_pre", "hf_hidden_states"]
_SHIFTS: dict[str, int] = {"resid_post": 0, "gguf": 0, "resid_pre": -1, "hf_hidden_states": -1}
"""What is added to the number of a layer in a file: `resid_pre` of block N and row N of the hidden states of Hugging
Face are the residual stream after block N-1."""


class Direction(msgspec.Struct, frozen=True, order=True, tag=True, cache_hash=True):
    """A direction at one site of one layer. `data` has its numbers as float32, little-endian, [width]."""

    layer: int
    site: str
    data: bytes

    @property
    def width(self) -> int:
        """The number of its numbers."""
        return len(self.data) // 4

    @property
    def values(self) -> tuple[float, ...]:
        """Its numbers."""
        return struct.unpack(f"<{self.width}f", self.data)

    @property
    def norm(self) -> float:
        """Its length."""
        return math.hypot(*self.values)

    @property
    def unit(self) -> bytes:
        """Its numbers at the length 1, as `data`."""
        norm = self.norm
        return packed([value / norm for value in self.values])


class StoredDirections(msgspec.Struct, frozen=True):
    """A stored vector or probe. `directions` are in the order of layer and site, and no two of them have both the
    same."""

    id: str
    name: str
    content_digest: str
    directions: tuple[Direction, ...]


class Vector(StoredDirections, frozen=True):
    """A vector as edits use it. `operation` is `project` for a vector that must be projected out and never added. Edits
    that name no layers act at `default_layers`; None means at all layers of the vector."""

    operation: str = ADD
    default_layers: tuple[int, ...] | None = None


class LayerNorm(Form, frozen=True):
    """Where a vector has a direction, and the length of the direction."""

    layer: int
    site: str
    norm: float


class ReadOptions(msgspec.Struct, frozen=True):
    """What a client says about a file. `layer` is the layer of a file with one direction that does not name its layer.
    The others replace what the format says; None leaves it. `layer_offset` is added to every layer."""

    layer: int | None = None
    layer_convention: Convention | None = None
    layer_offset: int = 0
    operation: Operation | None = None


class ReadDirections(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from a file of a vector or of a probe. `directions` are in the order of layer and site. `keys` are
    the names of the tensors or fields of the file that became directions. `training` is what a document of this service
    says."""

    format: str
    directions: tuple[Direction, ...]
    keys: tuple[str, ...] = ()
    layer_convention: Convention = "resid_post"
    layer_offset: int = 0
    model_hint: str | None = None
    warnings: tuple[str, ...] = ()
    training: dict[str, object] | None = None


class ReadVector(ReadDirections, frozen=True, kw_only=True):
    """A vector that was read from a file. `suggested_value` is the strength that the file recommends; it is not part of
    the directions."""

    operation: Operation = "add"
    suggested_value: float | None = None


def invalid(file: str, why: str, key: str | None = None) -> Refusal:
    """The refusal of a file, or of one of its tensors or fields."""
    where = file if key is None else f"{file}: {shown(key)!r}"
    details = {} if key is None else {"key": shown(key)}
    return Refusal("INVALID_VECTOR", f"{where} {why}", file=file, **details)


def check_width(file: str, key: str, width: int) -> None:
    """Check the number of numbers before they are read.

    Raises:
        Refusal: INVALID_VECTOR.
    """
    if not 0 < width <= VECTOR_WIDTH:
        raise invalid(file, _bad_width(width), key)


def _bad_width(width: int) -> str:
    return f"has {width} numbers; a direction has 1 to {VECTOR_WIDTH}"


def is_finite32(value: float) -> bool:
    """Whether a number is finite in single precision."""
    return math.isfinite(value) and abs(value) <= FLOAT_MAXIMUM


def packed(values: Sequence[float]) -> bytes:
    """Numbers as float32, little-endian.

    Raises:
        OverflowError: a number is larger than float32 has.
    """
    try:
        return struct.pack(f"<{len(values)}f", *values)
    except struct.error:
        # a whole number of more digits than any float has
        raise OverflowError("a number is too large") from None


def place(index: int, site: str, convention: Convention, offset: int = 0) -> tuple[int, str] | None:
    """The layer and the site of the direction that a file has at `index`. None: the place is before the first layer.

    The residual stream before block 0 has no block before it, so it stays at its own site.
    """
    shift = _SHIFTS[convention] if site == RESID_POST else 0
    layer = index + shift + offset
    if layer == shift == -1 and site == RESID_POST:
        return 0, RESID_PRE
    return (layer, site) if 0 <= layer <= LAYER_MAXIMUM else None


def checked(file: str, found: Iterable[tuple[str, Direction]]) -> tuple[Direction, ...]:
    """Directions in the order of layer and site, each with the key that it comes from.

    Raises:
        Refusal: INVALID_VECTOR naming the key: numbers that are not finite, zeros only, another width than the first
            one has, a layer and site that stand twice, an unknown site; or no direction at all.
    """
    places: dict[tuple[int, str], Direction] = {}
    width = None
    for key, direction in found:
        where = direction.layer, direction.site
        width = direction.width if width is None else width
        why = _fault(direction, width)
        if why is None and where in places:
            why = f"is a second direction for layer {where[0]}, {where[1]}"
        if why is not None:
            raise invalid(file, why, key)
        places[where] = direction
        if len(places) > DIRECTIONS:
            raise invalid(file, f"has more than {DIRECTIONS} directions")
    if not places:
        raise invalid(file, "has no direction")
    return tuple(places[where] for where in sorted(places))


def _fault(direction: Direction, width: int) -> str | None:
    if direction.site not in EDITABLE:
        return f"has the unknown site {shown(direction.site)!r}"
    if not 0 <= direction.layer <= LAYER_MAXIMUM:
        return f"has the layer {direction.layer}"
    if not 0 < direction.width <= VECTOR_WIDTH:
        return _bad_width(direction.width)
    if direction.width != width:
        return f"has {direction.width} numbers, and the first direction {width}"
    values = direction.values
    if not all(map(math.isfinite, values)):
        return "has numbers that are not finite"
    if not any(values):
        return "has zeros only"
    if not 0 < direction.norm <= FLOAT_MAXIMUM:
        return "has a length that float32 does not have"
    return None


def content_digest(directions: Iterable[Direction]) -> str:
    """The SHA-256 of the directions in their order: of each the text `<layer>:<site>:<width>` and a line end, then its
    numbers as float32, little-endian."""
    whole = hashlib.sha256()
    for one in directions:
        whole.update(f"{one.layer}:{one.site}:{one.width}\n".encode())
        whole.update(one.data)
    return whole.hexdigest()


def check_fits(
    name: str, directions: Iterable[Direction], layers: int, site_widths: Mapping[str, int]
) -> None:
    """Check that a model with so many layers and with these widths of its sites has a place for every direction.

    Raises:
        Refusal: VECTOR_MISMATCH naming the first direction without a place.
    """
    for one in directions:
        width = site_widths.get(one.site)
        if one.layer < layers and one.width == width:
            continue
        what = f"layer {one.layer}, {one.site}, with {one.width} numbers"
        why = f"the loaded model has {layers} layers, and its {one.site} has {width} numbers"
        if width is None:
            why = f"the loaded model has no site {one.site}"
        raise Refusal(
            "VECTOR_MISMATCH",
            f"the vector {shown(name)!r} has a direction at {what}; {why}",
            vector=shown(name),
            layer=one.layer,
            site=one.site,
            width=one.width,
            layers=layers,
            model_width=width,
        )


def directions_at(vector: Vector, layer: int | None) -> list[Direction]:
    """The directions of a vector at one layer, or all of them.

    Raises:
        Refusal: VALIDATION_ERROR for a layer that the vector does not have.
    """
    found = [one for one in vector.directions if layer in (None, one.layer)]
    if not found:
        why = f"the vector has no direction at layer {layer}"
        raise refuse_value(["query", "layer"], why, param="layer")
    return found


def cosine(first: Direction, second: Direction) -> float:
    """The cosine of the angle between two directions of one width."""
    a, b = first.values, second.values
    product = math.fsum(map(operator.mul, a, b))
    return max(-1.0, min(1.0, product / (math.hypot(*a) * math.hypot(*b))))


def check_written(text: str | None, field: str) -> None:
    """Check a text that stands in lists beside other text, such as the hint of a model or the name of a corpus.

    Raises:
        Refusal: VALIDATION_ERROR for characters that no name has.
    """
    why = None if text is None else name_fault(text)
    if why is not None:
        raise refuse_value(["body", field], why, f"body.{field}: {why}", param=field)


def check_name(name: str, prefix: str = ID_PREFIX) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR for a name that is blank, too long, has characters that no name has, or looks like an id,
        which begins with `prefix`.
    """
    why = name_fault(name) or (None if name.strip() else "a name is not blank")
    if len(name) > NAME_MAXIMUM:
        why = f"a name has at most {NAME_MAXIMUM} characters"
    if name.startswith(prefix):
        why = f"a name does not begin with {prefix!r}, as the ids do"
    if why is not None:
        raise refuse_value(["body", "name"], why, f"body.name: {why}", param="name")
