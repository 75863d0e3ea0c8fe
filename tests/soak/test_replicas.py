"""Thousands of answers of several replicas beside hundreds of changes of the steering, with kills."""

from __future__ import annotations

import random

import pytest

from tests.engines.fleet.real import serving, words
from tests.engines.fleet.swarm import Swarm


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_no_answer_is_written_under_another_epoch_than_its_own() -> None:
    async with serving(3) as fleet:
        swarm = Swarm(fleet, await words(fleet), random.Random(2))
        await swarm.run(edits=800, kills=60)
        assert swarm.answers > 2000
        assert swarm.kills > 5
