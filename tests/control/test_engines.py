"""A service that could not start an engine says so, until one starts or for a minute."""

from __future__ import annotations

import pytest

from steerserve.control.engines import FORGOTTEN, Engines
from steerserve.engine import process
from steerserve.settings import Settings
from tests.doubles import soon


@pytest.fixture
def time() -> list[float]:
    return [0.0]


@pytest.fixture
def engines(time: list[float]) -> Engines:
    return Engines(Settings(_env_file=None), lambda: time[0])  # type: ignore[call-arg]


def refuse(*_: object) -> None:
    raise BlockingIOError("out of processes")


async def test_a_failed_start_is_remembered_for_a_while(
    engines: Engines, time: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engines.failure() is None
    monkeypatch.setattr(process, "start", refuse)
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
        broken.setattr(process, "start", refuse)
        with pytest.raises(BlockingIOError):
            await engines.launch()
    engine = await engines.launch()
    try:
        assert engines.failure() is None
    finally:
        await soon(engine.stop())
