"""The dial of one request: a profile by name or the edits of the request's own, an intensity, or both.

One function decides the values to apply and the intensity to report, so that the two always agree. Rules: (1) without
an attached SAE nothing changes; (2) `off` and 0 switch steering off for the request, and no profile is checked; (3) the
base values are those of the request's own, else those of the named profile, else those of the active profile as saved,
else the live values; (4) the base values are multiplied by the request's intensity, else by the profile's own; (5) each
product is clamped to [-200, 200]; edits that add no values are made with the intensity as their strength; (6) values
that the request adds with the mode `add` are added to the values that it would have had without them, and each sum is
clamped; (7) a cluster has a range: `min` and `max` are its ends, a number above
its end is lowered to the end, and a number below its floor counts as it is; (8) where no profile is active and one
circuit serves whole, its authored values are the base: a number other than 0 is held within its range at both ends, and
the values that are not its own stay as they are; (9) where a profile is active beside circuits, their values stay as
they are; (10) where several circuits serve, or a layer is shared, or members of the circuit are missing, the live
values are the base, as without circuits, and no rung is reported; (11) beside live interventions, these are
scaled too, and where they replace the live values, they alone are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from steerserve.errors import Refusal
from steerserve.nouns.circuits.rules import serving as circuit_serving
from steerserve.nouns.profiles.rules import Profile as Profile
from steerserve.nouns.profiles.rules import site
from steerserve.rules.saes.attachment import AttachedSae
from steerserve.rules.steering import activation
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM, find_limits
from steerserve.rules.steering.intensity import Range as Range
from steerserve.rules.steering.live import Live, without_interventions
from steerserve.rules.steering.placed import (
    INTERVENTIONS,
    NO_MODIFIERS,
    Modifiers,
    Placed,
    Values,
    scaled,
    total,
)
from steerserve.rules.steering.placing import ModelFacts, arranged, placed
from steerserve.rules.steering.request import RequestSteering
from steerserve.rules.steering.served import ServedCircuit, composed

FIELD = "steering_intensity"
WORDS = ("off", "min", "max")

Intensity = float | str
"""A number in [0, 2], or `min` or `max`; `off` is 0."""


@dataclass(frozen=True, slots=True)
class DialBase:
    """What an intensity scales: values at intensity 1, by attachment.

    Attributes:
        limits: the intensities that `min` and `max` stand for.
        is_capped: whether a number above the end of `limits` is lowered to the end.
        own: the intensity of a request that names none.
    """

    values: Mapping[str, Values]
    limits: Range
    is_capped: bool = False
    own: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is steered.

    Attributes:
        overlay: the values that replace the live values of every attached SAE; with None the request follows the live
            values.
        echo: the intensity to report, None where the dial changes nothing.
        rung: the evidence of the one circuit that steers the request; None where no circuit does, or several do.
        edits: all edits that add no values, in the order in which they are made.
        is_own: whether the request keeps this steering to its end, whatever an operator changes meanwhile.
        modifiers: what holds for the values and the edits together.
        added: the parts of the values that the request adds itself, each with its place in the request as its number.
        sent: for a side of a comparison, its edits as they were sent.
    """

    overlay: Mapping[str, Values] | None = None
    echo: float | None = None
    rung: int | None = None
    edits: tuple[Edit, ...] = ()
    is_own: bool = False
    modifiers: Modifiers = NO_MODIFIERS
    added: tuple[Edit, ...] = field(default=(), compare=False)
    sent: tuple[Mapping[str, object], ...] = field(default=(), compare=False)

    @property
    def placed(self) -> Placed | None:
        """What a request gets that does not follow the live steering; None for one that does."""
        if self.overlay is None:
            return None
        return Placed(self.overlay, self.edits, modifiers=self.modifiers)


def parse(raw: Any) -> Intensity | None:
    """The value of the request's `steering_intensity`; None where the request has no such field.

    Raises:
        Refusal: INVALID_PARAMETER.
    """
    if raw is None:
        return None
    if isinstance(raw, str) and raw in WORDS:
        return 0.0 if raw == "off" else raw
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    if is_number and 0 <= raw <= INTENSITY_MAXIMUM:
        return float(raw)
    raise Refusal(
        "INVALID_PARAMETER",
        f"{FIELD} must be a number from 0 to {INTENSITY_MAXIMUM:g}, or one of {', '.join(WORDS)}",
        param=FIELD,
    )


