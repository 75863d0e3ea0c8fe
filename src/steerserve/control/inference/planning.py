"""Makes the request for the engine from one that has its model and its slot: steering, parts, sampling."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec

from steerserve import messages as m
from steerserve.control.residency.resident import Attachment, Resident
from steerserve.control.steering.interventions import facts_of
from steerserve.control.steering.serving import Serving
from steerserve.parts.part import Resident as ResidentFacts
from steerserve.parts.part import pack
from steerserve.parts.registry import parts
from steerserve.rules.inference import compare, runs
from steerserve.rules.inference.intent import (
    AttributionIntent,
    EmbedIntent,
    GenerateIntent,
    Intent,
    LensIntent,
    OutputConstraint,
    Prompt,
    ScoreIntent,
    TokenIds,
)
from steerserve.rules.inference.runs import RunSae
from steerserve.rules.steering import account, dial
from steerserve.rules.steering import digest as steering_state
from steerserve.rules.steering.account import Account
from steerserve.rules.steering.digest import SteeredModel, SteeredSite
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import Values, at_strength
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
        intent: Intent,
        profile: dial.Profile | None,
        resident: Resident,
        largest: Largest = MappingProxyType({}),
    ) -> Admitted:
        """`largest` has the largest activations that are known of edited features, by key and index.

        Raises:
            Refusal: every refusal of `rules/steering/dial`, `rules/inference/compare`, `rules/steering/placing`,
                `rules/inference/runs.placed`, and of the parts of the request.
        """
        parts = self._planned(intent, resident, largest)
        plan = self._plan(intent, profile, resident, largest)
        swept = self._swept(intent, profile, resident, largest)
        is_planned = isinstance(intent, GenerateIntent | ScoreIntent) and not _is_swept(intent)
        state = self._state(resident, plan) if is_planned else None
        own = intent.steering if isinstance(intent, GenerateIntent | ScoreIntent) else None
        return Admitted(
            resident,
            self._told(plan),
            plan.echo,
            plan.rung,
            state,
            _attributed(intent, resident),
            swept,
            tuple(self._state(resident, one) for one in swept),
            self._serving.live,
            NOBODYS if _is_replayed(intent) else account.of(plan, own, profile, self._serving.live),
            parts,
        )

    def stream(
        self, intent: Intent, admitted: Admitted
    ) -> AsyncGenerator[m.Started | m.Outcome, None]:
        """Start the request in the engine, and give its events."""
        return admitted.resident.held().run(self._request(intent, admitted))

    # ------------------------------------------------------------- inside

    def _request(self, intent: Intent, admitted: Admitted) -> m.Request:
        """The request as the engine gets it."""
        match intent:
            case EmbedIntent():
                texts = [m.Text(text) for text in intent.prompts]
                return m.Request(goal=m.Embed(), prompts=texts, client=intent.client)
            case ScoreIntent():
                return m.Request(
                    goal=m.Score(
                        temperature=intent.temperature,
                        top=intent.top,
                        allowed=None if intent.allowed is None else list(intent.allowed),
                        echo=self._echo(intent),
                    ),
                    prompts=self._prompts(intent, admitted),
                    plan=m.Suppressed() if admitted.state is None else admitted.plan,
                    client=intent.client,
                    parts=_packed(admitted),
                )
            case LensIntent():
                lens = m.Lens(
                    layers=None if intent.layers is None else list(intent.layers),
                    top=intent.top,
                    max_distributions=self._settings.lens_max_distributions,
                    max_entries=self._settings.lens_max_entries,
                    path=intent.path,
                )
                return _reading(intent, lens)
            case AttributionIntent():
                sae = admitted.attributed
                assert sae is not None
                return _reading(intent, _attribution(intent, sae))
            case GenerateIntent():
                return m.Request(
                    goal=m.Generate(
                        sampling=self._sampling(intent),
                        n=intent.n,
                        constraint=_constraint(intent.constraint),
                        is_stream=intent.is_stream,
                    ),
                    prompts=self._prompts(intent, admitted),
                    plan=admitted.plan,
                    plans=[self._told(one) for one in admitted.swept],
                    client=intent.client,
                    label=intent.answer_id or None,
                    counted=admitted.account.counted if intent.is_reported else None,
                    parts=_packed(admitted),
                )

    def _planned(self, intent: Intent, resident: Resident, largest: Largest) -> Mapping[str, Any]:
        """The plans of the parts of a request."""
        if not isinstance(intent, GenerateIntent | ScoreIntent) or not intent.parts:
            return {}
        attached = list(resident.attachments.values())
        facts = ResidentFacts(attached, facts_of(resident, largest), self._settings)
        known = parts()
        return {name: known[name].plan(asked, facts) for name, asked in intent.parts.items()}

    def _plan(
        self,
        intent: Intent,
        profile: dial.Profile | None,
        resident: Resident,
        largest: Largest,
    ) -> dial.Plan:
        if not isinstance(intent, GenerateIntent | ScoreIntent) or _is_swept(intent):
            return dial.Plan()
        if intent.replayed is not None:
            attached = {key: described(one) for key, one in resident.attachments.items()}
            there = runs.placed(intent.replayed, attached, facts_of(resident, largest))
            return dial.Plan(
                there.values, edits=there.edits, is_own=True, keeps_norm=there.keeps_norm
            )
        is_named, own = intent.profile is not None, intent.steering
        if isinstance(intent, ScoreIntent) and not is_named and own is None:
            return dial.Plan({}, is_own=True)
        made = dial.plan(
            None if isinstance(intent, ScoreIntent) else intent.intensity,
            is_named,
            profile,
            self._serving.live,
            list(resident.attachments.values()),
            self._serving.configured,
            own,
            facts_of(resident, largest),
        )
        if isinstance(intent, ScoreIntent) or intent.is_held:
            # a profile without an attached SAE steers nothing, and the live steering takes its place in no such request
            return replace(made, overlay=made.overlay or {}, is_own=True)
        return made

    def _swept(
        self,
        intent: Intent,
        profile: dial.Profile | None,
        resident: Resident,
        largest: Largest,
    ) -> tuple[dial.Plan, ...]:
        """The steering of each prompt of a sweep; empty for other requests."""
        if not isinstance(intent, GenerateIntent) or intent.sweep is None:
            return ()
        sweep, live, model = intent.sweep, self._serving.live, facts_of(resident, largest)
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
        keeps_norm = live.keeps_norm if is_live else bool(sweep.own and sweep.own.keeps_norm)
        return tuple(
            dial.Plan(
                overlay,
                edits=tuple(at_strength(edit, one, field) for edit in base.edits) if one else (),
                keeps_norm=keeps_norm,
                sent=sent if one else (),
            )
            for one, overlay in zip(sweep.intensities, overlays, strict=True)
        )

    def _state(self, resident: Resident, plan: dial.Plan) -> str | None:
        """Which steering a request with this plan has."""
        live = self._serving.live
        added = steering_state.applied(live, plan.overlay, resident.attachments)
        made = plan.placed or live.applied
        return state_of(resident, added, made.edits, keeps_norm=made.keeps_norm)

    def _told(self, plan: dial.Plan) -> m.Plan:
        """The plan as the engine gets it."""
        if plan.overlay is None:
            return m.Follow(self._serving.live.epoch)
        epoch = None if plan.is_own else self._serving.live.epoch
        values = {key: dict(features) for key, features in plan.overlay.items()}
        return m.Overlay(epoch, values, plan.edits, plan.keeps_norm)

    def _prompts(self, intent: GenerateIntent | ScoreIntent, admitted: Admitted) -> list[m.Prompt]:
        plan = admitted.plan
        edits = plan.edits if isinstance(plan, m.Overlay) else self._serving.live.edits
        edits += tuple(edit for one in admitted.swept for edit in one.edits)
        is_located = any(edit.positions.roles for edit in edits)
        return [
            _prompt(
                prompt,
                intent.client,
                has_special=intent.has_special,
                template=intent.template,
                is_located=is_located,
                is_strict=intent.is_strict,
            )
            for prompt in intent.prompts
        ]

    def _echo(self, intent: ScoreIntent) -> m.Echo | None:
        if not intent.is_echoed:
            return None
        return m.Echo(intent.max_tokens, self._settings.scoring_max_entries)

    def _sampling(self, intent: GenerateIntent) -> m.Sampling:
        wanted = intent.sampling
        return m.Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            repetition_penalty=wanted.repetition_penalty,
            max_tokens=wanted.max_tokens,
            default_max_tokens=self._settings.default_max_tokens,
            stops=list(wanted.stops),
            seed=wanted.seed,
        )


NOBODYS = Account((), (), ())
"""The account of a request whose steering is that of a recorded answer."""


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


def _is_replayed(intent: Intent) -> bool:
    return isinstance(intent, GenerateIntent | ScoreIntent) and intent.replayed is not None


def state_of(
    resident: Resident,
    added: Mapping[str, Values],
    edits: Sequence[Edit],
    *,
    keeps_norm: bool,
    content: str | None = None,
) -> str | None:
    """Which steering these values and edits are on the resident model; None where they change nothing. `content` is an
    earlier digest of the model's content, if the steering is told with that one."""
    keys = {*added, *(key for edit in edits for key in edit.keys)}
    sites = {key: _site(resident.attachments[key]) for key in keys}
    row = resident.row
    model = SteeredModel(row.name, row.repo_id, row.revision, content or row.content_digest)
    return steering_state.digest(model, sites, added, edits, keeps_norm=keeps_norm)


