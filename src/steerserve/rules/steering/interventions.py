"""The field `interventions` as clients send it: its form in JSON, and the edits that it means before any attached SAE,
stored vector or model is looked at. Requests, the live steering and saved profiles have the same form.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from steerserve.errors import Refusal
from steerserve.rules import bounds, field_faults, near_names
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.saes.sites import EDITABLE, RESID_POST
from steerserve.rules.steering import request
from steerserve.rules.steering.edits import (
    ADD,
    RAW,
    REPLACE,
    SWAP,
    TOKEN,
    UNITS,
)
from steerserve.rules.steering.placed import Modifiers
from steerserve.rules.steering.positions import (
    ALL,
    EVERY,
    GENERATED,
    LAST_PROMPT,
    NAMES,
    OUTPUT,
    PROMPT,
    Positions,
    Selection,
)
from steerserve.rules.steering.request import (
    ACTIVATION,
    BESIDE,
    INTERVENTIONS,
    MAX,
    AskedCondition,
    AskedConditions,
    AskedEdit,
    AskedSource,
    AskedWhen,
    CapturedSource,
    NamedFeature,
    NamedProbe,
    Reference,
    RequestSteering,
    SteeredFeature,
    SteeredVector,
    TextSource,
    has_value,
)
from steerserve.rules.steering.vector import Direction, Vector, is_finite32

Form = TypeVar("Form", bound=msgspec.Struct)
INTEGER_MAXIMUM = 2**31 - 1
_PATH = re.compile(r" - at `\$(?P<path>.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
_NO_CHOICE = "Invalid enum value"
_HOLD = "must be token, rest, or a number of positions from 1 on"

Role = Literal["system", "user", "assistant", "tool", "function", "developer"]
Name = Literal["all", "prompt", "last_prompt", "generated", "output"]
ROLES: tuple[str, ...] = get_args(Role)


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the parts of the form."""


class FeaturePart(_Part, frozen=True):
    """A feature of an attached SAE. `sae_id` and `layer` name the SAE where several could be meant."""

    index: int
    sae_id: str | None = None
    layer: int | None = None


class VectorPart(_Part, frozen=True):
    """A direction inside the request: `data` is base64 of little-endian float32."""

    layer: int
    data: str
    site: str = RESID_POST
    dtype: Literal["float32"] = "float32"
    shape: list[int] | None = None


class LayersPart(_Part, frozen=True, rename={"first": "from", "last": "to"}):
    """The layers from the first to the last, both included."""

    first: int
    last: int


class SelectionPart(_Part, frozen=True):
    """A union of positions."""

    names: list[Name] | None = None
    prompt_positions: list[int] | None = None
    prompt_window: tuple[int, int] | None = None
    generated_window: tuple[int, int] | None = None
    roles: list[Role] | None = None
    tokens: list[int] | None = None
    after_text: str | None = None


class PositionsPart(SelectionPart, frozen=True):
    """A union of positions without those of `exclude`, and with `special_tokens: false` without special tokens."""

    exclude: SelectionPart | None = None
    special_tokens: Literal[False] | None = None


class ConditionPart(_Part, frozen=True):
    """What a feature, a vector or a probe reads, above or below a bound; or several conditions in `any` or `all`."""

    feature: FeaturePart | None = None
    vector: str | VectorPart | None = None
    probe: str | None = None
    above: float | None = None
    below: float | None = None
    over: Literal["token", "prompt_max", "prompt_mean", "last_prompt"] | None = None
    hold: Literal["token", "rest"] | int | None = None
    any: list[ConditionPart] | None = None
    all: list[ConditionPart] | None = None


class MessagePart(_Part, frozen=True):
    """A message of a conversation that a source reads."""

    role: Role
    content: str


class SourcePart(_Part, frozen=True):
    """Where the values of a `replace` come from: what the model computes, unsteered, at positions of another text, or
    of a conversation; a row of a capture; or the mean of the rows of a capture."""

    text: str | None = None
    messages: list[MessagePart] | None = None
    positions: Name | PositionsPart | None = None
    capture: str | None = None
    row: int | None = None
    mean_of: str | None = None


