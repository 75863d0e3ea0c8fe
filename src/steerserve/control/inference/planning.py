"""Makes the request for the engine from one that has its model and its slot: steering, parts, sampling."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from msgspec import Raw, structs

from steerserve import messages as m
from steerserve.control.inference.asked import Asked, AskedSteering
from steerserve.control.residency.resident import Attachment, Resident
from steerserve.control.steering.interventions import facts_of
from steerserve.control.steering.serving import Serving
from steerserve.nouns.runs import rules as runs
from steerserve.nouns.runs.rules import RunSae
from steerserve.parts.part import Resident as ResidentFacts
from steerserve.parts.part import Steering
from steerserve.parts.registry import parts
from steerserve.rules.inference import compare
from steerserve.rules.steering import account, dial
from steerserve.rules.steering import digest as steering_state
from steerserve.rules.steering.account import Account
from steerserve.rules.steering.digest import SteeredModel, SteeredSite
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import NO_MODIFIERS, Modifiers, Values, at_strength
from steerserve.rules.steering.placing import Largest
from steerserve.settings import Settings


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that holds its model and its slot.

    Attributes:
        plan: how the request is steered.
        echo: the intensity that the answer reports; None where the dial changes nothing.
        rung: the evidence of the circuit that steers the request; None where no circuit or several do.
        state: which steering the request has (`rules/steering/digest.py`); None where nothing is added.
        attributed: the SAE to whose features the request attributes; None where it attributes nothing.
        swept: the steering of each prompt of a sweep, and `states` which steering each has; empty for other requests.
        live: the live values from which the plan was made.
        account: whose steering the request has, and what a report of it lists.
        parts: the plans of the request's parts, by their names.
    """

    resident: Resident
    plan: m.Plan
    echo: float | None
    rung: int | None
    state: str | None
    attributed: Attachment | None
    swept: tuple[dial.Plan, ...]
    states: tuple[str | None, ...]
    live: Live
    account: Account
    parts: Mapping[str, Any]

    def steering(self) -> Steering:
        """How the request is steered."""
        layers = {key: one.layer for key, one in self.resident.attachments.items()}
        return Steering(self.state, self.account, layers)

    @property
    def epoch(self) -> int:
        """The epoch of the live values from which the plan was made."""
        return self.live.epoch


