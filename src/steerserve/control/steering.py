"""Live steering: its values, its epoch, and the engine's copy of both.

An edit is a pure step of `rules/steering`; it counts once the engine has it, so what is reported is what is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from steerserve.control.bus import Bus, SteeringUpdate
from steerserve.control.conductor import Conductor
from steerserve.control.resident import Attachment
from steerserve.errors import Refusal
from steerserve.rules import steering as rules
from steerserve.rules.steering import Live, Values

Step = Callable[[Live, Sequence[Attachment]], Live]
"""An edit: the live values and what is attached, to the values after it."""


class Steering:
    """Owner of the live values. The plain routes act on the first attached SAE."""

    def __init__(self, conductor: Conductor, bus: Bus) -> None:
        self._conductor = conductor
        self._bus = bus
        self._live = Live()
        self._editing = asyncio.Lock()

    @property
    def live(self) -> Live:
        return self._live

    def state(self) -> tuple[bool, dict[int, float]]:
        """Whether the first attached SAE steers, and its values, summed over all who set some.

        Raises:
            Refusal: SAE_NOT_ATTACHED.
        """
        attached = self._conductor.first_attachment()
        return self._live.enabled, dict(self._live.of(attached.key))

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
        await self._edit(lambda live, at: rules.clear(live, at.key))

    async def act(self, step: Step) -> Live:
        """Take one step, decided on the values and the attachments of this moment; the values after it. A step that
        raises, or that the engine does not take, changes nothing."""
        async with self._editing:
            attached = self._conductor.attachments()
            after = step(self._live, attached)
            if after is not self._live:
                # without an SAE no engine steers; the next attach tells it
                if attached:
                    await self._push(after)
                self._take(after)
            return self._live

    async def apply(self, owner: str, values: Mapping[str, Values]) -> Live:
        """What an owner steers becomes these values, key by key; the other owners' stay.

        Raises:
            Refusal: SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, VALIDATION_ERROR.
        """

        def step(live: Live, attached: Sequence[Attachment]) -> Live:
            widths = {at.key: at.d_sae for at in attached}
            for key, edits in values.items():
                if key not in widths:
                    raise _not_attached(key)
                for index, value in edits.items():
                    rules.check_index(index, widths[key])
                    rules.check_value(value)
            return rules.replace_all(live, owner, values)

        return await self.act(step)

    def snapshot(self) -> Live:
        """All there is to give to `restore`; later edits do not reach it."""
        return self._live

    async def restore(self, live: Live) -> None:
        """Steer again as a snapshot says, in a model whose SAEs are attached again: the values of every owner, whether
        they apply, and the active profile. Values of an SAE that is not attached stay out. One step of the epoch.

        Raises:
            Refusal: the engine's own; then nothing is restored.
        """
        async with self._editing:
            attached = {attachment.key for attachment in self._conductor.attachments()}
            for key in live.values.keys() - attached:
                live = rules.clear(live, key)
            live = replace(live, epoch=max(live.epoch, self._live.epoch) + 1)
            await self._push(live)
            self._take(live)

    async def renew(self, gone: list[str]) -> None:
        """The attachments changed; those of the keys `gone` take their values with them. One step of the epoch."""
        async with self._editing:
            live = self._live
            for key in gone:
                live = rules.clear(live, key)
            live = replace(live, epoch=self._live.epoch + 1)
            with suppress(Refusal):  # when the engine is gone too, the next starts without values
                await self._push(live)
            self._take(live)

    async def _edit(self, edit: Callable[[Live, Attachment], Live]) -> None:
        """One step on the first attached SAE."""
        await self.act(lambda live, _: edit(live, self._conductor.first_attachment()))

    async def _push(self, live: Live) -> None:
        engine, _ = self._conductor.loaded().running()
        values = {key: dict(values) for key, values in live.values.items()}
        await engine.steer(live.epoch, live.enabled, values)

    def _take(self, live: Live) -> None:
        before, self._live = self._live, live
        if (before.enabled, before.values) == (live.enabled, live.values):
            return
        attachments = self._conductor.attachments()
        values = live.of(attachments[0].key) if attachments else {}
        self._bus.publish(
            SteeringUpdate(live.enabled, {str(i): v for i, v in sorted(values.items())})
        )


def _not_attached(key: str) -> Refusal:
    return Refusal("SAE_NOT_ATTACHED", f"the SAE of {key!r} is not attached", key=key)