class EditPart(_Part, frozen=True):
    """One edit of a feature, of the directions of a vector, or of the value of a site."""

    op: Literal["add", "set", "at_least", "at_most", "scale", "ablate", "swap", "replace"]
    feature: FeaturePart | None = None
    vector: str | VectorPart | None = None
    value: float | None = None
    unit: Literal["activation", "max", "raw", "unit", "residual"] | None = None
    layers: list[int] | LayersPart | None = None
    to: str | VectorPart | None = None
    positions: Name | PositionsPart | None = None
    when: ConditionPart | None = None
    source: SourcePart | None = None
    site: str | None = None
    layer: int | None = None
    heads: list[int] | None = None


class InterventionsPart(_Part, frozen=True):
    """Edits. They replace the steering that there would be without them, or with the mode `add` are made beside it."""

    edits: list[EditPart]
    mode: Literal["replace", "add"] | None = None
    preserve_norm: bool | None = None


def parse(raw: object, field: str = INTERVENTIONS) -> RequestSteering:
    """The edits of a value in JSON. `field` is where the request has it; empty where it is the whole body.

    Raises:
        Refusal: INVALID_INTERVENTION, whose `param` is the place; TOO_MANY_EDITS.
    """
    if isinstance(raw, Mapping) and isinstance(raw.get("edits"), list):
        count = len(raw["edits"])
        if count > bounds.EDITS:
            where = _joined(field, "edits")
            found = f"{where}: {count} edits; at most {bounds.EDITS}"
            raise Refusal("TOO_MANY_EDITS", found, param=where, maximum=bounds.EDITS)
        request.check_conditions(_joined(field, "edits"), map(_conditions_in, raw["edits"]))
    part = _converted(raw, field, InterventionsPart)
    made = tuple(
        _edit(one, _joined(field, f"edits[{place}]")) for place, one in enumerate(part.edits)
    )
    modifiers = Modifiers(preserve_norm=bool(part.preserve_norm))
    return request.check_steering(RequestSteering(made, part.mode == BESIDE, field, modifiers))


def parse_positions(raw: object, field: str) -> Positions:
    """The positions of a value in JSON: an object, or a name. `field` is its place in the request.

    Raises:
        Refusal: INVALID_PARAMETER, whose `param` is the place.
    """
    try:
        if not isinstance(raw, str):
            return _positions(_converted(raw, field, PositionsPart), field)
        if raw in get_args(Name):
            return _positions(raw, field)
        raise _wrong(field, f"must be an object or one of {', '.join(get_args(Name))}")
    except Refusal as refusal:
        where, details = refusal.param, refusal.details
        raise Refusal("INVALID_PARAMETER", refusal.message, param=where, **details) from None


def _conditions_in(edit: object) -> int:
    """The conditions of an edit in JSON, counted no further than one request may have. What is no condition counts as
    one, so that the count bounds the work."""
    count, waiting = 0, [edit.get("when")] if isinstance(edit, Mapping) else []
    while waiting and count <= bounds.CONDITIONS:
        one = waiting.pop()
        inner = [one.get("any"), one.get("all")] if isinstance(one, Mapping) else []
        lists = [part for part in inner if isinstance(part, list) and part]
        many = [part for part in lists if len(part) > bounds.CONDITION_CHOICES]
        count += sum(map(len, many)) if many else int(not lists and one is not None)
        waiting += [] if many else [each for part in lists for each in part]
    return count


def without_data(edit: Mapping[str, object]) -> dict[str, object]:
    """An edit as it was sent, without the numbers of directions that it has itself."""
    return {name: _without_data(part) for name, part in edit.items() if name != "data"}


def _without_data(part: object) -> object:
    if isinstance(part, Mapping):
        return without_data(part)
    return [_without_data(one) for one in part] if isinstance(part, list) else part


