"""The live steering values, their epoch, and the engine's copy of both.

An edit is a pure step of `rules/steering/live`. An edit takes effect when the engine has accepted it, so the reported
values are always the applied values. This module does not know which profile is active; `serving.py` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from steerserve import messages as m
from steerserve.control.bus import Bus
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engine_state import EngineState, Return
from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.control.steering.events import (
    ActiveProfileChanged,
    ServedCircuitsChanged,
    SteeringUpdate,
    steering_update,
)
from steerserve.errors import Refusal
from steerserve.messages.carried import finish_edit
from steerserve.messages.engine import Engine
from steerserve.rules.residency import swap
from steerserve.rules.residency.swap import Phase
from steerserve.rules.saes.attachment import FIRST_SAE, SaeChoice
from steerserve.rules.steering import live as rules
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import Values
from steerserve.rules.steering.served import ServedCircuit

Step = Callable[[Live, Sequence[Attachment]], Live]
"""An edit: (the live values, the attached SAEs) -> the values after the edit."""


class Steering(EngineState[Live]):
    """Owner of the live values. An attached SAE is addressed by its key. A call without a choice concerns the first
    one."""

    def __init__(self, conductor: Conductor, bus: Bus) -> None:
        self._conductor = conductor
        self._bus = bus
        self._live = Live()
        self._published: tuple[str | None, SteeringUpdate] = (None, steering_update(False, {}))
        self._editing = asyncio.Lock()
        self._losses = conductor.restoring.register(self)

    @property
    def live(self) -> Live:
        return self._live

    @property
    def circuits(self) -> tuple[ServedCircuit, ...]:
        """The circuits that serve, and those that serve again once their model is loaded again after a crash."""
        lost = (circuit for _, loss in self._losses.items() for circuit in loss.circuits)
        by_id = {circuit.id: circuit for circuit in (*lost, *self._live.circuits)}
        return tuple(by_id.values())

    def state(self, choice: SaeChoice = FIRST_SAE) -> tuple[bool, dict[int, float]]:
        """Whether steering is on, and the values of one attached SAE, summed over their owners.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self._live.enabled, dict(self._live.values_at(self.attachment(choice).key))

    def others(self, choice: SaeChoice = FIRST_SAE) -> dict[str, dict[int, float]]:
        """Key -> values of the attached SAEs other than the chosen one. SAEs without values are left out."""
        attached = self._conductor.attachments()
        chosen = [attachment.key for attachment in choice.among(attached)[:1]]
        keys = [attachment.key for attachment in attached if attachment.key not in chosen]
        return {key: dict(self._live.values_at(key)) for key in keys if self._live.values_at(key)}

    def attachment(self, choice: SaeChoice = FIRST_SAE) -> Attachment:
        """The first attached SAE that fits a choice.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self._chosen(choice, self._conductor.attachments())

    def _chosen(self, choice: SaeChoice, attached: Sequence[Attachment]) -> Attachment:
        if not attached:
            raise swap.no_sae(self._conductor.view())
        return choice.first(attached)

    async def set_values(self, values: Mapping[int, float], choice: SaeChoice = FIRST_SAE) -> None:
        """Merge values into those of one attached SAE, all of them or none, and switch steering on.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, VALIDATION_ERROR.
        """
        await self._edit(
            choice, lambda live, sae: rules.set_values(live, sae.key, sae.d_sae, values)
        )

    async def enable(self) -> None:
        """Switch steering on.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        await self._edit(FIRST_SAE, lambda live, _: rules.enable(live))

    async def disable(self) -> None:
        """Switch steering off and keep the values.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        await self._edit(FIRST_SAE, lambda live, _: rules.disable(live))

    async def remove(self, index: int, choice: SaeChoice = FIRST_SAE) -> None:
        """Remove the value of one feature of one attached SAE, whoever set it.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX.
        """
        await self._edit(choice, lambda live, sae: rules.remove(live, sae.key, sae.d_sae, index))

    async def clear(self) -> None:
        """Remove every value of every SAE, whoever set it, and every live intervention. This includes what is kept
        after a crash until its model is loaded again.

        Raises:
            Refusal: SAE_NOT_ATTACHED when no SAE is attached, no intervention is live, and nothing is kept after a
                crash.
        """

        def step(live: Live) -> Live:
            if not (self._losses or live.standing):
                self.attachment()
            return rules.clear(live)

        await self.everywhere(step)

    async def clear_one(self, choice: SaeChoice) -> None:
        """Remove every value of one attached SAE, whoever set it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        await self._edit(choice, lambda live, sae: rules.clear_one(live, sae.key))

    def still_edited(self, choice: SaeChoice, index: int | None = None) -> list[str]:
        """The edits that steer one feature of an attached SAE, or any of its features, in words.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return rules.still_edited(self._live, self.attachment(choice).key, index)

    async def act(self, step: Step) -> Live:
        """Apply one step to the present values and attachments, and return the values after the step. If the step
        raises, or if the engine refuses the new values, nothing changes."""
        async with self._editing:
            await self._apply(step(self._live, self._conductor.attachments()))
            return self._live

    async def everywhere(self, step: Callable[[Live], Live]) -> bool:
        """Apply a step that needs no attached SAE. It is applied to the live values, and to the values that are kept
        after a crash until their model is loaded again, so that an edit made meanwhile is not undone. Returns whether
        any value changed."""
        async with self._editing:
            live, lost = self._live, dict(self._losses.items())
            await self._apply(step(live), lambda: self._losses.edit(step))
            return self._live is not live or dict(self._losses.items()) != lost

    def lost(self, resident: Resident) -> Live | None:
        """All live values. `Live` is frozen, so later edits do not change the returned values."""
        return self._live if resident.attachments or self._live.standing else None

    @asynccontextmanager
    async def put_back(
        self, back: Return, loss: Callable[[], Live | None]
    ) -> AsyncIterator[Switch]:
        """Give a new engine the live steering with its epoch, and what a crash took: the values of every owner, whether
        steering is enabled, and the active profile. Values of SAEs that are not attached again are left out. The epoch
        grows by one where values come back.

        Raises:
            Refusal: a refusal of the engine. Nothing is restored then.
        """
        async with self._editing:
            live, lost = self._live, loss()
            if lost is not None and (back.attached or lost.standing):
                live = replace(lost, epoch=max(lost.epoch, live.epoch) + 1)
            named = {*live.values, *(key for one in live.standing for key in one.keys)}
            for key in named - {attachment.key for attachment in back.attached}:
                live = rules.leave(live, key)
            await _push(back.engine, live)
            yield lambda: self._take(live)

    @asynccontextmanager
    async def part(self, gone: Sequence[str]) -> AsyncIterator[Switch]:
        """Remove the values of the SAEs with the keys `gone`, which are being detached, in one step."""
        async with self._editing:
            live, resident = self._live, self._conductor.resident
            for key in gone:
                live = rules.leave(live, key)
            is_ending = resident is None or resident.phase is not Phase.LOADED
            if is_ending:
                live = rules.without_interventions(live)
            is_last = all(sae.key in gone for sae in self._conductor.attachments())
            if is_last and (gone or is_ending) and not live.standing:
                # no SAE stays attached, although another may be attached in their place
                live = rules.switch_off(live)
            live = rules.counted(self._live, live)
            if resident is not None and resident.engine is not None:
                try:
                    await _push(resident.engine, live)
                except Refusal:
                    # an engine that lives on without these values would steer otherwise than reported
                    resident.engine.lose("the engine did not take the steering of its SAEs")
            yield lambda: self._take(live)

    async def _edit(self, choice: SaeChoice, edit: Callable[[Live, Attachment], Live]) -> None:
        """Apply one step to the chosen SAE. The SAE is looked up when the step runs, because earlier steps may still be
        running."""
        await self.act(lambda live, attached: edit(live, self._chosen(choice, attached)))

    async def _apply(self, after: Live, also: Callable[[], object] = lambda: None) -> None:
        """Make these the live values, in the engine first, and then do `also`. Both are done, or neither, also when the
        caller is cancelled."""

        def set_live() -> None:
            if after is not self._live:
                self._take(after)
            also()

        is_step = after.epoch != self._live.epoch
        is_intervened = bool(self._live.standing or after.standing)
        resident = self._conductor.resident
        is_served = resident is not None and resident.phase is Phase.LOADED
        # while no model serves, the next one gets the steering before it serves
        if is_step and (is_served or is_intervened or self._conductor.attachments()):
            await finish_edit(_push(self._conductor.loaded().running()[0], after), set_live)
        else:
            set_live()

    def _take(self, live: Live) -> None:
        """Make these the live values, and publish the state if it has changed."""
        before, self._live = self._live, live
        first = next((attachment.key for attachment in self._conductor.attachments()), None)
        values = _plain(live.values_at(first) if first else {})
        others = {key: _plain(values) for key, values in self.others().items()}
        sent = [dict(one.sent) for one in live.standing]
        published = first, steering_update(live.enabled, values, others, sent)
        if published != self._published:
            self._published = published
            self._bus.publish(published[1])
        if _profile_of(before) != _profile_of(live):
            self._bus.publish(ActiveProfileChanged(_profile_of(live)))
        if before.circuits != live.circuits:
            served = tuple(circuit.id for circuit in live.circuits)
            self._bus.publish(ServedCircuitsChanged(served))


async def _push(engine: Engine, live: Live) -> None:
    values = {key: dict(values) for key, values in live.values.items()}
    steering = m.Steering(live.epoch, live.enabled, values, live.edits, live.modifiers)
    if engine.state.steering != steering:
        await engine.change(m.setting(steering=steering))


def _profile_of(live: Live) -> str | None:
    return None if live.active is None else live.active.id


def _plain(values: Values) -> dict[str, float]:
    return {str(index): value for index, value in sorted(values.items())}
