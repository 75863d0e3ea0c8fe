"""One lever at several strengths, and random directions of the same length in its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from steerserve.errors import Refusal
from steerserve.rules.steering.edits import Edit, Feature
from steerserve.rules.steering.placed import MAXIMUM, MINIMUM, Placed, Values, at_strength
from steerserve.rules.steering.placing import Place
from steerserve.rules.steering.vector import Direction, is_finite32, packed

Draw = Callable[[], float]
"""Draws a number of the standard normal distribution."""
Norms = Mapping[Feature, float]
"""The lengths of what features add to their sites at the value 1."""


def check_strengths(made: Placed, strengths: Sequence[float]) -> None:
    """Raises:
    Refusal: INVALID_PARAMETER for a strength at which a feature would be steered beyond its bounds, or a direction
        beyond single precision.
    """
    values = [value for features in made.values.values() for value in features.values()]
    values += [edit.target.offset for edit in made.edits if _is_added_feature(edit)]
    others = [
        edit.target.offset for edit in made.edits if edit.is_added and not _is_added_feature(edit)
    ]
    for place, strength in enumerate(strengths):
        where = f"strengths[{place}]"
        for value in values:
            if not MINIMUM <= value * strength <= MAXIMUM:
                why = (
                    f"{where}: a feature would be steered with {value * strength:g}; "
                    f"values are from {MINIMUM:g} to {MAXIMUM:g}"
                )
                raise Refusal("INVALID_PARAMETER", why, param=where)
        if not all(is_finite32(value * strength) for value in others):
            why = f"{where}: a direction would be multiplied with more than single precision has"
            raise Refusal("INVALID_PARAMETER", why, param=where)


def at(made: Placed, strength: float) -> tuple[Mapping[str, Values], tuple[Edit, ...]]:
    """The values and the edits of a lever at a strength; nothing at 0."""
    if strength == 0:
        return {}, ()
    values = {
        key: {index: value * strength for index, value in features.items()}
        for key, features in made.values.items()
    }
    return values, tuple(at_strength(edit, strength) for edit in made.edits)


def needs_norms(made: Placed) -> list[Feature]:
    """The features whose lengths `randomised` needs."""
    every = (*made.added, *made.edits)
    return [edit.at for edit in every if isinstance(edit.at, Feature) and edit.is_added]


def randomised(
    made: Placed, norms: Norms, places: Mapping[str, Place], widths: Mapping[str, int], draw: Draw
) -> Placed | None:
    """The same edits of random directions, each as long as the direction in whose place it stands. `places` has where
    each attached SAE writes, and `widths` the widths of sites. None where an edit reads what a feature does and so has
    no counterpart."""
    edits = []
    for edit in (*made.added, *made.edits):
        if isinstance(edit.at, Direction):
            drawn = _drawn(edit.at.layer, edit.at.site, edit.at.width, edit.at.norm, draw)
            to = edit.to and _drawn(edit.to.layer, edit.to.site, edit.to.width, edit.to.norm, draw)
            edits.append(structs.replace(edit, at=drawn, to=to))
        elif edit.is_added:
            layer, site = places[edit.at.key]
            drawn = _drawn(layer, site, widths[site], norms[edit.at], draw)
            edits.append(structs.replace(edit, at=drawn))
        else:
            return None
    return Placed({}, tuple(edits))


def _drawn(layer: int, site: str, width: int, norm: float, draw: Draw) -> Direction:
    """A random direction of this length; all directions are equally likely."""
    numbers = [draw() for _ in range(width)]
    scale = norm / math.hypot(*numbers)
    return Direction(layer, site, packed([number * scale for number in numbers]))


def _is_added_feature(edit: Edit) -> bool:
    return edit.is_added and isinstance(edit.at, Feature)
