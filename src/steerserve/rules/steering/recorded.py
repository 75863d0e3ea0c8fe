"""Edits as a record of an answer has them: placed already, and from anyone. They pass the checks that
`interventions.py` and `placing.py` make of the edits of a request.

A record has the edits of a request together with the live edits that they were made beside, so it may have twice as
many of everything.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules import bounds
from steerserve.rules.saes.sites import EDITABLE
from steerserve.rules.steering.edits import (
    KINDS,
    OVER,
    RAW,
    SWAP,
    TOKEN,
    UNITS,
    Condition,
    Edit,
    Feature,
    Source,
    Target,
    When,
    conditions,
    direction_target,
)
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM
from steerserve.rules.steering.interventions import (
    INTEGER_MAXIMUM,
    ROLES,
)
from steerserve.rules.steering.placed import MAXIMUM
from steerserve.rules.steering.placing import ModelFacts, Place, check_fits, turn
from steerserve.rules.steering.positions import NAMES, Positions, Selection
from steerserve.rules.steering.vector import FLOAT_MAXIMUM, Direction, is_finite32


def check_edits(edits: Sequence[Edit], where: str) -> None:
    """The checks that need no model. `where` is the place of the list in what was sent.

    Raises:
        Refusal: TOO_MANY_EDITS; INVALID_INTERVENTION, whose `param` is the place.
    """
    seen: dict[tuple[int, object], int] = {}
    leaves: dict[int, int] = {}
    for at, edit in enumerate(edits):
        if len(leaves | {edit.number: 0}) > bounds.RECORDED_LISTS * bounds.EDITS:
            raise _too_many(where, "edits", bounds.RECORDED_LISTS * bounds.EDITS)
        leaves[edit.number] = max(leaves.get(edit.number, 0), _leaves(edit.when))
        if sum(leaves.values()) > bounds.RECORDED_LISTS * bounds.CONDITIONS:
            raise _too_many(where, "conditions", bounds.RECORDED_LISTS * bounds.CONDITIONS)
        place = f"{where}[{at}]"
        one = (edit.at.layer, edit.at.site) if isinstance(edit.at, Direction) else None
        if (edit.number, one) in seen or not 0 <= edit.number <= INTEGER_MAXIMUM:
            raise _wrong(f"{place}.number", "is that of another edit at this place")
        seen[edit.number, one] = at
        _check_edit(edit, place)


def check_fitting(
    edits: Sequence[Edit], where: str, places: Mapping[str, Place], model: ModelFacts
) -> None:
    """The checks against the loaded model. `places` has the layer and the site of each attached SAE, by its key.

    Raises:
        Refusal: VECTOR_MISMATCH, TOO_MANY_EDITS, INVALID_INTERVENTION.
    """
    counted: Counter[Place] = Counter()
    for at, edit in enumerate(edits):
        here = f"{where}[{at}]"
        write = _place(f"{here}.at", edit.at, places, model, edit.source)
        counted[write] += not edit.is_added
        if edit.to is not None:
            check_fits(f"{here}.to", edit.to, model)
        for condition in conditions(edit.when):
            read = _place(f"{here}.when", condition.reads, places, model)
            if turn(read) > turn(write):
                raise _wrong(f"{here}.when", "reads after the site that the edit writes")
        for part in (edit.positions.include, edit.positions.exclude):
            tokens = part.tokens if part is not None and model.vocabulary else ()
            if any(token >= model.vocabulary for token in tokens):
                why = f"must be ids of tokens below {model.vocabulary}"
                raise _wrong(f"{here}.positions.tokens", why)
    if any(count > bounds.RECORDED_LISTS * bounds.SITE_EDITS for count in counted.values()):
        raise _too_many(
            where, "edits that are not add at one site", bounds.RECORDED_LISTS * bounds.SITE_EDITS
        )


def _place(
    where: str,
    at: Feature | Direction,
    places: Mapping[str, Place],
    model: ModelFacts,
    source: Source | None = None,
) -> Place:
    if isinstance(at, Feature):
        return places[at.key]
    check_fits(where, at, model, source)
    return at.layer, at.site


def _check_edit(edit: Edit, where: str) -> None:
    is_feature = isinstance(edit.at, Feature)
    _check_read(edit.at, f"{where}.at", edit.source)
    if edit.source is not None:
        _check_source(edit, edit.source, f"{where}.source")
    if not _is_target(edit):
        raise _wrong(f"{where}.target", "is that of no op, or its value is out of bounds")
    strength = INTENSITY_MAXIMUM if not edit.is_added else 1.0
    if not 0.0 <= edit.strength <= strength or (edit.is_added and edit.strength != 1.0):
        raise _wrong(
            f"{where}.strength", f"must be from 0 to {INTENSITY_MAXIMUM:g}, or 1 for an add"
        )
    units = (RAW,) if is_feature or not edit.is_added else UNITS
    if edit.unit not in units:
        raise _wrong(f"{where}.unit", f"must be one of {', '.join(units)}")
    if edit.to is not None:
        _check_read(edit.to, f"{where}.to")
        place = None if isinstance(edit.at, Feature) else (edit.at.layer, edit.at.site)
        is_swap = edit.target == direction_target(SWAP, 0.0)
        if not is_swap or (edit.to.layer, edit.to.site) != place:
            raise _wrong(f"{where}.to", "goes with a swap, at the place of its vector")
    _check_positions(edit.positions, f"{where}.positions")
    if edit.when is not None:
        _check_when(edit.when, f"{where}.when", bounds.CONDITION_LEVELS)


def _is_target(edit: Edit) -> bool:
    """Whether an op has this target with a value within its bounds."""
    t = edit.target
    numbers = {name: getattr(t, name) for name in ("factor", "offset", "low", "high")}
    changed = {name: n for name, n in numbers.items() if n != getattr(Target(), name)}
    if t.factor == 0.0 and (t.low, t.high) == (-math.inf, math.inf):
        changed = {"offset": t.offset}  # a set, or an ablate, which sets 0
    if set(changed) == {"factor", "offset"} and isinstance(edit.at, Feature):
        changed = {"offset": t.offset}  # a replace, which goes a part of the way
    if len(changed) > 1:
        return False
    bound = FLOAT_MAXIMUM
    if isinstance(edit.at, Feature):
        bound = MAXIMUM if edit.is_added else KINDS["set"].highest or 0.0
    return all(math.isfinite(n) and abs(n) <= bound for n in changed.values())


def _check_source(edit: Edit, source: Source, where: str) -> None:
    if isinstance(edit.at, Direction):
        fits = 1 <= source.rows <= edit.at.width and edit.at.width % source.rows == 0
        fits = fits and not source.activations
    else:
        fits = 1 < source.rows == len(source.activations)
    if not fits or edit.is_added:
        raise _wrong(where, "does not fit the numbers of the edit")
    bound = KINDS["set"].highest or 0.0
    if not all(abs(one) <= bound for one in source.activations):
        raise _wrong(f"{where}.activations", f"must be from {-bound:g} to {bound:g}")
    if not all(0 <= head <= INTEGER_MAXIMUM for head in source.heads):
        raise _wrong(f"{where}.heads", f"must be from 0 to {INTEGER_MAXIMUM}")


def _check_read(at: Feature | Direction, where: str, source: Source | None = None) -> None:
    if isinstance(at, Feature):
        if not 0 <= at.index <= INTEGER_MAXIMUM:
            raise _wrong(f"{where}.index", f"must be from 0 to {INTEGER_MAXIMUM}")
        return
    if at.site not in EDITABLE:
        raise _wrong(f"{where}.site", f"must be one of {', '.join(EDITABLE)}")
    if not 0 <= at.layer <= INTEGER_MAXIMUM:
        raise _wrong(f"{where}.layer", f"must be from 0 to {INTEGER_MAXIMUM}")
    if not at.data or len(at.data) % 4:
        raise _wrong(f"{where}.data", "must be float32 numbers of 4 bytes")
    numbers = array("f", at.data)
    if not all(map(math.isfinite, numbers)) or not (any(numbers) or source):
        raise _wrong(f"{where}.data", "must have finite numbers that are not all 0")


def _check_positions(positions: Positions, where: str) -> None:
    for part, name in ((positions.include, ""), (positions.exclude, ".exclude")):
        if part is not None:
            _check_selection(part, f"{where}{name}")


def _check_selection(part: Selection, where: str) -> None:
    for name in ("names", "prompt_positions", "roles", "tokens"):
        if len(getattr(part, name)) > bounds.EDIT_LIST_ENTRIES:
            raise _wrong(f"{where}.{name}", f"at most {bounds.EDIT_LIST_ENTRIES} entries")
    is_wrong = {
        "names": not set(part.names) <= set(NAMES),
        "roles": not set(part.roles) <= set(ROLES),
        "prompt_positions": any(abs(at) > INTEGER_MAXIMUM for at in part.prompt_positions),
        "tokens": any(not 0 <= token <= INTEGER_MAXIMUM for token in part.tokens),
        "prompt_window": not _is_window(part.prompt_window),
        "generated_window": not _is_window(part.generated_window),
        "after_text": part.after_text is not None
        and not 1 <= len(part.after_text) <= bounds.EDIT_TEXT_CHARACTERS,
    }
    for name, is_so in is_wrong.items():
        if is_so:
            raise _wrong(f"{where}.{name}", "names positions that no request can name")


def _is_window(window: tuple[int, int] | None) -> bool:
    return window is None or 0 <= window[0] < window[1] <= INTEGER_MAXIMUM


def _check_when(when: When, where: str, deep: int) -> None:
    if not isinstance(when, Condition):
        if not deep or not 1 <= len(when.conditions) <= bounds.CONDITION_CHOICES:
            why = f"1 to {bounds.CONDITION_CHOICES} conditions, nested at most {bounds.CONDITION_LEVELS} deep"
            raise _wrong(f"{where}.conditions", why)
        for at, one in enumerate(when.conditions):
            _check_when(one, f"{where}.conditions[{at}]", deep - 1)
        return
    _check_read(when.reads, f"{where}.reads")
    given = [bound for bound in (when.above, when.below) if bound is not None]
    if len(given) != 1 or not is_finite32(given[0]):
        raise _wrong(where, "must have one of above and below, a finite number")
    if when.over not in OVER:
        raise _wrong(f"{where}.over", f"must be one of {', '.join(OVER)}")
    is_held = when.hold is None or 1 < when.hold <= INTEGER_MAXIMUM
    if when.hold != 1 and not (is_held and when.over == TOKEN):
        raise _wrong(f"{where}.hold", "must be a number of positions from 1 on")


def _leaves(when: When | None) -> int:
    """The conditions of an edit, counted no further than a record may have."""
    count, waiting = 0, [when]
    while waiting and count <= bounds.RECORDED_LISTS * bounds.CONDITIONS:
        one = waiting.pop()
        if one is None or isinstance(one, Condition):
            count += one is not None
        elif len(one.conditions) > bounds.CONDITION_CHOICES:
            count += len(one.conditions)
        else:
            count += not one.conditions
            waiting += one.conditions
    return count


def _wrong(where: str, why: str, **details: Any) -> Refusal:
    return Refusal("INVALID_INTERVENTION", f"{where}: {why}", param=where, **details)


def _too_many(where: str, what: str, maximum: int) -> Refusal:
    why = f"{where}: more than {maximum} {what}"
    return Refusal("TOO_MANY_EDITS", why, param=where, maximum=maximum)
