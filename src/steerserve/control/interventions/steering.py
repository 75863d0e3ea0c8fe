"""Live steering: its values, its epoch, and the engine's copy of both.

An edit is a pure step of `rules/steering`; it counts once the engine has it, so what is reported is what is applied.
"""

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
from steerserve.rules.steering import Live, Values

Step = Callable[[Live, Sequence[Attachment]], Live]
"""An edit: the live values and what is attached, to the values after it."""


class Steering(EngineState[Live]):
    """Owner of the live values. The plain routes set values of the first attached SAE."""

    def __init__(self, conductor: Conductor, bus: Bus) -> None:
        self._conductor = conductor
        self._bus = bus
        self._live = Live()
        self._told: tuple[str | None, SteeringUpdate] = (None, SteeringUpdate(False, {}))
        self._editing = asyncio.Lock()
        self._losses = conductor.restoring.register(self)

    @property
    def live(self) -> Live:
        return self._live

    def state(self) -> tuple[bool, dict[int, float]]:
        """Whether anything steers, and the values of the first attached SAE, summed over all who set some.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attached = self._conductor.first_attachment()
        return self._live.enabled, dict(self._live.of(attached.key))

    def others(self) -> dict[str, dict[int, float]]:
        """The values of the other attached SAEs that have some, by their keys."""
        keys = [attachment.key for attachment in self._conductor.attachments()[1:]]
        return {key: dict(self._live.of(key)) for key in keys if self._live.of(key)}

    async def set_values(self, values: Mapping[int, float]) -> None:
        """All or nothing; merges into what is set, and enables.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, VALIDATION_ERROR.
        """
        await self._edit(lambda live, at: rules.set_values(live, at.key, at.d_sae, values))

    async def enable(self) -> None:
        await self._edit(lambda live, _: rules.enable(live))

    async def disable(self) -> None:
        await self._edit(lambda live, _: rules.disable(live))

    async def remove(self, index: int) -> None:
        await self._edit(lambda live, at: rules.remove(live, at.key, at.d_sae, index))

    async def clear(self) -> None:
        """Forget all values, of every SAE and of every owner, and of those that wait for their model to be loaded again.

        Raises:
            Refusal: SAE_NOT_ATTACHED when no SAE is attached or waits.
        """

        def step(live: Live) -> Live:
            if not self._losses:
                self._conductor.first_attachment()
            return rules.clear(live)

        await self.everywhere(step)

    async def act(self, step: Step) -> Live:
        """Take one step, decided on the values and the attachments of this moment; the values after it. A step that
        raises, or that the engine does not take, changes nothing."""
        async with self._editing:
            await self._apply(step(self._live, self._conductor.attachments()))
            return self._live

    async def everywhere(self, step: Callable[[Live], Live]) -> bool:
        """Take a step that needs no SAE, also on what a crash took: it is not to come back otherwise than an operator
        wanted meanwhile. Whether it changed anything."""
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
            live = replace(live, epoch=self._live.epoch + 1)
            with suppress(Refusal):  # when the engine is gone too, the next starts without values
                await _push(self._conductor.loaded().running()[0], live)
            yield lambda: self._take(live)

    async def _edit(self, edit: Callable[[Live, Attachment], Live]) -> None:
        """One step on the first attached SAE."""
        await self.act(lambda live, _: edit(live, self._conductor.first_attachment()))

    async def _apply(self, after: Live) -> None:
        if after is self._live:
            return
        # without an SAE no engine steers; the next attach tells it
        if self._conductor.attachments():
            await _push(self._conductor.loaded().running()[0], after)
        self._take(after)

    def _take(self, live: Live) -> None:
        """These values are in force; what `state` answers is told where it changed."""
        self._live = live
        first = next((attachment.key for attachment in self._conductor.attachments()), None)
        values = _plain(live.of(first) if first else {})
        others = {key: _plain(found) for key, found in self.others().items()}
        told = first, SteeringUpdate(live.enabled, values, others)
        if told != self._told:
            self._told = told
            self._bus.publish(told[1])


async def _push(engine: Engine, live: Live) -> None:
    values = {key: dict(values) for key, values in live.values.items()}
    await engine.steer(live.epoch, live.enabled, values)


def _plain(values: Values) -> dict[str, float]:
    return {str(index): value for index, value in sorted(values.items())}