def _converted(raw: object, field: str, kind: type[Form]) -> Form:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        path = found["path"].removeprefix(".") if found else ""
        why = text[: found.start()] if found else text
        for pattern in (_UNKNOWN, _MISSING):
            if match := pattern.match(why):
                name = match["name"]
                path = _joined(path, name)
                why = _unknown_in(path, name, kind) if pattern is _UNKNOWN else "is required"
        if why.startswith(_NO_CHOICE):
            why = _expected(path)
        where = _joined(field, path)
        raise _wrong(where, field_faults.spoken(why)) from None
    except RecursionError:
        raise _wrong(field, "nested too deep") from None


def _unknown_in(path: str, name: str, whole: type[msgspec.Struct]) -> str:
    """Why the last part of a path in a `whole` is unknown, with the fields that are known at its place."""
    holder = path.removesuffix(name).rstrip(".").rpartition(".")[2].partition("[")[0]
    known = _PARTS.get(holder) if holder else whole
    hint = (
        near_names.hint(name, [one.encode_name for one in msgspec.structs.fields(known)])
        if known
        else ""
    )
    return f"an unknown field; {hint}" if hint else "an unknown field"


_PARTS: dict[str, type[msgspec.Struct]] = {
    "edits": EditPart,
    "vector": VectorPart,
    "source": SourcePart,
    "positions": PositionsPart,
}
"""The name of a field -> the object that it holds."""


def _expected(path: str) -> str:
    """What is expected at the place of a value that is none of the possible ones."""
    name = path.rpartition(".")[2].partition("[")[0]
    choices = ", ".join(_CHOICES[name])
    return _HOLD if name == "hold" else f"must be {'one of ' if ', ' in choices else ''}{choices}"


def _literals(form: object) -> Iterator[str]:
    """The values that a type allows by their names, in JSON without quotes."""
    if get_origin(form) is Literal:
        yield from (json.dumps(value).strip('"') for value in get_args(form))
    else:
        for part in get_args(form):
            yield from _literals(part)


_CHOICES = {
    one.name: choices
    for part in (
        *(VectorPart, PositionsPart, ConditionPart, MessagePart, SourcePart, EditPart),
        InterventionsPart,
    )
    for one in msgspec.structs.fields(part)
    if (choices := tuple(_literals(one.type)))
}
"""The name of a field -> its possible values, for fields with a closed list of them."""


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _wrong(where: str, why: str, **details: object) -> Refusal:
    return Refusal("INVALID_INTERVENTION", f"{where}: {why}", param=where or None, **details)


# ------------------------------------------------------------- edits


def _edit(part: EditPart, where: str) -> AskedEdit:
    if part.op == REPLACE:
        return _replacement(part, where)
    _check_absent(part, ("source", "site", "layer", "heads"), where, f"goes with the op {REPLACE}")
    if (part.feature is None) == (part.vector is None):
        given = "both" if part.feature is not None else "neither"
        why = f"an edit has either a feature or a vector, and this one has {given}"
        raise _wrong(f"{where}.feature", why)
    is_vector = part.vector is not None
    if part.op == SWAP and not is_vector:
        raise _wrong(f"{where}.op", f"{SWAP} edits a vector")
    _check_value(part, where, is_vector=is_vector)
    positions = _positions(part.positions, f"{where}.positions")
    when = _when(part.when, f"{where}.when") if part.when is not None else None
    unit = _unit(part, where, is_vector=is_vector)
    if part.feature is not None:
        _check_absent(part, ("layers", "to"), where, "goes with a vector")
        feature = _feature(part.feature, f"{where}.feature")
        value = part.value or 0.0
        return SteeredFeature(feature.index, value, feature.choice, part.op, unit, positions, when)
    if (part.op == SWAP) != (part.to is not None):
        why = f"is required with the op {SWAP}" if part.to is None else f"goes with the op {SWAP}"
        raise _wrong(f"{where}.to", why)
    layers = _layers(part.layers, f"{where}.layers")
    return SteeredVector(
        _reference(part.vector, f"{where}.vector"),
        part.op,
        1.0 if part.value is None else part.value,
        unit,
        layers,
        isinstance(part.layers, LayersPart),
        None if part.to is None else _reference(part.to, f"{where}.to"),
        positions,
        when,
    )


