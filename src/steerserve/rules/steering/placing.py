"""Puts the edits of a request at the attached SAEs and the sites of the loaded model."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules import bounds
from steerserve.rules.saes.attachment import AttachedSae, SaeChoice
from steerserve.rules.saes.sites import EMBED, OPERAND_SITES, ORDER, RESID_POST, Z
from steerserve.rules.steering.edits import (
    ADD,
    REPLACE,
    AllOf,
    AnyOf,
    Condition,
    Edit,
    Feature,
    Source,
    When,
    ordered,
)
from steerserve.rules.steering.placed import MAXIMUM, MINIMUM, Placed, Standing
from steerserve.rules.steering.positions import Positions
from steerserve.rules.steering.probe import Probe
from steerserve.rules.steering.request import (
    FIELD,
    MAX,
    AskedCondition,
    AskedSource,
    AskedWhen,
    NamedFeature,
    NamedProbe,
    ReadSource,
    RequestSteering,
    SteeredFeature,
    SteeredVector,
    bounds_of,
    index_of,
    invalid,
    target,
    too_many,
    twice,
)
from steerserve.rules.steering.vector import (
    FLOAT_MAXIMUM,
    PROJECT,
    Direction,
    Vector,
    is_finite32,
)

Place = tuple[int, str]
"""A layer and a site."""
Largest = Mapping[tuple[str, int], float]
"""(key, feature) -> the largest activation that is known."""
_READ_BEFORE = "read before; a source is read for requests, live interventions and profiles"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What edits need to know of the loaded model.

    Attributes:
        layers: the number of decoder layers.
        widths: the width of every site that can be edited.
        sites: the site of each attached SAE by its key; `resid_post` for an SAE that is not here.
        largest: the largest activations that are known.
        vocabulary: the number of tokens that the model knows; 0 where that is not known.
        readable: the layers of every site that can be read; none for the logits.
    """

    layers: int = 0
    widths: Mapping[str, int] = field(default_factory=dict)
    sites: Mapping[str, str] = field(default_factory=dict)
    largest: Largest = field(default_factory=dict)
    vocabulary: int = 0
    readable: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def place(self, sae: AttachedSae) -> Place:
        """Where an attached SAE reads and writes."""
        return sae.layer, self.sites.get(sae.key, RESID_POST)


def placed(steering: RequestSteering, attached: Sequence[AttachedSae], model: ModelFacts) -> Placed:
    """The edits at the attached SAEs and the sites that they name, without the edits that change nothing. All vectors
    are vectors, and no names.

    Raises:
        Refusal: SAE_NOT_ATTACHED; INVALID_FEATURE_INDEX; VECTOR_MISMATCH; TOO_MANY_EDITS. INVALID_PARAMETER for
            `sae_steering`, and else INVALID_INTERVENTION: several attached SAEs could be meant, two entries of
            `sae_steering` name one feature of one SAE, the sum of `add` edits of a feature is outside [-200, 200], no
            largest activation is known, a token is outside the vocabulary, a vector has not the layers, a vector that
            must be projected is added, or a condition reads after the site that it decides about.
    """
    values: dict[str, dict[int, float]] = {}
    added: list[Edit] = []
    others: list[tuple[Place, Edit]] = []
    for at, asked in enumerate(steering.edits):
        here = _Placing(steering, at, attached, model)
        here.check_tokens(asked.positions)
        if isinstance(asked, SteeredVector):
            place_vector = here.place_values if asked.op == REPLACE else here.place_directions
            others += place_vector(asked)
            continue
        sae = here.choose_sae("" if steering.field == FIELD else "feature", asked.choice)
        edit = here.place_feature(asked, sae)
        if not edit.is_added or not edit.positions.is_every or edit.when is not None:
            others.append((model.place(sae), edit))
        elif asked.op == ADD:
            there = values.setdefault(sae.key, {})
            there[asked.index] = here.sum_added(edit.target.offset, there.get(asked.index))
            added.append(edit)
    others = [(place, edit) for place, edit in others if not edit.is_idle]
    _check_counts(steering, others)
    return Placed(values, _arranged(others), tuple(added))


def standing_of(
    own: RequestSteering, sent: Sequence[Mapping[str, object]], made: Placed
) -> tuple[Standing, ...]:
    """Edits as live interventions. `sent` is the JSON of each of them."""
    keys: dict[int, frozenset[str]] = {}
    for edit in (*made.added, *made.edits):
        keys[edit.number] = keys.get(edit.number, frozenset()) | edit.keys
    return tuple(
        Standing(dict(raw), edit.op, keys.get(place, frozenset()))
        for place, (raw, edit) in enumerate(zip(sent, own.edits, strict=True))
    )