def plan(
    intensity: Intensity | None,
    is_profile_named: bool,
    profile: Profile | None,
    live: Live,
    attached: Sequence[AttachedSae],
    configured: Range,
    own: RequestSteering | None = None,
    model: ModelFacts | None = None,
) -> Plan:
    """The steering of one request. It may name a profile, an intensity, or both, or have steering of its `own`.

    `profile` is the named profile. It is None where no profile has that name: such a request comes here only with the
    intensity 0. `configured` is the range of a base that declares none.

    Raises:
        Refusal: PROFILE_INCOMPATIBLE, SAE_NOT_ATTACHED; the refusals of `rules/steering/placing.placed`.
    """
    facts = model or ModelFacts()
    made = _planned(intensity, is_profile_named, profile, live, attached, configured, own, facts)
    return replace(made, rung=rung(live)) if made.overlay is None else made


def rung(live: Live) -> int | None:
    """The evidence of the circuit that steers requests that follow the live values. None where no circuit steers; and
    where several serve whole, layers are shared or members are missing, because no document is evidence for that."""
    circuit = _only_circuit(live)
    is_steered = circuit is not None and circuit_serving.is_steering(live, circuit)
    return circuit.rung if circuit is not None and is_steered else None


def _planned(
    intensity: Intensity | None,
    is_profile_named: bool,
    profile: Profile | None,
    live: Live,
    attached: Sequence[AttachedSae],
    configured: Range,
    own: RequestSteering | None,
    model: ModelFacts,
) -> Plan:
    if own is not None and intensity != 0.0:
        return _own(own, intensity, live, attached, configured, model)
    if own is not None and (attached or live.standing):
        is_steered = own.is_steering or _has_base(False, None, live, attached)
        return Plan({}, 0.0 if is_steered else None, is_own=True)  # (2)
    is_intervened = live.enabled and bool(live.standing)
    has_edits = profile is not None and profile.edits is not None
    has_base = bool(attached) or is_intervened or has_edits
    if not has_base or (intensity is None and not is_profile_named):
        return Plan()  # (1)
    if intensity == 0.0:
        is_off = _has_base(is_profile_named, profile, live, attached)
        return Plan({}, 0.0 if is_off else None)  # (2)
    if profile is None and is_intervened:
        return _intervened(intensity, live, attached, configured)  # (11)
    circuit = _only_circuit(live)
    if profile is None and live.active is None and live.enabled and circuit is not None:
        return _circuit(circuit, intensity, live)  # (8)
    base = _dial_base(profile, live, attached, configured)
    strength = resolved(intensity, base)
    if profile is None and not any(base.values.values()):
        return Plan()  # a dial alone does not switch steering on after an operator switched it off
    overlay: Mapping[str, Values] = scaled(base.values, strength)
    edits: tuple[Edit, ...] = ()
    if profile is not None and profile.edits is not None:
        made = profile.edits.placed(attached, model).at(strength)
        overlay, edits = total([overlay, made.values]), made.edits
    is_dialed = intensity is not None and (any(overlay.values()) or bool(edits))
    if profile is None and live.active is not None and live.enabled and _whole_circuits(live):
        beside = [live.by(circuit.owner) for circuit in _whole_circuits(live)]
        return Plan(total([*beside, overlay]), strength if is_dialed else None, rung(live))  # (9)
    return Plan(overlay, strength if is_dialed else None, edits=edits)


def _intervened(
    intensity: Intensity | None, live: Live, attached: Sequence[AttachedSae], configured: Range
) -> Plan:
    """The steering of a request with an intensity, beside live interventions."""
    bare = without_interventions(live)
    base = (
        Plan()
        if live.interventions.replaces
        else plan(intensity, False, None, bare, attached, configured)
    )
    strength = base.echo
    if strength is None:
        strength = resolved(intensity, DialBase({}, configured))
    standing = _standing(live).at(strength)
    overlay = total([base.overlay or {}, standing.values])
    return Plan(overlay, strength, base.rung, standing.edits, modifiers=live.modifiers)


