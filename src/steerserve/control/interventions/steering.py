"""The live steering values, their epoch, and the engine's copy of both.

An edit is a pure step of `rules/steering`. It counts once the engine has taken it, so that the values that are
reported are the values that are applied. Whose values they are is not known here: `serving.py` knows the active
profile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from steerserve.control.bus import Bus, SteeringUpdate
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.engine_state import EngineState, Return, unchanged
from steerserve.control.residency.resident import Attachment, Resident, Switch
from steerserve.engine.wire.engine import Engine
from steerserve.errors import Refusal
from steerserve.rules import steering as rules
from steerserve.rules.attachment import FIRST_SAE, SaeChoice
from steerserve.rules.steering import Live, Values

Step = Callable[[Live, Sequence[Attachment]], Live]
"""An edit: the live values and what is attached, to the values after it."""


class Steering(EngineState[Live]):
    """Owner of the live values. Attached SAEs are addressed by their keys; without a choice the first one is meant."""

    def __init__(self, conductor: Conductor, bus: Bus) -> None:
        self._conductor = conductor
        self._bus = bus
        self._live = Live()
        self._published: tuple[str | None, SteeringUpdate] = (None, SteeringUpdate(False, {}))
        self._editing = asyncio.Lock()
        self._losses = conductor.restoring.register(self)

    @property
    def live(self) -> Live:
        return self._live

    def state(self, choice: SaeChoice = FIRST_SAE) -> tuple[bool, dict[int, float]]:
        """Whether steering is on, and the values of one attached SAE, summed over their owners.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return self._live.enabled, dict(self._live.of(self.attachment(choice).key))

    def others(self, choice: SaeChoice = FIRST_SAE) -> dict[str, dict[int, float]]:
        """The values of the attached SAEs beside the chosen one, by their keys; SAEs without values are left out."""
        attached = self._conductor.attachments()
        chosen = [attachment.key for attachment in choice.among(attached)[:1]]
        keys = [attachment.key for attachment in attached if attachment.key not in chosen]
        return {key: dict(self._live.of(key)) for key in keys if self._live.of(key)}

    def attachment(self, choice: SaeChoice = FIRST_SAE) -> Attachment:
        """The attached SAE that a choice means.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        return choice.first(self._conductor.attachments())

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
        """Forget one feature of one attached SAE, whoever set it.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX.
        """
        await self._edit(choice, lambda live, sae: rules.remove(live, sae.key, sae.d_sae, index))

    async def clear(self) -> None:
        """Forget every value of every SAE, whoever set it, also the values that wait for their model to be loaded
        again.

        Raises:
            Refusal: SAE_NOT_ATTACHED when no SAE is attached and none waits.
        """

        def step(live: Live) -> Live:
            if not self._losses:
                self.attachment()
            return rules.clear(live)

        await self.everywhere(step)

    async def clear_one(self, choice: SaeChoice) -> None:
        """Forget every value of one attached SAE, whoever set it.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        await self._edit(choice, lambda live, sae: rules.clear_one(live, sae.key))

    async def act(self, step: Step) -> Live:
        """Take one step, decided on the values and the attachments of this moment, and answer the values after the
        step. A step that raises, or that the engine does not take, changes nothing."""
        async with self._editing:
            await self._apply(step(self._live, self._conductor.attachments()))
            return self._live

    async def everywhere(self, step: Callable[[Live], Live]) -> bool:
        """Take a step that needs no SAE on the live values and on the values that wait for their model to be loaded
        again after a crash, so that these come back as an operator left them. The answer says whether the step
        changed any."""
        async with self._editing:
            before = self._live
            await self._apply(step(before))
            is_waiting_changed = self._losses.edit(step)
            return is_waiting_changed or self._live is not before

    def lost(self, resident: Resident) -> Live | None:
        """All live values; later edits do not change them."""
        return self._live if resident.attachments else None

    @asynccontextmanager
    async def put_back(self, back: Return, loss: Callable[[], Live]) -> AsyncIterator[Switch]:
        """Steer the new engine as the loss says: the values of every owner, whether they apply, and the active profile.
        Values of SAEs that are not attached again stay out. One step of the epoch.

        Raises:
            Refusal: the engine's own; then nothing is restored.
        """
        if not back.attached:
            yield unchanged
            return
        async with self._editing:
            live = loss()
            for key in live.values.keys() - {attachment.key for attachment in back.attached}:
                live = rules.leave(live, key)
            live = replace(live, epoch=max(live.epoch, self._live.epoch) + 1)
            await _push(back.engine, live)
            yield lambda: self._take(live)

    @asynccontextmanager
    async def part(self, gone: Sequence[str]) -> AsyncIterator[Switch]:
        """The SAEs of the keys `gone` take their values with them. One step of the epoch."""
        async with self._editing:
            live = self._live
            for key in gone:
                live = rules.leave(live, key)
            if gone and all(sae.key in gone for sae in self._conductor.attachments()):
                live = rules.switch_off(live)  # with the last SAE, or where another takes its place
            live = replace(live, epoch=self._live.epoch + 1)
            with suppress(Refusal):  # when the engine is gone too, the next starts without values
                await _push(self._conductor.loaded().running()[0], live)
            yield lambda: self._take(live)

    async def _edit(self, choice: SaeChoice, edit: Callable[[Live, Attachment], Live]) -> None:
        """Take one step on the SAE that is meant when it is the step's turn."""
        await self.act(lambda live, attached: edit(live, choice.first(attached)))

    async def _apply(self, after: Live) -> None:
        if after is self._live:
            return
        is_step = after.epoch != self._live.epoch
        # without an SAE no engine steers, and the next attach tells the engine the values
        if is_step and self._conductor.attachments():
            await _push(self._conductor.loaded().running()[0], after)
        self._take(after)

    def _take(self, live: Live) -> None:
        """Put these values into force, and publish the answer of `state` where it has changed."""
        self._live = live
        first = next((attachment.key for attachment in self._conductor.attachments()), None)
        values = _plain(live.of(first) if first else {})
        others = {key: _plain(values) for key, values in self.others().items()}
        published = first, SteeringUpdate(live.enabled, values, others)
        if published != self._published:
            self._published = published
            self._bus.publish(published[1])


async def _push(engine: Engine, live: Live) -> None:
    values = {key: dict(values) for key, values in live.values.items()}
    await engine.steer(live.epoch, live.enabled, values)


def _plain(values: Values) -> dict[str, float]:
    return {str(index): value for index, value in sorted(values.items())}
