"""A real engine behind a host in another process: it answers as an engine on this machine does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from steerserve.engine.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engine.remote import certificates
from steerserve.engine.remote.link import connect
from steerserve.engine.worker.model.checkpoint import Checkpoint
from steerserve.rules.signs import Activity
from tests.doubles import until
from tests.engine.checkpoint.test_process import FIELDS, Folder, events, text_of, truth
from tests.engine.remote.hosting import Hosting, Wanted, hosting
from tests.engine.running import words


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    return Launcher("CRITICAL", "json")


@pytest.fixture
async def hosted(launcher: Launcher) -> AsyncIterator[tuple[CheckpointEngine, Hosting]]:
    """An engine without a model, and its host."""
    identity = certificates.new_identity()
    async with hosting(Wanted(identity.certificate)) as host:
        engine = launcher.client(*await connect(host.contact, identity))
        yield engine, host
        await engine.stop()


async def test_an_engine_on_another_node_answers_like_a_local_one(
    hosted: tuple[CheckpointEngine, Hosting], folder: Folder, llama: Checkpoint
) -> None:
    engine, host = hosted
    await until(lambda: engine.sign().activity is Activity.IDLE)
    await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    assert text_of(await events(engine, words(20))) == truth(llama, words(20))
    assert engine.pid == host.contact.pid
    await engine.stop()
    assert await engine.ended == f"the engine process ended on {host.contact.facts.name}"
    assert await host.reason() == "the engine process ended"
    await until(lambda: not host.left())