def _standing(live: Live) -> Placed:
    """The live interventions at intensity 1."""
    if live.active is not None and live.is_intervened_by_profile:
        return live.active.parts[INTERVENTIONS]
    return live.interventions


def _circuit(circuit: ServedCircuit, intensity: Intensity | None, live: Live) -> Plan:
    """The steering of a request whose base is the one circuit that serves."""
    wanted = resolved(intensity, DialBase(circuit.authored, circuit.limits))
    strength = circuit.limits.held(wanted)
    if strength == 0.0:
        return Plan({}, 0.0)  # the same as `off`
    others = [held.values for owner, held in live.owned.items() if owner != circuit.owner]
    values = scaled(circuit.authored, strength)
    is_steered = any(value for features in values.values() for value in features.values())
    return Plan(total([*others, values]), strength, circuit.rung if is_steered else None)


def _whole_circuits(live: Live) -> list[ServedCircuit]:
    """The circuits that serve whole. A slice is a cluster."""
    return [circuit for circuit in live.circuits if not circuit.is_slice]


def _only_circuit(live: Live) -> ServedCircuit | None:
    """The circuit that serves whole, if there is only one, which shares no layer and has all its members."""
    circuits, shared = _whole_circuits(live), composed(live.circuits)
    if len(circuits) != 1 or shared & set(circuits[0].layers):
        return None
    circuit = circuits[0]
    return circuit if circuit.is_whole(live.by(circuit.owner)) else None


def _own(
    own: RequestSteering,
    intensity: Intensity | None,
    live: Live,
    attached: Sequence[AttachedSae],
    configured: Range,
    model: ModelFacts,
) -> Plan:
    """The steering of a request with edits of its own, whose intensity is not 0. One intensity scales the edits of the
    request and the steering that they are made beside. Without any edit, the mode `add` is no steering of its own."""
    if own.is_added and not own.edits and not own.modifiers:
        return plan(intensity, False, None, live, attached, configured)
    asked = placed(own, attached, model)
    otherwise = plan(intensity, False, None, live, attached, configured) if own.is_added else Plan()
    strength = otherwise.echo
    if strength is None:
        strength = resolved(intensity, DialBase(asked.values, configured))
    made = asked.at(strength, own.field)
    overlay, edits = made.values, made.edits
    modifiers = own.modifiers
    if own.is_added:
        kept = otherwise.placed or live.applied
        overlay = total([kept.values, overlay])  # (6)
        count = len(own.edits)
        others = (structs.replace(edit, number=count + edit.number) for edit in kept.edits)
        edits = arranged((*others, *edits), attached, model)
        modifiers |= kept.modifiers
    is_dialed = intensity is not None and (any(overlay.values()) or bool(edits))
    return Plan(
        overlay,
        strength if is_dialed else None,
        otherwise.rung if own.is_added else None,
        edits,
        is_own=True,
        modifiers=modifiers,
        added=made.added,
    )


def echo(value: float) -> str:
    """An intensity as text for the header: at most three decimals, but never 0 for an intensity that is not 0."""
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:.3g}" if text == "0" and value else text


def base(
    profile: Profile | None, live: Live, attached: Sequence[AttachedSae]
) -> Mapping[str, Values]:
    """The values that the dial scales, before the intensity and the clamp: those of the named profile, else those that
    `rules/steering/activation.dialed` gives.

    Raises:
        Refusal: PROFILE_INCOMPATIBLE; SAE_NOT_ATTACHED for a profile with values and edits where no SAE is attached.
    """
    if profile is not None and profile.edits is not None and not profile.values:
        return {}
    if profile is None or not (attached or profile.edits):
        return activation.dialed(live, attached)
    if not attached:
        raise activation.no_sae(profile, param="profile")
    return {_site(profile, attached): profile.values}


