"""The steering that a request brings itself: edits of features and of directions, in place of the live steering or
beside it. The field `interventions` takes all kinds of edits (`interventions.py` reads it). `sae_steering` is its short
form for `add`. `placing.py` puts the edits at the attached SAEs and the sites of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from steerserve.errors import Refusal
from steerserve.rules import bounds
from steerserve.rules.bounds import STEERED_FEATURES
from steerserve.rules.saes.attachment import FIRST_SAE, SaeChoice
from steerserve.rules.saes.sites import RESID_POST
from steerserve.rules.steering.edits import (
    ABLATE,
    ADD,
    KINDS,
    RAW,
    REPLACE,
    SWAP,
    TOKEN,
    Target,
    direction_target,
)
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers
from steerserve.rules.steering.positions import ALL, Positions
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.vector import FLOAT_MAXIMUM, Direction, Vector

FIELD = "sae_steering"
INTERVENTIONS = "interventions"
INSTEAD, BESIDE = "replace", "add"
MODES = (INSTEAD, BESIDE)
ACTIVATION, MAX = "activation", "max"
"""The units of the value of a feature: its activation, or the largest activation that is known of it."""
REPLACED_MAXIMUM = 2.0
"""The largest value of a `replace`, which goes as far beyond its source."""
ABLATED_MAXIMUM = 2.0
"""The largest value of an `ablate` of a direction, which reflects it."""

Messages = tuple[tuple[str, str], ...]
"""The role and the content of each message of a conversation."""
Reference = str | Vector
"""A stored vector by its id or its name, or a vector itself."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """The values of a `replace` are those that the model computes, unsteered, at these positions of another text, or of
    a conversation."""

    text: str | Messages
    positions: Positions = ALL


@dataclass(frozen=True, slots=True)
class CapturedSource:
    """The values of a `replace` are those of this row of a capture; without a row the means of all its rows."""

    capture_id: str
    row: int | None

    @property
    def part(self) -> str:
        """The field that names the capture."""
        return "mean_of" if self.row is None else "capture"


AskedSource = TextSource | CapturedSource


@dataclass(frozen=True, slots=True)
class ReadSource:
    """What a source has at so many positions: for a site, its values at each layer; or the activations of a feature."""

    rows: int
    directions: tuple[Direction, ...] = ()
    activations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedFeature:
    """A feature that a condition reads."""

    index: int
    choice: SaeChoice = FIRST_SAE


@dataclass(frozen=True, slots=True)
class NamedProbe:
    """A probe that a condition reads: its id or its name, or the probe itself."""

    probe: str | Probe


@dataclass(frozen=True, slots=True)
class AskedCondition:
    """A condition as a request has it; the fields are those of `edits.Condition`."""

    reads: NamedFeature | NamedProbe | Reference
    above: float | None = None
    below: float | None = None
    over: str = TOKEN
    hold: int | None = 1


@dataclass(frozen=True, slots=True)
class AskedConditions:
    """Several conditions, of which all must hold, or any."""

    conditions: tuple[AskedCondition | AskedConditions, ...]
    is_all: bool


AskedWhen = AskedCondition | AskedConditions


@dataclass(frozen=True, slots=True)
class SteeredFeature:
    """One edit of one feature. `choice` names the attached SAE; it may be left open where only one can be meant. `op`
    is one of `edits.KINDS`. The value of an op without a value is 0."""

    index: int
    value: float
    choice: SaeChoice = FIRST_SAE
    op: str = ADD
    unit: str = ACTIVATION
    positions: Positions = ALL
    when: AskedWhen | None = None
    source: AskedSource | ReadSource | None = None


@dataclass(frozen=True, slots=True)
class SteeredVector:
    """One edit of the directions of a vector.

    Attributes:
        vector: the vector, or the source of a `replace`.
        op: one of `edits.KINDS`, `swap` or `replace`.
        layers: the layers of the directions; None means all that the vector has.
        is_range: whether `layers` is a first and a last layer.
        to: the vector of the directions that `swap` writes.
        site: the site of a `replace` with a source, which has `layers` then.
        heads: the heads of the site that a `replace` writes; empty for all numbers of the site.
    """

    vector: Reference | AskedSource | ReadSource
    op: str
    value: float = 0.0
    unit: str = RAW
    layers: tuple[int, ...] | None = None
    is_range: bool = False
    to: Reference | None = None
    positions: Positions = ALL
    when: AskedWhen | None = None
    site: str = RESID_POST
    heads: tuple[int, ...] = ()


AskedEdit = SteeredFeature | SteeredVector


@dataclass(frozen=True, slots=True)
class RequestSteering:
    """The edits of a request. They replace the steering that the request would have had without them, or with
    `is_added` are made beside it. Without any edit the request is not steered, or with `is_added` steered as if it
    had brought none. `field` is the field that the request has them in; empty where they are the body itself."""

    edits: tuple[AskedEdit, ...]
    is_added: bool = False
    field: str = FIELD
    modifiers: Modifiers = NO_MODIFIERS

    @property
    def is_steering(self) -> bool:
        """Whether an edit changes anything."""
        return any(target(edit, edit.value) != Target() for edit in self.edits)

    @property
    def has_sources(self) -> bool:
        """Whether an edit has a source that was not read yet."""
        return any(
            isinstance(edit.vector if isinstance(edit, SteeredVector) else edit.source, AskedSource)
            for edit in self.edits
        )

    @property
    def roles_at(self) -> str | None:
        """The place of the first positions that name roles of chat messages; None where none do."""
        for place, edit in enumerate(self.edits):
            if edit.positions.roles:
                return self.where(place, "positions.roles")
        return None

    def where(self, place: int, part: str = "") -> str:
        """The location of an edit, or of a part of it, in the request."""
        name = f"{'features' if self.field == FIELD else 'edits'}[{place}]"
        return ".".join(filter(None, (self.field, name, part)))

    def references(self) -> dict[str, str]:
        """The stored vectors that the edits name, each with the first place that names it."""
        named: dict[str, str] = {}
        for place, edit in enumerate(self.edits):
            for part, reference in _references(edit):
                if isinstance(reference, str):
                    named.setdefault(reference, self.where(place, part))
        return named

    def probes(self) -> dict[str, str]:
        """The stored probes that conditions name, each with the first place that names it."""
        named: dict[str, str] = {}
        for place, edit in enumerate(self.edits):
            for part, condition in conditions(edit.when):
                reads = condition.reads
                if isinstance(reads, NamedProbe) and isinstance(reads.probe, str):
                    named.setdefault(reads.probe, self.where(place, f"{part}.probe"))
        return named

    def with_vectors(
        self,
        found: Mapping[str, Vector],
        probes: Mapping[str, Probe] = MappingProxyType({}),
        *,
        has_layers: bool = False,
    ) -> RequestSteering:
        """The same edits with the vectors and the probes in the place of their names, and with the layers of the vector
        in edits that name none. With `has_layers` those act at all layers of the vector."""
        made = (_with_vectors(edit, found, probes, has_layers) for edit in self.edits)
        return replace(self, edits=tuple(made))

    def with_layers(
        self, sent: Sequence[Mapping[str, object]], default: Mapping[str, tuple[int, ...] | None]
    ) -> list[dict[str, object]]:
        """The JSON of these edits, with the default layers of the stored vectors that they name without layers."""
        made = []
        for one, edit in zip(sent, self.edits, strict=True):
            layers = None
            if isinstance(edit, SteeredVector) and edit.layers is None:
                layers = default.get(edit.vector) if isinstance(edit.vector, str) else None
            made.append(dict(one) if layers is None else {**one, "layers": list(layers)})
        return made


def _references(edit: AskedEdit) -> Iterator[tuple[str, Reference]]:
    if isinstance(edit, SteeredVector):
        if isinstance(edit.vector, Reference):
            yield "vector", edit.vector
        if edit.to is not None:
            yield "to", edit.to
    for where, condition in conditions(edit.when):
        if not isinstance(condition.reads, NamedFeature | NamedProbe):
            yield f"{where}.vector", condition.reads


def conditions(when: AskedWhen | None, where: str = "when") -> Iterator[tuple[str, AskedCondition]]:
    """All conditions of which a condition is made, each with its place in the edit."""
    if isinstance(when, AskedCondition):
        yield where, when
    elif when is not None:
        name = "all" if when.is_all else "any"
        for at, one in enumerate(when.conditions):
            yield from conditions(one, f"{where}.{name}[{at}]")


def _with_vectors(
    edit: AskedEdit, found: Mapping[str, Vector], probes: Mapping[str, Probe], has_layers: bool
) -> AskedEdit:
    def known(reference: Reference) -> Vector:
        return found[reference] if isinstance(reference, str) else reference

    def resolved(when: AskedWhen | None) -> AskedWhen | None:
        if when is None:
            return None
        if isinstance(when, AskedConditions):
            inner = (resolved(one) for one in when.conditions)
            return replace(when, conditions=tuple(one for one in inner if one is not None))
        reads = when.reads
        if isinstance(reads, NamedProbe):
            probe = reads.probe
            return replace(
                when, reads=NamedProbe(probes[probe] if isinstance(probe, str) else probe)
            )
        return when if isinstance(reads, NamedFeature) else replace(when, reads=known(reads))

    if isinstance(edit, SteeredFeature):
        return replace(edit, when=resolved(edit.when))
    if not isinstance(edit.vector, Reference):
        return replace(edit, when=resolved(edit.when))
    vector, to = known(edit.vector), None if edit.to is None else known(edit.to)
    layers = edit.layers
    if layers is None and not has_layers:
        layers = vector.default_layers
    return replace(edit, vector=vector, layers=layers, to=to, when=resolved(edit.when))


def target(asked: AskedEdit, value: float) -> Target:
    """The target of an edit with this value."""
    if isinstance(asked, SteeredVector):
        return direction_target(asked.op, value)
    if asked.op == REPLACE:
        read = asked.source.activations if isinstance(asked.source, ReadSource) else ()
        # several activations are those of the source of the edit
        aim = read[0] if len(read) == 1 else 0.0
        return Target(factor=1.0 - value, offset=value * aim)
    return KINDS[asked.op].target(value)


def check_steering(steering: RequestSteering) -> RequestSteering:
    """The checks that need no attached SAE and no stored vector. Values are never clamped here.

    Raises:
        Refusal: INVALID_PARAMETER for `sae_steering`, INVALID_INTERVENTION for all other fields: an unknown op, a value
            outside the bounds of its op, a negative index, too many features, or a feature that is named twice in
            `sae_steering`; TOO_MANY_EDITS.
    """
    count = len(steering.edits)
    if steering.field != FIELD:
        if count > bounds.EDITS:
            raise too_many(steering, f"{count} edits; at most {bounds.EDITS}", bounds.EDITS)
    elif count > STEERED_FEATURES:
        raise invalid(steering, f"{FIELD}.features", f"at most {STEERED_FEATURES} features")
    where = ".".join(filter(None, (steering.field, "edits")))
    check_conditions(where, (len(list(conditions(edit.when))) for edit in steering.edits))
    seen: set[tuple[SaeChoice, int]] = set()
    for place, edit in enumerate(steering.edits):
        _check_edit(steering, place, edit)
        if steering.field == FIELD and isinstance(edit, SteeredFeature):
            if (edit.choice, edit.index) in seen:
                raise twice(steering, place)
            seen.add((edit.choice, edit.index))
    return steering


def check_conditions(where: str, counts: Iterable[int]) -> None:
    """Check the conditions of all edits together. `counts` has the number of each edit, and is read no further than
    needed.

    Raises:
        Refusal: TOO_MANY_EDITS.
    """
    total = 0
    for count in counts:
        total += count
        if total > bounds.CONDITIONS:
            why = f"{where}: the edits have more than {bounds.CONDITIONS} conditions together"
            raise Refusal("TOO_MANY_EDITS", why, param=where, maximum=bounds.CONDITIONS)


def _check_edit(steering: RequestSteering, place: int, edit: AskedEdit) -> None:
    ops = (*KINDS, *((SWAP,) if isinstance(edit, SteeredVector) else ()), REPLACE)
    if edit.op not in ops:
        raise invalid(steering, steering.where(place, "op"), f"one of {', '.join(ops)}")
    limits = bounds_of(edit)
    if limits is not None and not limits[0] <= edit.value <= limits[1]:
        is_open = limits[1] == FLOAT_MAXIMUM
        expected = "a finite number" if is_open else f"a number from {limits[0]:g} to {limits[1]:g}"
        raise invalid(steering, steering.where(place, "value"), expected)
    if isinstance(edit, SteeredFeature) and edit.index < 0:
        expected = "a feature index, counted from 0"
        raise invalid(steering, index_of(steering, place), expected)


def bounds_of(edit: AskedEdit) -> tuple[float, float] | None:
    """The bounds of the value of an edit; None for an op without a value."""
    if edit.op == REPLACE:
        return (0.0, REPLACED_MAXIMUM)
    if isinstance(edit, SteeredFeature):
        kind = KINDS[edit.op]
        low, high = kind.lowest, kind.highest
        return None if low is None or high is None else (low, high)
    if edit.op == SWAP:
        return None
    return (0.0, ABLATED_MAXIMUM) if edit.op == ABLATE else (-FLOAT_MAXIMUM, FLOAT_MAXIMUM)


def has_value(op: str, *, is_vector: bool) -> bool:
    """Whether an op must have a value. The value of an `ablate` of a direction may be left out."""
    if op in (SWAP, REPLACE):
        return op == REPLACE
    return KINDS[op].has_value or (is_vector and op == ABLATE)


def index_of(steering: RequestSteering, place: int) -> str:
    """The location of the index of an edited feature."""
    return steering.where(place, "index" if steering.field == FIELD else "feature.index")


def twice(steering: RequestSteering, place: int) -> Refusal:
    """The refusal of a feature that `sae_steering` has twice."""
    edit = steering.edits[place]
    index = edit.index if isinstance(edit, SteeredFeature) else None
    expected = f"each feature once; feature {index} is there twice"
    return invalid(steering, steering.where(place), expected)


def invalid(steering: RequestSteering, where: str, expected: str, **details: object) -> Refusal:
    """The refusal of a part of the steering that must be something else."""
    code = "INVALID_PARAMETER" if steering.field == FIELD else "INVALID_INTERVENTION"
    return Refusal(code, f"{where} must be {expected}", param=where, **details)


def too_many(steering: RequestSteering, found: str, maximum: int) -> Refusal:
    """The refusal of too many edits."""
    where = ".".join(filter(None, (steering.field, "edits")))
    return Refusal("TOO_MANY_EDITS", f"{where}: {found}", param=where, maximum=maximum)
