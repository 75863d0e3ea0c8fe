"""How a GGUF model loads, fails to load, and ends; and what nobody else may see of it."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx2
import psutil
import pytest

from steerserve.engines.gguf.client import GgufEngine
from steerserve.errors import Refusal
from steerserve.rules.residency.heartbeat import Activity
from tests.engines.llamas import Write, answer, ask, busy_slots, loaded, refused
from tests.gguf import counted
from tests.waiting import LOOK, until

# ------------------------------------------------------------- heartbeats


async def test_each_answer_of_the_server_is_a_sign_and_a_stopped_process_gives_none(
    engine: GgufEngine,
) -> None:
    async with asyncio.timeout(20):
        before = engine.heartbeat.sign().count
        await until(lambda: engine.heartbeat.sign().count > before, LOOK)
        assert engine.heartbeat.sign().activity is Activity.IDLE
        assert engine.pid
        os.kill(engine.pid, signal.SIGSTOP)
        await until(lambda: engine.heartbeat.sign().is_stopped, LOOK)
    engine.heartbeat.stall(Refusal("ENGINE_UNAVAILABLE", "it stands still"))
    async with asyncio.timeout(4):  # shorter than the patience with an engine that may end politely
        await engine.stop()
    assert engine.ended.done()


async def test_a_lost_engine_ends_for_the_reason_that_it_was_given(engine: GgufEngine) -> None:
    engine.lose("it stood still")
    assert await engine.ended == "it stood still"
    assert "it stood still" in (await refused(ask(engine, "a"))).message


# ------------------------------------------------------------- ends


async def test_a_killed_process_ends_its_requests_with_the_reason(engine: GgufEngine) -> None:
    assert engine.pid is not None
    stream = ask(engine, "x " * 20, max_tokens=100)
    await anext(stream)
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        refusal = await refused(stream)
        reason = await engine.ended
    assert refusal.code == "ENGINE_UNAVAILABLE"
    assert reason == "the engine process was ended by signal 9"
    assert refusal.message == f"{reason}; the model has to be loaded again"
    late = await refused(ask(engine, "one"))
    assert late.code == "MODEL_NOT_LOADED"
    assert late.message == f"{reason} while the request waited"


async def test_a_process_killed_while_it_writes_ends_those_who_wait_too(write: Write) -> None:
    async with loaded(write(kind="random", context=8192), slots=1) as (engine, _):
        streams = [ask(engine, "one", max_tokens=8000) for _ in range(3)]
        collected = [asyncio.create_task(refused(stream)) for stream in streams]
        while not await busy_slots(engine):
            await asyncio.sleep(0)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            codes = [refusal.code for refusal in await asyncio.gather(*collected)]
        assert set(codes) == {"ENGINE_UNAVAILABLE"}


async def test_stopping_refuses_what_is_in_flight_with_the_parting(write: Write) -> None:
    async with loaded(write(kind="random", context=8192)) as (engine, _):
        stream = ask(engine, "one", max_tokens=8000)
        await anext(stream)
        await anext(stream)
        assert engine.pid is not None
        process = psutil.Process(engine.pid)
        await engine.stop(Refusal("SHUTTING_DOWN", "the service is shutting down"))
        assert (await refused(stream)).code == "SHUTTING_DOWN"
        assert (await refused(ask(engine, "one"))).code == "SHUTTING_DOWN"
        assert not process.is_running()
        await engine.stop()


async def test_the_key_and_the_environment_stay_secret(
    engine: GgufEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.pid is not None
    assert engine._opened is not None
    key = engine._opened.server._http.headers["Authorization"].removeprefix("Bearer ")
    process = psutil.Process(engine.pid)
    assert process.cmdline()[1:] == ["-m", "steerserve.engines.gguf.child"]
    environment = process.environ()
    assert key not in repr(environment)
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert not {name for name in environment if "TOKEN" in name or name.startswith("PYTEST")}
    async with httpx2.AsyncClient(base_url=engine._opened.server._http.base_url) as unknown:
        for path in ("/completion", "/slots", "/tokenize", "/embedding"):
            assert (await unknown.post(path, json={})).status_code in (401, 404)
    connections = process.net_connections()
    assert {c.laddr.ip for c in connections} == {"127.0.0.1"}


async def test_an_interrupt_from_the_terminal_is_the_services_matter(engine: GgufEngine) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGINT)
    os.kill(engine.pid, signal.SIGTERM)
    assert (await answer(ask(engine, "one")))[0] == counted(4, "two")
