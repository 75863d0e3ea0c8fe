"""The steering that an answer really had, as one digest: equal for equal interventions, on every machine.

The digest is the SHA-256 of a canonical JSON document: the model, and for each value that is added the SAE, its layer,
its site, the index of the feature, and the value. Edits that add no values are there by what they read and write, their
targets and strengths, so that two kinds of edit that do the same, such as `ablate` and `scale` with 0, have one digest.
Where edits act, and under which conditions, is there where it is not everywhere and always. A direction is named by the
digest of its numbers. The source of a value or an edit (an operator, a profile, a request) is no part of the document.
An SAE and a model are named by facts that are the same on every machine, where such facts are known.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs, to_builtins

from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.steering.edits import RAW, AllOf, Condition, Edit, Feature, When
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers, Values, not_zero
from steerserve.rules.steering.positions import EVERY, Selection
from steerserve.rules.steering.vector import Direction


@dataclass(frozen=True, slots=True)
class SteeredModel:
    """The model that is steered, with the facts that identify it on every machine, as far as they are known."""

    name: str
    repo_id: str | None = None
    revision: str | None = None
    content_digest: str | None = None


@dataclass(frozen=True, slots=True)
class SteeredSite:
    """One attached SAE: its identity, and the place where its values are added. `overrides` are the facts stated at the
    attach that change the added vector."""

    sae_id: str
    origin: SaeOrigin
    layer: int
    site: str
    overrides: Mapping[str, object] = field(default_factory=dict)


def applied(
    live: Live, overlay: Mapping[str, Values] | None, keys: Iterable[str]
) -> dict[str, Values]:
    """Key -> the values, none of them 0, that are added to a request with this overlay, or without one, in the epoch of
    `live`."""
    chosen = live.applied.values if overlay is None else overlay
    by_key = {key: not_zero(chosen.get(key, {})) for key in keys}
    return {key: values for key, values in by_key.items() if values}


def digest(
    model: SteeredModel,
    sites: Mapping[str, SteeredSite],
    added: Mapping[str, Values],
    edits: Sequence[Edit] = (),
    *,
    modifiers: Modifiers = NO_MODIFIERS,
) -> str | None:
    """`sha256=<64 hexadecimal digits>` of these values and edits; None where they change nothing. `sites` has the site
    of each key."""
    entries = [
        {**_place(sites[key]), "index": index, "value": number}
        for key, values in added.items()
        for index, value in values.items()
        if (number := _single(value))
    ]
    made = _made([edit for edit in edits if not edit.is_idle], sites)
    if not entries and not made:
        return None
    entries.sort(key=_canonical)
    document: dict[str, object] = {"model": _model(model), "steering": entries}
    if made:
        document["edits"] = sorted(made, key=_canonical)
    document |= to_builtins(modifiers)
    return f"sha256={hashlib.sha256(_canonical(document).encode()).hexdigest()}"


def place_key(model: SteeredModel, site: SteeredSite) -> str:
    """64 hexadecimal digits for an SAE in its place in a model: equal for equal content, on every machine."""
    document = {"model": _model(model), **_place(site)}
    return hashlib.sha256(_canonical(document).encode()).hexdigest()


def _made(edits: Sequence[Edit], sites: Mapping[str, SteeredSite]) -> list[dict[str, object]]:
    """The edits as entries. At a site whose directions are edited the order counts, so each entry there has its turn;
    neighbouring edits of features have the same turn, because they read what was there before all of them."""
    by_site: dict[tuple[int, str], list[Edit]] = {}
    for edit in edits:
        by_site.setdefault(_write(edit, sites), []).append(edit)
    entries = []
    for made in by_site.values():
        has_order = any(not edit.is_added and isinstance(edit.at, Direction) for edit in made)
        turn, was_feature = 0, False
        for edit in made:
            is_feature = isinstance(edit.at, Feature)
            if not edit.is_added:
                turn += not (was_feature and is_feature)
                was_feature = is_feature
            entry = _entry(edit, sites)
            entries.append({**entry, "turn": turn} if has_order and not edit.is_added else entry)
    return entries


def _write(edit: Edit, sites: Mapping[str, SteeredSite]) -> tuple[int, str]:
    at = edit.at
    if isinstance(at, Direction):
        return at.layer, at.site
    return sites[at.key].layer, sites[at.key].site


def _entry(edit: Edit, sites: Mapping[str, SteeredSite]) -> dict[str, object]:
    entry = {**_read(edit.at, sites), **_moved(edit)}
    if edit.unit != RAW:
        entry["unit"] = edit.unit
    if edit.source is not None:
        entry["source"] = structs.asdict(edit.source)
    if edit.to is not None:
        entry["to"] = _read(edit.to, sites)
    if not edit.positions.is_every:
        entry["positions"] = {
            name: _selected(part)
            for name in ("include", "exclude")
            if (part := getattr(edit.positions, name)) is not None
        }
    if edit.when is not None:
        entry["when"] = _condition(edit.when, sites)
    return entry


def _read(at: Feature | Direction, sites: Mapping[str, SteeredSite]) -> dict[str, object]:
    """A feature by its SAE, or a direction by its numbers, with the place where it is."""
    if isinstance(at, Feature):
        return {**_place(sites[at.key]), "index": at.index}
    return {"layer": at.layer, "site": at.site, "vector": hashlib.sha256(at.data).hexdigest()}


def _selected(selection: Selection) -> dict[str, object]:
    """The parts of a selection that select anything."""
    parts = structs.asdict(selection)
    if selection.is_every:
        return {"names": (EVERY,)}
    return {name: value for name, value in parts.items() if value not in ((), None, False)}


def _condition(when: When, sites: Mapping[str, SteeredSite]) -> object:
    """A condition; the order of several has no meaning, and one alone is that one."""
    if isinstance(when, Condition):
        parts: dict[str, object] = {"reads": _read(when.reads, sites), "over": when.over}
        if not when.is_of_prompt:
            parts["hold"] = when.hold
        bounds = {"above": when.above, "below": when.below}
        return parts | {name: _single(one) for name, one in bounds.items() if one is not None}
    inner = {_canonical(made): made for one in when.conditions if (made := _condition(one, sites))}
    if len(inner) == 1:
        return next(iter(inner.values()))
    name = "all" if isinstance(when, AllOf) else "any"
    return {name: [inner[key] for key in sorted(inner)]}


def _place(site: SteeredSite) -> dict[str, object]:
    return {"sae": _sae(site), "layer": site.layer, "site": site.site}


def _moved(edit: Edit) -> dict[str, object]:
    """The target and the strength of an edit; a bound that is infinite is None."""
    numbers = {**structs.asdict(edit.target), "strength": edit.strength}
    return {k: _single(v) if math.isfinite(v) else None for k, v in numbers.items()}


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _single(value: float) -> float:
    """The value in single precision, in which it is multiplied with its direction."""
    (number,) = struct.unpack("<f", struct.pack("<f", value))
    return float(number)


def _model(model: SteeredModel) -> dict[str, str | None]:
    """The repository and the commit of a model of the hub, or the content of a model of this machine, or else its name
    here."""
    if model.repo_id is not None:
        return {"repository_id": model.repo_id, "revision": model.revision}
    if model.content_digest is not None:
        return {"content_digest": model.content_digest}
    return {"name": model.name}


def _sae(site: SteeredSite) -> dict[str, object]:
    """The content of an SAE of this machine, or the file and the commit of an SAE of the hub, or else its id here."""
    origin = site.origin
    if origin.content_digest is not None:
        name: dict[str, object] = {"content_digest": origin.content_digest}
    elif origin.repository_id is not None and origin.revision is not None:
        name = {
            "repository_id": origin.repository_id,
            "revision": origin.revision,
            "file_path": origin.file_path,
        }
    else:
        name = {"sae_id": site.sae_id}
    return {**name, **site.overrides}