def arranged(
    edits: Sequence[Edit], attached: Sequence[AttachedSae], model: ModelFacts
) -> tuple[Edit, ...]:
    """Edits that are placed already, of several lists, in the order in which they are made together."""
    by_key = {sae.key: model.place(sae) for sae in attached}
    places = [
        (edit.at.layer, edit.at.site) if isinstance(edit.at, Direction) else by_key[edit.at.key]
        for edit in edits
    ]
    return _arranged(list(zip(places, edits, strict=True)))


def _arranged(placed: Sequence[tuple[Place, Edit]]) -> tuple[Edit, ...]:
    return ordered([edit for _, edit in sorted(placed, key=lambda one: turn(one[0]))])


def turn(place: Place) -> tuple[int, int]:
    """When a forward pass comes to a site."""
    layer, site = place
    return layer, ORDER.index(site) if site in ORDER else len(ORDER)


def _check_counts(steering: RequestSteering, made: Sequence[tuple[Place, Edit]]) -> None:
    counted = Counter(place for place, edit in made if not edit.is_added)
    for (layer, site), count in counted.items():
        if count > bounds.SITE_EDITS:
            found = f"{count} edits that are not {ADD} at {site} of layer {layer}"
            raise too_many(
                steering, f"{found}; at most {bounds.SITE_EDITS} there", bounds.SITE_EDITS
            )


def check_fits(
    where: str, direction: Direction, model: ModelFacts, source: Source | None = None
) -> None:
    """Raises:
    Refusal: VECTOR_MISMATCH where the model lacks the layer or the site, or the site has another width;
        INVALID_INTERVENTION for a direction without length. The values of a `source` have as many rows.
    """
    has = direction.width // (source.rows if source else 1)
    layer, site, width = direction.layer, direction.site, model.widths.get(direction.site)
    details: dict[str, Any] = {"layer": layer, "site": site, "width": direction.width}
    why = None
    if not 0 <= layer < model.layers or (site == EMBED and layer != 0):
        why = f"the model has no {site} at layer {layer}"
        details["model_layers"] = model.layers
    elif width is None:
        why = f"the model offers no site {site!r}; it offers {', '.join(model.widths) or 'none'}"
    elif width != has:
        why = f"it has {has} numbers at layer {layer}, and {site} has {width}"
        details["model_width"] = width
    if why is not None:
        raise Refusal("VECTOR_MISMATCH", f"{where}: {why}", param=where, **details)
    if source is None and not any(array("f", direction.data)):
        why = f"{where}: the direction at layer {layer} has no length"
        raise Refusal("INVALID_INTERVENTION", why, param=where, layer=layer)


# ------------------------------------------------------------- one edit