def _replacement(part: EditPart, where: str) -> AskedEdit:
    """An edit that replaces the activation of a feature, or the value of a site, by that of its source."""
    _check_absent(part, ("unit", "to"), where, f"must be absent with the op {REPLACE}")
    if (part.vector is None) == (part.source is None) or (part.feature and part.vector):
        why = "is required, or for a site a vector with its values in place of it; not both"
        raise _wrong(f"{where}.source", why)
    way = 1.0 if part.value is None else part.value
    if not is_finite32(way):
        raise _wrong(f"{where}.value", "must be a finite number")
    positions = _positions(part.positions, f"{where}.positions")
    when = _when(part.when, f"{where}.when") if part.when is not None else None
    source = None if part.source is None else _source(part.source, f"{where}.source")
    heads = () if part.heads is None else _heads(part.heads, f"{where}.heads")
    if part.feature is not None:
        why = "must be absent where a feature is replaced"
        _check_absent(part, ("site", "layer", "layers", "heads"), where, why)
        one = _feature(part.feature, f"{where}.feature")
        if isinstance(source, CapturedSource):
            raise _wrong(f"{where}.source", "must have a text, because a capture has no features")
        return SteeredFeature(
            one.index, way, one.choice, REPLACE, ACTIVATION, positions, when, source
        )
    layers, is_range = _layers(part.layers, f"{where}.layers"), isinstance(part.layers, LayersPart)
    if source is None:
        why = "must be absent with a vector, which has its own"
        _check_absent(part, ("site", "layer"), where, why)
    elif (part.layer is None) == (part.layers is None):
        raise _wrong(f"{where}.layer", "is required, or `layers` in place of it; not both")
    if part.layer is not None:
        _in_range(part.layer, f"{where}.layer")
        layers = (part.layer,)
    site = RESID_POST if part.site is None else part.site
    if site not in EDITABLE:
        raise _wrong(f"{where}.site", f"must be one of {', '.join(EDITABLE)}")
    return SteeredVector(
        _reference(part.vector, f"{where}.vector", is_value=True) if source is None else source,
        REPLACE,
        way,
        RAW,
        layers,
        is_range,
        None,
        positions,
        when,
        site,
        heads,
    )


def _source(part: SourcePart, where: str) -> AskedSource:
    sources = ("text", "messages", "capture", "mean_of")
    given = [name for name in sources if getattr(part, name) is not None]
    if len(given) != 1:
        why = "is required, or one of `messages`, `capture` and `mean_of` in place of it"
        raise _wrong(f"{where}.text", why)
    (kind,) = given
    if kind in ("capture", "mean_of"):
        return _captured(part, kind, where)
    if part.row is not None:
        raise _wrong(f"{where}.row", "must be absent without `capture`")
    positions = _positions(part.positions, f"{where}.positions")
    if part.text is not None:
        return TextSource(_filled(part.text, f"{where}.text"), positions)
    if not part.messages:
        raise _wrong(f"{where}.messages", "must have at least one message")
    told = tuple((one.role, one.content) for one in part.messages)
    return TextSource(told, positions)


def _captured(part: SourcePart, kind: str, where: str) -> CapturedSource:
    if part.positions is not None:
        raise _wrong(f"{where}.positions", f"must be absent with `{kind}`")
    if (part.row is None) == (kind == "capture"):
        expected = (
            "is required with `capture`" if part.row is None else "must be absent with `mean_of`"
        )
        raise _wrong(f"{where}.row", expected)
    if part.row is not None:
        _in_range(part.row, f"{where}.row")
    return CapturedSource(_filled(getattr(part, kind), f"{where}.{kind}"), part.row)