class Planner:
    """Plans requests when they get their slots, from the live values of that moment."""

    def __init__(self, settings: Settings, serving: Serving) -> None:
        self._settings = settings
        self._serving = serving

    def admit(
        self,
        asked: Asked,
        profile: dial.Profile | None,
        resident: Resident,
        largest: Largest = MappingProxyType({}),
    ) -> Admitted:
        """`largest` has the largest activations that are known of edited features, by key and index.

        Raises:
            Refusal: every refusal of `rules/steering/dial`, `rules/inference/compare`, `rules/steering/placing`,
                `rules/inference/runs.placed`, and of the parts of the request.
        """
        steering, live = asked.steering, self._serving.live
        parts = self._planned(asked, resident, largest)
        plan = dial.Plan() if steering is None else self._plan(steering, profile, resident, largest)
        swept = self._swept(steering, profile, resident, largest)
        is_planned = steering is not None and not swept
        own = steering.own if steering is not None else None
        is_replayed = steering is not None and steering.replayed is not None
        return Admitted(
            resident,
            self._told(plan),
            plan.echo,
            plan.rung,
            self._state(resident, plan) if is_planned else None,
            _attributed(asked, resident),
            swept,
            tuple(self._state(resident, one) for one in swept),
            live,
            NOBODYS if is_replayed else account.make_account(plan, own, profile, live),
            parts,
        )

    def stream(
        self, asked: Asked, admitted: Admitted
    ) -> AsyncGenerator[m.Started | m.Outcome, None]:
        """Start the request in the engine, and give its events."""
        return admitted.resident.held().run(self._request(asked, admitted))

    # ------------------------------------------------------------- inside

    def _request(self, asked: Asked, admitted: Admitted) -> m.Request:
        """The request as the engine gets it."""
        request, goal = asked.request, asked.goal
        if isinstance(goal, m.Attribute):
            sae = admitted.attributed
            assert sae is not None
            goal = structs.replace(goal, key=sae.key, layer=sae.layer)
        if asked.steering is None:
            return structs.replace(request, goal=goal)
        is_steered = goal.writes or admitted.state is not None
        return structs.replace(
            request,
            prompts=self._located(request.prompts, admitted),
            plan=admitted.plan if is_steered else m.Suppressed(),
            plans=[self._told(one) for one in admitted.swept],
            label=(asked.answer_id or None) if goal.writes else None,
            parts=_forms(admitted),
        )

    def _planned(self, asked: Asked, resident: Resident, largest: Largest) -> Mapping[str, Any]:
        """The plans of the parts of a request."""
        if not asked.parts:
            return {}
        attached = list(resident.attachments.values())
        facts = ResidentFacts(attached, facts_of(resident, largest), self._settings)
        known = parts()
        return {name: known[name].plan(one, facts) for name, one in asked.parts.items()}

    def _plan(
        self,
        asked: AskedSteering,
        profile: dial.Profile | None,
        resident: Resident,
        largest: Largest,
    ) -> dial.Plan:
        if asked.sweep is not None:
            return dial.Plan()
        if asked.replayed is not None:
            attached = {key: described(one) for key, one in resident.attachments.items()}
            there = runs.placed(asked.replayed, attached, facts_of(resident, largest))
            return dial.Plan(
                there.values, edits=there.edits, is_own=True, modifiers=there.modifiers
            )
        is_named = asked.profile is not None
        if not asked.follows_live and not is_named and asked.own is None:
            return dial.Plan({}, is_own=True)
        made = dial.plan(
            asked.intensity,
            is_named,
            profile,
            self._serving.live,
            list(resident.attachments.values()),
            self._serving.configured,
            asked.own,
            facts_of(resident, largest),
        )
        if asked.is_held:
            # a profile without an attached SAE steers nothing, and the live steering takes its place in no such request
            return replace(made, overlay=made.overlay or {}, is_own=True)
        return made

    def _swept(
        self,
        asked: AskedSteering | None,
        profile: dial.Profile | None,
        resident: Resident,
        largest: Largest,
    ) -> tuple[dial.Plan, ...]:
        """The steering of each prompt of a sweep; empty for other requests."""
        if asked is None or asked.sweep is None:
            return ()
        sweep, live, model = asked.sweep, self._serving.live, facts_of(resident, largest)
        attached = list(resident.attachments.values())
        otherwise, beside = dial.swept(profile, live, attached, model)
        base = compare.base(sweep, otherwise, attached, model)
        overlays = compare.overlays(
            base.values, sweep.intensities, None if sweep.has_values else beside
        )
        is_live = profile is None and not sweep.has_values
        sent = sweep.sent
        if is_live and live.enabled:
            sent = tuple(one.sent for one in live.standing)
        elif profile is not None and profile.edits is not None:
            sent = tuple(profile.edits.sent)
        field = sweep.own.field if sweep.own else ""
        modifiers = (
            live.modifiers if is_live else sweep.own.modifiers if sweep.own else NO_MODIFIERS
        )
        return tuple(
            dial.Plan(
                overlay,
                edits=tuple(at_strength(edit, one, field) for edit in base.edits) if one else (),
                modifiers=modifiers,
                sent=sent if one else (),
            )
            for one, overlay in zip(sweep.intensities, overlays, strict=True)
        )

    def _state(self, resident: Resident, plan: dial.Plan) -> str | None:
        """Which steering a request with this plan has."""
        live = self._serving.live
        added = steering_state.applied(live, plan.overlay, resident.attachments)
        made = plan.placed or live.applied
        return state_of(resident, added, made.edits, modifiers=made.modifiers)

    def _told(self, plan: dial.Plan) -> m.Plan:
        """The plan as the engine gets it."""
        if plan.overlay is None:
            return m.Follow(self._serving.live.epoch)
        epoch = None if plan.is_own else self._serving.live.epoch
        values = {key: dict(features) for key, features in plan.overlay.items()}
        return m.Overlay(epoch, values, plan.edits, plan.modifiers)

    def _located(self, prompts: Sequence[m.Prompt], admitted: Admitted) -> Sequence[m.Prompt]:
        """The prompts, whose messages are found where an edit names roles."""
        plan = admitted.plan
        edits = plan.edits if isinstance(plan, m.Overlay) else self._serving.live.edits
        edits += tuple(edit for one in admitted.swept for edit in one.edits)
        if not any(edit.positions.roles for edit in edits):
            return prompts
        return [
            structs.replace(one, is_located=True) if isinstance(one, m.Chat) else one
            for one in prompts
        ]


NOBODYS = Account((), (), ())
"""The account of a request whose steering is that of a recorded answer."""


def _forms(admitted: Admitted) -> dict[str, Raw]:
    """What the parts of a request ask of the engine."""
    asked: dict[str, Raw] = {}
    for name, planned in admitted.parts.items():
        asked |= parts()[name].ask(planned.form)
    return asked


def described(attachment: Attachment) -> RunSae:
    """An attached SAE as a recorded answer describes it."""
    order, origin = attachment.order, attachment.order.origin
    return RunSae(
        key=attachment.key,
        sae_id=order.sae_id,
        layer=order.layer,
        site=attachment.site,
        d_sae=attachment.d_sae,
        repository_id=origin.repository_id,
        revision=origin.revision,
        file_path=origin.file_path,
        content_digest=origin.content_digest,
        overrides=order.scale,
    )


def state_of(
    resident: Resident,
    added: Mapping[str, Values],
    edits: Sequence[Edit],
    *,
    modifiers: Modifiers,
    content: str | None = None,
) -> str | None:
    """Which steering these values and edits are on the resident model; None where they change nothing. `content` is an
    earlier digest of the model's content, if the steering is told with that one."""
    keys = {*added, *(key for edit in edits for key in edit.keys)}
    sites = {key: _site(resident.attachments[key]) for key in keys}
    row = resident.row
    model = SteeredModel(row.name, row.repo_id, row.revision, content or row.content_digest)
    return steering_state.digest(model, sites, added, edits, modifiers=modifiers)


def _site(attachment: Attachment) -> SteeredSite:
    """What identifies an attached SAE, and where it adds."""
    order = attachment.order
    return SteeredSite(order.sae_id, order.origin, order.layer, attachment.site, order.scale)


def _attributed(asked: Asked, resident: Resident) -> Attachment | None:
    """The attached SAE to whose features a request attributes."""
    if asked.choice is None:
        return None
    return asked.choice.only(list(resident.attachments.values()))
