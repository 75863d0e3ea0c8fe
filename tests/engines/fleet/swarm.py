"""Many short requests beside many changes of the steering and kills of replicas. Each answer tells its epoch."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Mapping
from contextlib import suppress

from steerserve.engines.fleet.fleet import Fleet
from steerserve.errors import Refusal
from steerserve.rules.residency.replicas import ReplicaState
from tests.engines.fleet.real import FEATURES, answer, steer

CLIENTS = 6


class Swarm:
    """Clients that ask without a pause, while the steering changes.

    Each answer has one token, so one epoch wrote it. The epoch lies between the last one that was made when the request
    began and the last one that had begun when the answer came. It is never before an epoch that an earlier answer
    showed: two requests that were admitted after a change never run under different ones.

    Args:
        words: the token that each feature makes the model write.
    """

    def __init__(self, fleet: Fleet, words: Mapping[str, int], source: random.Random) -> None:
        self._fleet = fleet
        self._words = words
        self._source = source
        self._made = self._begun = self._shown = 0
        self._is_over = False
        self.answers = 0
        self.kills = 0
        self.lost = 0

    async def run(self, edits: int, kills: int) -> None:
        """Change the steering so often, and kill replicas in between."""
        await self._edit()
        clients = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]
        killed_after = set(self._source.sample(range(edits), kills))
        try:
            for number in range(edits):
                if number in killed_after:
                    await self._kill()
                await self._edit()
                target = self.answers + self._source.randrange(4)
                while self.answers < target and not any(client.done() for client in clients):
                    await asyncio.sleep(0)
        finally:
            self._is_over = True
            await asyncio.gather(*clients)

    async def _edit(self) -> None:
        self._begun = self._made + 1
        await steer(self._fleet, self._begun)
        self._made = self._begun

    async def _kill(self) -> None:
        """Kill a replica while another one serves."""
        pids = [
            view.pid
            for view in self._fleet.replicas()
            if view.pid is not None and view.state is ReplicaState.SERVING
        ]
        if len(pids) > 1:
            self.kills += 1
            with suppress(ProcessLookupError):
                os.kill(self._source.choice(pids), signal.SIGKILL)

    async def _client(self) -> None:
        while not self._is_over:
            least = max(self._made, self._shown)
            try:
                text = await answer(self._fleet)
            except Refusal as refusal:
                if refusal.code != "ENGINE_UNAVAILABLE":
                    raise
                self.lost += 1
                continue
            epoch = self._epoch(text, self._begun)
            assert least <= epoch <= self._begun, (least, epoch, self._begun, text)
            self._shown = max(self._shown, epoch)
            self.answers += 1

    def _epoch(self, text: str, latest: int) -> int:
        """The last epoch, up to `latest`, whose feature makes the model write the text."""
        place = self._words[text]
        return latest - (latest - place) % len(FEATURES)
