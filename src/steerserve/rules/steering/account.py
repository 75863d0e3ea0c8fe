"""What an answer says about its steering: whose it was, and the list of edits of which a report counts the acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from steerserve.rules.steering.dial import Plan, Profile
from steerserve.rules.steering.edits import ADD, Edit, Feature, Target
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import INTERVENTIONS, MANUAL, Values
from steerserve.rules.steering.request import RequestSteering
from steerserve.rules.steering.served import OWNER
from steerserve.rules.steering.vector import Direction

LIVE, REQUEST = "live", "request"


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a report: whose edit it is, its op, the number under which the engine counts it, and what it edits:
    features, and directions at the layers where they are written."""

    source: str
    op: str
    number: int
    at: tuple[Feature | Direction, ...]

    def layers(self, by_key: Mapping[str, int]) -> list[int]:
        """The layers at which the edit acts, by the layers of the attached SAEs. An SAE that is attached no more has
        none."""
        found = {by_key.get(one.key) if isinstance(one, Feature) else one.layer for one in self.at}
        return sorted(layer for layer in found if layer is not None)


@dataclass(frozen=True, slots=True)
class Account:
    """Whose steering a request has, the entries of its report in their order, and the parts of the added values, which
    the engine counts beside the edits of the plan."""

    sources: tuple[str, ...]
    listed: tuple[Listed, ...]
    counted: tuple[Edit, ...]


def profile_source(profile_id: str, *, is_cluster: bool) -> str:
    """How a saved profile is named as a source."""
    return f"{'cluster' if is_cluster else 'profile'}:{profile_id}"


def make_account(
    plan: Plan, own: RequestSteering | None, profile: Profile | None, live: Live
) -> Account:
    """The account of a request with this plan, made from the live steering `live`. `profile` is the profile that the
    request names."""
    if own is not None and plan.is_own:
        return _own(plan, own, live)
    made = plan.placed or live.applied
    if profile is None:
        return _followed(made.values, made.edits, None, live, _standing_ops(live))
    ops = () if profile.edits is None else tuple(edit.op for edit in profile.edits.own.edits)
    return _followed(made.values, made.edits, _source(profile), live, ops)


def _own(plan: Plan, own: RequestSteering, live: Live) -> Account:
    """The request's edits come first, each under its place in the request."""
    count = len(own.edits)
    made = _by_number((*plan.added, *plan.edits))
    listed = tuple(
        Listed(REQUEST, edit.op, at, made.get(at, ())) for at, edit in enumerate(own.edits)
    )
    beside = _beside(plan) if own.is_added else {}
    others = tuple(edit for edit in plan.edits if edit.number >= count)
    base = _followed(beside, others, None, live, _standing_ops(live), count)
    is_steering = own.is_steering and (plan.overlay or plan.edits)
    return Account(
        (*base.sources, *((REQUEST,) if is_steering else ())),
        (*listed, *base.listed),
        (*plan.added, *base.counted),
    )


def _beside(plan: Plan) -> Mapping[str, Values]:
    """The values of the plan without those that the request adds itself."""
    left = {key: dict(values) for key, values in (plan.overlay or {}).items()}
    for edit in plan.added:
        assert isinstance(edit.at, Feature)
        there = left[edit.at.key]
        there[edit.at.index] -= edit.target.offset
    return left


def _followed(
    values: Mapping[str, Values],
    edits: Sequence[Edit],
    named: str | None,
    live: Live,
    ops: Sequence[str],
    first: int = 0,
) -> Account:
    """Values and edits that a request follows: values first, then edits. The numbers of the edits begin with `first`,
    and those of the values come after them. `ops` has the op of each edit by its number."""
    counted = [
        Edit(Feature(key, index), Target(offset=value), number=number)
        for number, (key, index, value) in enumerate(_flat(values), first + len(ops))
    ]
    active = live.active
    applied = active.applied if active is not None else {}
    listed = [
        Listed(
            named or _owner(live, applied, edit.at.key, edit.at.index),
            ADD,
            edit.number,
            (edit.at,),
        )
        for edit in counted
        if isinstance(edit.at, Feature)
    ]
    made = _by_number(edits)
    source = named or (_of_active(live) if live.is_intervened_by_profile else LIVE)
    listed += [
        Listed(source, ops[number - first], number, at) for number, at in sorted(made.items())
    ]
    sources = {one.source for one in listed}
    return Account(tuple(sorted(sources, key=_rank)), tuple(listed), tuple(counted))


def _by_number(edits: Sequence[Edit]) -> dict[int, tuple[Feature | Direction, ...]]:
    """What the edits of each number edit."""
    found: dict[int, tuple[Feature | Direction, ...]] = {}
    for edit in edits:
        found[edit.number] = (*found.get(edit.number, ()), edit.at)
    return found


def _flat(values: Mapping[str, Values]) -> Iterator[tuple[str, int, float]]:
    for key, features in values.items():
        for index, value in sorted(features.items()):
            if value:
                yield key, index, value


def _owner(live: Live, applied: Mapping[str, Values], key: str, index: int) -> str:
    """Whose live value a feature has. A circuit's comes before a value that was set by hand or by a profile. `applied`
    are the values of the active profile, where it was applied."""
    for owner, held in live.owned.items():
        if owner.startswith(OWNER) and index in held.values.get(key, {}):
            return owner
    active = live.active
    if active is None:
        return LIVE
    if live.is_intervened_by_profile and index in live.by(INTERVENTIONS).get(key, {}):
        return _of_active(live)
    authored = applied.get(key, {}) if active.is_applied else active.authored
    set_by_hand = live.by(MANUAL).get(key, {}).get(index)
    is_changed = active.is_applied and authored.get(index) != set_by_hand
    return LIVE if is_changed or index not in authored else _of_active(live)


def _of_active(live: Live) -> str:
    assert live.active is not None
    return profile_source(live.active.id, is_cluster=live.active.is_cluster)


def _standing_ops(live: Live) -> tuple[str, ...]:
    return tuple(one.op for one in live.standing)


def _rank(source: str) -> tuple[int, str]:
    kinds = (LIVE, "profile", "cluster", "circuit", REQUEST)
    return kinds.index(source.partition(":")[0]), source


def _source(profile: Profile) -> str:
    return profile_source(profile.id, is_cluster=profile.cluster is not None)
