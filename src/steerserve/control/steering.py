"""Live steering: its values, its epoch, and the engine's copy of both.

An edit is a pure step of `rules/steering`; it counts once the engine has it, so what is reported is what is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from steerserve.control.bus import Bus, SteeringUpdate
from steerserve.control.conductor import Conductor
from steerserve.control.resident import Attachment
from steerserve.errors import Refusal
from steerserve.rules import steering as rules
from steerserve.rules.steering import Live


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
        """Whether the first attached SAE steers, and its values.

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

    async def _edit(self, step: Callable[[Live, Attachment], Live]) -> None:
        async with self._editing:
            attached = self._conductor.first_attachment()
            after = step(self._live, attached)
            if after is self._live:
                return
            await self._push(after)
            self._take(after)

    async def _push(self, live: Live) -> None:
        engine, _ = self._conductor.loaded().running()
        await engine.steer(live.epoch, live.enabled, {k: dict(v) for k, v in live.values.items()})

    def _take(self, live: Live) -> None:
        before, self._live = self._live, live
        if (before.enabled, before.values) == (live.enabled, live.values):
            return
        attachments = self._conductor.attachments()
        values = live.of(attachments[0].key) if attachments else {}
        self._bus.publish(
            SteeringUpdate(live.enabled, {str(i): v for i, v in sorted(values.items())})
        )