def _check_absent(part: _Part, names: Sequence[str], where: str, why: str) -> None:
    """Raises:
    Refusal: INVALID_INTERVENTION for the first of these fields that a part has.
    """
    for name in names:
        if getattr(part, name) is not None:
            raise _wrong(f"{where}.{name}", why)


def _filled(text: str, where: str) -> str:
    if not text:
        raise _wrong(where, "must not be empty")
    return text


def _heads(heads: list[int], where: str) -> tuple[int, ...]:
    for place, head in enumerate(heads):
        _in_range(head, f"{where}[{place}]")
    if not heads or len(heads) > bounds.EDIT_LIST_ENTRIES or len(set(heads)) < len(heads):
        raise _wrong(where, f"must be 1 to {bounds.EDIT_LIST_ENTRIES} heads, each once")
    return tuple(sorted(heads))


def _check_value(part: EditPart, where: str, *, is_vector: bool) -> None:
    where = f"{where}.value"
    may_miss = is_vector and part.op == "ablate"
    if part.value is None:
        if has_value(part.op, is_vector=is_vector) and not may_miss:
            raise _wrong(where, f"is required with the op {part.op}")
    elif not has_value(part.op, is_vector=is_vector):
        raise _wrong(where, f"must be absent with the op {part.op}")
    elif not is_finite32(part.value):
        raise _wrong(where, "must be a finite number")


def _unit(part: EditPart, where: str, *, is_vector: bool) -> str:
    where = f"{where}.unit"
    if part.unit is None:
        return RAW if is_vector else ACTIVATION
    units = UNITS if is_vector else (ACTIVATION, MAX)
    if part.unit not in units:
        kind = "a vector" if is_vector else "a feature"
        raise _wrong(where, f"must be one of {', '.join(units)} for {kind}")
    is_factor = part.op == "scale" or not has_value(part.op, is_vector=is_vector)
    if is_vector and part.op != ADD:
        raise _wrong(where, f"goes with the op {ADD} where a vector is edited")
    if part.unit == MAX and is_factor:
        raise _wrong(where, f"{MAX} goes with an op whose value is an activation")
    return part.unit


def _feature(part: FeaturePart, where: str) -> NamedFeature:
    _in_range(part.index, f"{where}.index")
    if part.layer is not None:
        _in_range(part.layer, f"{where}.layer")
    if part.sae_id is not None:
        _text(part.sae_id, f"{where}.sae_id")
    return NamedFeature(part.index, SaeChoice(part.sae_id, part.layer))


def _layers(part: list[int] | LayersPart | None, where: str) -> tuple[int, ...] | None:
    if part is None:
        return None
    if isinstance(part, LayersPart):
        _in_range(part.first, f"{where}.from")
        if not part.first <= part.last <= INTEGER_MAXIMUM:
            raise _wrong(f"{where}.to", "must be from `from` on")
        return part.first, part.last
    return _integers(part, where)