@dataclass(frozen=True, slots=True)
class _Placing:
    """The edit at the place `at` of a request, and the SAEs and the model at which it is placed. A part of the edit is
    named by its location in the edit, such as `when.feature`."""

    steering: RequestSteering
    at: int
    attached: Sequence[AttachedSae]
    model: ModelFacts

    def where(self, part: str) -> str:
        """The location of a part of the edit in the request."""
        return self.steering.where(self.at, part)

    def refuse(self, part: str, expected: str, **details: object) -> Refusal:
        """The refusal of a part of the edit that must be something else."""
        return invalid(self.steering, self.where(part), expected, **details)

    def check_tokens(self, positions: Positions) -> None:
        """Raises:
        Refusal: as `placed`, for a token outside the vocabulary.
        """
        size = self.model.vocabulary
        parts = {
            "positions.tokens": positions.include,
            "positions.exclude.tokens": positions.exclude,
        }
        for part, selection in parts.items():
            for token in selection.tokens if selection is not None and size else ():
                if token >= size:
                    expected = f"ids of tokens below {size}, the size of the vocabulary"
                    raise self.refuse(part, expected, token_id=token)

    # --------------------------------------------------------- features

    def choose_sae(self, part: str, choice: SaeChoice) -> AttachedSae:
        """The only attached SAE that fits a choice."""
        fitting = choice.among(self.attached)
        if len(fitting) == 1:
            return fitting[0]
        where = self.where(part)
        listed = [{"sae_id": sae.sae_id, "layer": sae.layer} for sae in self.attached]
        if not fitting:
            missing = choice.absent if self.attached else "no SAE is attached"
            raise Refusal("SAE_NOT_ATTACHED", f"{where}: {missing}", param=where, attached=listed)
        # the layer tells one SAE at two layers apart, the ids tell several SAEs apart
        name = "layer" if len({sae.sae_id for sae in fitting}) == 1 else "sae_id"
        expected = "given, because several attached SAEs could be meant"
        raise invalid(self.steering, f"{where}.{name}", expected, attached=listed)

    def place_feature(self, asked: SteeredFeature, sae: AttachedSae) -> Edit:
        """The edit of a feature of an SAE."""
        if asked.index >= sae.d_sae:
            raise _outside(index_of(self.steering, self.at), asked.index, sae)
        value = asked.value
        if isinstance(asked.source, AskedSource):
            raise self.refuse("source", _READ_BEFORE)
        if asked.unit == MAX:
            known = self.model.largest.get((sae.key, asked.index))
            if known is None or known <= 0:
                expected = "the activation, because no largest activation of the feature is known"
                raise self.refuse("unit", expected, feature_idx=asked.index)
            value *= known
            limits = bounds_of(asked)
            if limits is not None and not limits[0] <= value <= limits[1]:
                expected = f"a value that is from {limits[0]:g} to {limits[1]:g} in activation"
                raise self.refuse("value", expected, activation=value)
        source = None
        if isinstance(asked.source, ReadSource) and asked.source.rows > 1:
            source = Source(asked.source.rows, activations=asked.source.activations)
        return Edit(
            Feature(sae.key, asked.index),
            target(asked, value),
            positions=asked.positions,
            when=self.place_condition(asked.when, self.model.place(sae)),
            number=self.at,
            source=source,
        )

    def sum_added(self, value: float, before: float | None) -> float:
        """The value of an `add` edit, with the values before it of the same feature."""
        if before is None:
            return value
        if self.steering.field == FIELD:
            raise twice(self.steering, self.at)
        total = before + value
        if not MINIMUM <= total <= MAXIMUM:
            where = self.where("value")
            raise Refusal(
                "INVALID_INTERVENTION",
                f"{where}: the values that the edits add to this feature sum up to {total:g}; "
                f"the sum must be from {MINIMUM:g} to {MAXIMUM:g}",
                param=where,
            )
        return total

    # --------------------------------------------------------- vectors

    def place_directions(self, asked: SteeredVector) -> list[tuple[Place, Edit]]:
        """The edits of a vector: one for each of its directions that the edit names."""
        vector = _vector(asked.vector)
        if asked.op == ADD and vector.operation == PROJECT:
            expected = f"another op, because vector {vector.name!r} is made to be projected out"
            raise self.refuse("op", expected)
        made = []
        for direction in self._at_layers(asked, vector):
            place = direction.layer, direction.site
            check_fits(self.where("vector"), direction, self.model)
            edit = Edit(
                direction,
                target(asked, asked.value),
                unit=asked.unit,
                to=self._to(asked, direction),
                positions=asked.positions,
                when=self.place_condition(asked.when, place),
                number=self.at,
            )
            made.append((place, edit))
        return made

    def place_values(self, asked: SteeredVector) -> list[tuple[Place, Edit]]:
        """The edits that replace the values of a site: one for each layer."""
        of = asked.vector
        if isinstance(of, AskedSource):
            raise self.refuse("source", _READ_BEFORE)
        rows = 1
        if isinstance(of, ReadSource):
            directions: Sequence[Direction] = of.directions
            rows, part = of.rows, "source"
        else:
            directions, part = self._at_layers(asked, _vector(of)), "vector"
        source = Source(rows, asked.heads)
        made = []
        for direction in directions:
            place = direction.layer, direction.site
            check_fits(self.where(part), direction, self.model, source)
            if asked.heads and direction.site not in (Z, *OPERAND_SITES):
                expected = f"absent at {direction.site}, which is not divided into heads"
                raise self.refuse("heads", expected)
            edit = Edit(
                direction,
                target(asked, asked.value),
                positions=asked.positions,
                when=self.place_condition(asked.when, place),
                number=self.at,
                source=source,
            )
            made.append((place, edit))
        return made

    def _at_layers(self, asked: SteeredVector, vector: Vector) -> Sequence[Direction]:
        """The directions of the layers that an edit names."""
        if asked.layers is None:
            return vector.directions
        having = sorted({direction.layer for direction in vector.directions})
        if asked.is_range:
            first, last = asked.layers
            layers = {layer for layer in having if first <= layer <= last}
            is_wrong = not layers
        else:
            layers = set(asked.layers)
            is_wrong = not layers <= set(having)
        if is_wrong:
            expected = "layers at which the vector has a direction"
            raise self.refuse("layers", expected, layers=having)
        return [direction for direction in vector.directions if direction.layer in layers]

    def _to(self, asked: SteeredVector, direction: Direction) -> Direction | None:
        """The direction that a `swap` writes in the place of this one."""
        if asked.to is None:
            return None
        place = direction.layer, direction.site
        for other in _vector(asked.to).directions:
            if (other.layer, other.site) == place:
                check_fits(self.where("to"), other, self.model)
                return other
        expected = f"a vector with a direction at {direction.site} of layer {direction.layer}"
        raise self.refuse("to", expected)

    # --------------------------------------------------------- conditions

    def place_condition(
        self, when: AskedWhen | None, write: Place, part: str = "when"
    ) -> When | None:
        """The condition of an edit that writes at `write`."""
        if when is None:
            return None
        if isinstance(when, AskedCondition):
            above, below = when.above, when.below
            if isinstance(when.reads, NamedProbe):
                probe, index = self._read_probe(f"{part}.probe", when.reads)
                # w · x + b is above a bound where the projection on w is above another one
                for name, bound in (("above", above), ("below", below)):
                    if bound is not None and not is_finite32(probe.projection(index, bound)):
                        expected = (
                            f"a score of the probe whose projection is within ±{FLOAT_MAXIMUM:g}"
                        )
                        raise self.refuse(f"{part}.{name}", expected)
                above = None if above is None else probe.projection(index, above)
                below = None if below is None else probe.projection(index, below)
            reads = self._reads(part, when, write)
            return Condition(reads, above, below, when.over, when.hold)
        name, inner = "all" if when.is_all else "any", []
        for turn, one in enumerate(when.conditions):
            made = self.place_condition(one, write, f"{part}.{name}[{turn}]")
            inner += [made] if made is not None else []
        return AllOf(tuple(inner)) if when.is_all else AnyOf(tuple(inner))

    def _reads(self, part: str, condition: AskedCondition, write: Place) -> Feature | Direction:
        """What a condition reads, at or below the place that its edit writes."""
        reads: Feature | Direction
        if isinstance(condition.reads, NamedFeature):
            part = f"{part}.feature"
            sae = self.choose_sae(part, condition.reads.choice)
            if condition.reads.index >= sae.d_sae:
                raise _outside(self.where(f"{part}.index"), condition.reads.index, sae)
            reads, place = Feature(sae.key, condition.reads.index), self.model.place(sae)
        else:
            if isinstance(condition.reads, NamedProbe):
                part = f"{part}.probe"
                probe, index = self._read_probe(part, condition.reads)
                direction = probe.directions[index]
            else:
                part = f"{part}.vector"
                direction = self._read_direction(part, _vector(condition.reads), write)
            check_fits(self.where(part), direction, self.model)
            reads, place = direction, (direction.layer, direction.site)
        if turn(place) > turn(write):
            expected = (
                f"read at or before {write[1]} of layer {write[0]}, where the edit writes; "
                f"it is read at {place[1]} of layer {place[0]}"
            )
            raise self.refuse(part, expected)
        return reads

    def _read_direction(self, part: str, vector: Vector, write: Place) -> Direction:
        """The direction that a condition reads: the one at the edit's own place or layer, or else the only one."""
        for having in (
            [one for one in vector.directions if (one.layer, one.site) == write],
            [one for one in vector.directions if one.layer == write[0]],
            vector.directions,
        ):
            if len(having) == 1:
                return having[0]
        expected = f"a vector with one direction, or with one at layer {write[0]}"
        layers = sorted({direction.layer for direction in vector.directions})
        raise self.refuse(part, expected, layers=layers)

    def _read_probe(self, part: str, named: NamedProbe) -> tuple[Probe, int]:
        """A probe, and the place of the layer that a condition reads: its best layer, or else its only one."""
        probe = named.probe
        assert isinstance(probe, Probe)
        if probe.chosen is not None:
            return probe, probe.chosen
        layers = [direction.layer for direction in probe.directions]
        expected = "a probe with one layer, or with a best layer from held-out texts"
        raise self.refuse(part, expected, layers=layers)


def _vector(reference: object) -> Vector:
    assert isinstance(reference, Vector)
    return reference


def _outside(where: str, index: int, sae: AttachedSae) -> Refusal:
    """The refusal of a feature that an SAE does not have."""
    return Refusal(
        "INVALID_FEATURE_INDEX",
        f"{where}: {index} is outside [0, {sae.d_sae}) of SAE {sae.sae_id!r}",
        param=where,
        feature_idx=index,
        d_sae=sae.d_sae,
    )
