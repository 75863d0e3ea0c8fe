"""A service that could not start an engine says so, until one starts or for a minute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from steerserve.control.residency.cluster import SeenNode
from steerserve.control.residency.engines import FORGOTTEN, Engines
from steerserve.demo import MODEL_DIR
from steerserve.engines.checkpoint import process
from steerserve.engines.checkpoint.prompts import PromptMaker
from steerserve.engines.fleet.fleet import Fleet
from steerserve.engines.gguf import process as llama_process
from steerserve.engines.gguf.messages import LlamaCard
from steerserve.engines.remote.facts import checkpoint_seen
from steerserve.messages.engine import Report
from steerserve.settings import Settings
from tests.scripted_engine import Launcher, ScriptedEngine
from tests.waiting import soon


@pytest.fixture
def time() -> list[float]:
    return [0.0]


@pytest.fixture
def engines(time: list[float]) -> Engines:
    return Engines(Settings(_env_file=None), lambda: time[0])  # type: ignore[call-arg]


def refuse(*_: object, **__: object) -> None:
    raise BlockingIOError("out of processes")


async def test_a_failed_start_is_remembered_for_a_while(
    engines: Engines, time: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engines.failure() is None
    monkeypatch.setattr(process.ForkServer, "start", refuse)
    with pytest.raises(BlockingIOError):
        await engines.launch()
    assert engines.failure() == "no engine process can be started: BlockingIOError"
    time[0] = FORGOTTEN
    assert engines.failure() is not None
    time[0] = FORGOTTEN + 1
    assert engines.failure() is None


async def test_a_start_that_succeeds_clears_it(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(process.ForkServer, "start", refuse)
        with pytest.raises(BlockingIOError):
            await engines.launch()
    engine = await engines.launch()
    try:
        assert engines.failure() is None
    finally:
        await soon(engine.stop())


class Asked:
    """A GGUF engine's process that sees the cards it is given."""

    def __init__(self) -> None:
        self.cards: list[LlamaCard] = []
        self.times = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        process = self

        class Started:
            async def cards(self, server_bin: str | None) -> list[LlamaCard]:
                process.times += 1
                return list(process.cards)

            async def stop(self) -> None:
                pass

        async def start() -> Started:
            return Started()

        monkeypatch.setattr(llama_process, "start", start)


async def test_free_memory_is_asked_for_again_where_there_are_cards(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    asked.install(monkeypatch)
    for free in (5000, 3000):
        asked.cards = [LlamaCard("CUDA0", free)]
        assert [card.free_bytes for card in await engines.gguf_cards()] == [free]
    asked.cards = []
    assert [await engines.gguf_cards() for _ in range(3)] == [[], [], []]
    assert asked.times == 3


class Nodes:
    """A cluster that notes what each engine is launched with."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.asked: list[tuple[Mapping[str, str], Mapping[str, str | None]]] = []

    async def launch(
        self,
        _: PromptMaker,
        barred: Mapping[str, str],
        files: Mapping[str, str | None],
        _report: Report,
    ) -> ScriptedEngine:
        self.asked.append((barred, files))
        return self.engine

    async def nodes(self, *_: str) -> tuple[SeenNode, ...]:
        return ()

    async def close(self) -> None:
        """Nothing was opened."""


async def test_every_start_of_a_replica_tells_the_barred_nodes_and_the_files_of_now(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    cluster = Nodes(await Launcher().launch())
    settings = Settings(_env_file=None, engine_backend="ray")  # type: ignore[call-arg]
    engines = Engines(settings, cluster=cluster)
    fleet = await engines.launch_resident("checkpoint", str(tmp_path))
    engines.barred = {"1": "a: it has other files in /m"}
    assert isinstance(fleet, Fleet)
    await fleet.load(lambda _: None, path=str(MODEL_DIR), trust_remote_code=False)
    assert cluster.asked == [(engines.barred, {str(tmp_path): checkpoint_seen(str(tmp_path))})]
    await fleet.stop()