def _reference(value: str | VectorPart | None, where: str, *, is_value: bool = False) -> Reference:
    """A stored vector by its name, or the vector that the request has itself. One that `is_value` of a site may be
    0."""
    if isinstance(value, str):
        return _text(value, where)
    assert value is not None
    _in_range(value.layer, f"{where}.layer")
    if value.site not in EDITABLE:
        raise _wrong(f"{where}.site", f"must be one of {', '.join(EDITABLE)}")
    if len(value.data) > 4 * bounds.EDIT_VECTOR_BYTES // 3 + 4:
        raise _wrong(f"{where}.data", f"at most {bounds.EDIT_VECTOR_BYTES} bytes")
    try:
        data = base64.b64decode(value.data, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(f"{where}.data", "must be base64") from None
    if not data or len(data) % 4 or len(data) > bounds.EDIT_VECTOR_BYTES:
        why = f"must be float32 numbers of 4 bytes, at most {bounds.EDIT_VECTOR_BYTES} bytes"
        raise _wrong(f"{where}.data", why, bytes=len(data))
    width = len(data) // 4
    if value.shape is not None and value.shape != [width]:
        raise _wrong(f"{where}.shape", f"must be [{width}], the number of float32 in data")
    numbers = array("f", data)
    if not all(map(math.isfinite, numbers)):
        raise _wrong(f"{where}.data", "must have finite numbers")
    if not (is_value or any(numbers)):
        raise _wrong(f"{where}.data", "must not be a vector of zeros")
    digest = hashlib.sha256(data).hexdigest()
    direction = Direction(value.layer, value.site, data)
    return Vector("", "of the request", digest, (direction,))


# ------------------------------------------------------------- positions

_PLAIN = {OUTPUT: (LAST_PROMPT, GENERATED)}
"""Name -> the names whose union has the same positions."""


def _positions(part: str | PositionsPart | None, where: str) -> Positions:
    if part is None:
        return ALL
    if isinstance(part, str):
        return Positions(Selection(names=_names([part])))
    include = _selection(part, where)
    exclude = None
    if part.exclude is not None:
        exclude = _selection(part.exclude, f"{where}.exclude")
        if exclude == Selection():
            raise _wrong(f"{where}.exclude", "must name positions")
    if part.special_tokens is not None:
        exclude = msgspec.structs.replace(exclude or Selection(), special=True)
    if include == Selection():
        if exclude is None:
            raise _wrong(where, "must name positions")
        include = Selection(names=(EVERY,))
    return Positions(include, exclude)


def _selection(part: SelectionPart, where: str) -> Selection:
    for name in ("names", "prompt_positions", "roles", "tokens"):
        listed = getattr(part, name)
        if listed is not None and not 1 <= len(listed) <= bounds.EDIT_LIST_ENTRIES:
            raise _wrong(f"{where}.{name}", f"must have 1 to {bounds.EDIT_LIST_ENTRIES} entries")
    for place, position in enumerate(part.prompt_positions or ()):
        if abs(position) > INTEGER_MAXIMUM:
            raise _wrong(f"{where}.prompt_positions[{place}]", "no prompt is so long")
    # older templates name the role `system` that newer clients name `developer`
    roles = {"system" if role == "developer" else role for role in part.roles or ()}
    return Selection(
        names=_names(part.names or ()),
        prompt_positions=tuple(sorted(set(part.prompt_positions or ()))),
        prompt_window=_window(part.prompt_window, f"{where}.prompt_window"),
        generated_window=_window(part.generated_window, f"{where}.generated_window"),
        roles=tuple(sorted(roles)),
        tokens=_integers(part.tokens, f"{where}.tokens") if part.tokens else (),
        after_text=(
            None if part.after_text is None else _text(part.after_text, f"{where}.after_text")
        ),
    )


def _names(names: Sequence[str]) -> tuple[str, ...]:
    """The names in one form for each set of positions."""
    plain = {one for name in names for one in _PLAIN.get(name, (name,))}
    if EVERY in plain or {PROMPT, LAST_PROMPT, GENERATED} <= plain:
        return (EVERY,)
    return tuple(name for name in NAMES if name in plain)


def _window(window: tuple[int, int] | None, where: str) -> tuple[int, int] | None:
    if window is not None and not 0 <= window[0] < window[1] <= INTEGER_MAXIMUM:
        raise _wrong(where, "must be [a, b] with 0 <= a < b")
    return window


# ------------------------------------------------------------- conditions


def _when(part: ConditionPart, where: str, deep: int = bounds.CONDITION_LEVELS) -> AskedWhen:
    kinds = [
        name
        for name in ("feature", "vector", "probe", "any", "all")
        if getattr(part, name) is not None
    ]
    if len(kinds) != 1:
        raise _wrong(where, "must have one of feature, vector, probe, any and all")
    (kind,) = kinds
    if kind in ("any", "all"):
        return _whens(part, where, kind, deep)
    if (part.above is None) == (part.below is None):
        raise _wrong(where, "must have one of above and below")
    bound_name = "below" if part.above is None else "above"
    bound = part.below if part.above is None else part.above
    if bound is None or not is_finite32(bound):
        raise _wrong(f"{where}.{bound_name}", "must be a finite number")
    over = part.over or TOKEN
    if part.hold is not None and over != TOKEN:
        raise _wrong(f"{where}.hold", f"goes with over: {TOKEN}")
    hold = {None: 1, "token": 1, "rest": None}.get(part.hold, part.hold)  # type: ignore[arg-type]
    if isinstance(hold, int) and not 1 <= hold <= INTEGER_MAXIMUM:
        raise _wrong(f"{where}.hold", _HOLD)
    return AskedCondition(
        _read(part, where), part.above, part.below, over, None if hold is None else int(hold)
    )


def _read(part: ConditionPart, where: str) -> NamedFeature | NamedProbe | Reference:
    if part.probe is not None:
        return NamedProbe(_text(part.probe, f"{where}.probe"))
    if part.feature is not None:
        return _feature(part.feature, f"{where}.feature")
    return _reference(part.vector, f"{where}.vector")


def _whens(part: ConditionPart, where: str, kind: str, deep: int) -> AskedWhen:
    why = f"goes with the conditions inside of {kind}"
    _check_absent(part, ("above", "below", "over", "hold"), where, why)
    inner: list[ConditionPart] = getattr(part, kind)
    if not deep:
        raise _wrong(f"{where}.{kind}", f"any and all nest at most {bounds.CONDITION_LEVELS} deep")
    if not 1 <= len(inner) <= bounds.CONDITION_CHOICES:
        raise _wrong(f"{where}.{kind}", f"must have 1 to {bounds.CONDITION_CHOICES} conditions")
    made = [_when(one, f"{where}.{kind}[{place}]", deep - 1) for place, one in enumerate(inner)]
    return AskedConditions(tuple(made), kind == "all")


# ------------------------------------------------------------- parts


def _in_range(number: int, where: str) -> None:
    if not 0 <= number <= INTEGER_MAXIMUM:
        raise _wrong(where, f"must be from 0 to {INTEGER_MAXIMUM}")


def _integers(numbers: Sequence[int], where: str) -> tuple[int, ...]:
    if not 1 <= len(numbers) <= bounds.EDIT_LIST_ENTRIES:
        raise _wrong(where, f"must have 1 to {bounds.EDIT_LIST_ENTRIES} entries")
    for place, number in enumerate(numbers):
        _in_range(number, f"{where}[{place}]")
    return tuple(sorted(set(numbers)))


def _text(text: str, where: str) -> str:
    if not 1 <= len(text) <= bounds.EDIT_TEXT_CHARACTERS:
        raise _wrong(where, f"must have 1 to {bounds.EDIT_TEXT_CHARACTERS} characters")
    return text


# ------------------------------------------------------------- the description


EDITS_SCHEMA: dict[str, object] = {
    "type": "array",
    "maxItems": bounds.EDITS,
    "items": {"type": "object", "description": "an edit, as in PUT /api/interventions"},
}
"""Edits in short, for the description of bodies that have them beside much else."""
SHORT_SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["edits"],
    "properties": {
        "edits": EDITS_SCHEMA,
        "mode": {"enum": [*request.MODES, None]},
        "preserve_norm": {"type": ["boolean", "null"]},
    },
}
"""The form in short."""


def schema(deep: int = 1) -> dict[str, object]:
    """The form as a JSON schema without references. Conditions are described to the depth `deep` of `any` and `all`;
    what is nested deeper is described as an object."""
    (whole,), parts = msgspec.json.schema_components([InterventionsPart])
    described: dict[str, Any] = _inlined(whole, parts, deep)
    return described


def _inlined(node: object, parts: Mapping[str, object], deep: int) -> Any:
    if isinstance(node, list):
        return [_inlined(one, parts, deep) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" not in node:
        return {key: _inlined(value, parts, deep) for key, value in node.items()}
    name = node["$ref"].rpartition("/")[2]
    if name == ConditionPart.__name__:
        if deep < 0:
            return {"type": "object"}
        deep -= 1
    return _inlined(parts[name], parts, deep)