def _site(attachment: Attachment) -> SteeredSite:
    """What identifies an attached SAE, and where it adds."""
    order = attachment.order
    return SteeredSite(order.sae_id, order.origin, order.layer, attachment.site, order.scale)


def _is_swept(intent: GenerateIntent | ScoreIntent) -> bool:
    return isinstance(intent, GenerateIntent) and intent.sweep is not None


def _attributed(intent: Intent, resident: Resident) -> Attachment | None:
    """The attached SAE to whose features a request attributes."""
    if not isinstance(intent, AttributionIntent):
        return None
    return intent.choice.only(list(resident.attachments.values()))


def _packed(admitted: Admitted) -> dict[str, msgspec.Raw]:
    """The parts of a request as the engine gets them."""
    return {name: pack(planned.form) for name, planned in admitted.parts.items()}


def _prompt(
    prompt: Prompt,
    client: str,
    *,
    has_special: bool = True,
    template: Mapping[str, object] | None = None,
    is_located: bool = False,
    is_strict: bool = False,
) -> m.Prompt:
    if isinstance(prompt, str):
        return m.Text(prompt, has_special)
    if isinstance(prompt, TokenIds):
        return m.Tokens(list(prompt.ids), place=prompt.place)
    variables = dict(template or {})
    return m.Chat([dict(message) for message in prompt], variables, client, is_located, is_strict)


def _constraint(wanted: OutputConstraint | None) -> m.Constraint | None:
    if wanted is None:
        return None
    return m.Constraint(json.dumps(wanted.schema) if wanted.is_schema else None)


def _reading(intent: LensIntent | AttributionIntent, goal: m.Goal) -> m.Request:
    """A request that reads its one prompt."""
    return m.Request(
        goal=goal, prompts=[_prompt(intent.prompt, intent.client)], client=intent.client
    )


def _attribution(intent: AttributionIntent, sae: Attachment) -> m.Attribute:
    return m.Attribute(
        position=intent.position,
        target=intent.target,
        against=intent.against,
        key=sae.key,
        layer=sae.layer,
        top=intent.top,
        method=intent.method,
        steps=intent.steps,
        over=intent.over,
    )