def swept(
    profile: Profile | None, live: Live, attached: Sequence[AttachedSae], model: ModelFacts
) -> tuple[Placed, Mapping[str, Values]]:
    """What a comparison scales, and the values that each of its steered sides has unchanged."""
    if profile is not None or not (live.enabled and live.standing):
        values, beside = _swept(profile, live, attached)
        if profile is None or profile.edits is None:
            return Placed(values), beside
        made = profile.edits.placed(attached, model)
        return Placed(total([values, made.values]), made.edits), beside
    standing = _standing(live)
    values, beside = (
        ({}, {})
        if live.interventions.replaces
        else _swept(None, without_interventions(live), attached)
    )
    return Placed(total([values, standing.values]), standing.edits), beside


def _swept(
    profile: Profile | None, live: Live, attached: Sequence[AttachedSae]
) -> tuple[Mapping[str, Values], Mapping[str, Values]]:
    """The values of `swept`: those of rules (3), (8) and (9). Where no circuit can be dialed (10), all live values are
    scaled. No range is a bound.

    Raises:
        Refusal: PROFILE_INCOMPATIBLE, SAE_NOT_ATTACHED.
    """
    if profile is not None and profile.values and not attached:
        raise activation.no_sae(profile, param="profile")
    values = base(profile, live, attached)
    circuits = _whole_circuits(live) if profile is None and live.enabled else []
    if not circuits:
        return values, {}
    circuit = _only_circuit(live)
    if live.active is None:
        if circuit is None:
            return values, {}  # (10)
        others = [held.values for owner, held in live.owned.items() if owner != circuit.owner]
        return circuit.authored, total(others)  # (8)
    return values, total(live.by(one.owner) for one in circuits)  # (9)


def _dial_base(
    profile: Profile | None, live: Live, attached: Sequence[AttachedSae], configured: Range
) -> DialBase:
    """The named profile, else the active one, else the live values, with the range of a cluster."""
    values = base(profile, live, attached)
    if profile is not None:
        declared = profile.cluster.declared_range if profile.cluster is not None else None
        within = find_limits(declared, configured)
        return DialBase(values, within, profile.cluster is not None, profile.intensity)
    active = live.active
    if active is None or not active.is_cluster:
        return DialBase(values, configured)
    return DialBase(values, find_limits(active.declared_range, configured), is_capped=True)


def _has_base(
    is_profile_named: bool,
    profile: Profile | None,
    live: Live,
    attached: Sequence[AttachedSae],
) -> bool:
    """Whether the intensity 0 changes anything: without it, the request would be steered."""
    if is_profile_named:
        return profile is not None and (bool(profile.values) or profile.edits is not None)
    is_steered = live.enabled and (any(live.values.values()) or bool(live.standing))
    return is_steered or any(activation.dialed(live, attached).values())


def _site(profile: Profile, attached: Sequence[AttachedSae]) -> str:
    """The key of the attached SAE that the profile was made for.

    Raises:
        Refusal: PROFILE_INCOMPATIBLE when no attached SAE fits, or the SAE has fewer features than the profile names.
    """
    sae = site(profile, attached, param="profile")
    if profile.cluster is not None and profile.cluster.sae.n_features not in (None, sae.d_sae):
        raise Refusal(
            "PROFILE_INCOMPATIBLE",
            f"cluster {profile.name!r} is made for {profile.cluster.sae.n_features} features; "
            f"the attached SAE has {sae.d_sae}",
            param="profile",
            declared_n_features=profile.cluster.sae.n_features,
            attached_d_sae=sae.d_sae,
        )
    for index in profile.values:
        if not 0 <= index < sae.d_sae:
            raise Refusal(
                "PROFILE_INCOMPATIBLE",
                f"profile {profile.name!r} names feature {index}; the attached SAE has {sae.d_sae}",
                param="profile",
                feature_idx=index,
                d_sae=sae.d_sae,
            )
    return sae.key


def resolved(intensity: Intensity | None, base: DialBase) -> float:
    """The number that the values of a base are multiplied by."""
    match intensity:
        case None:
            return base.own
        case "min":
            return base.limits.lowest
        case "max":
            return base.limits.highest
        case _:
            number = float(intensity)
            return min(number, base.limits.highest) if base.is_capped else number  # (7)
