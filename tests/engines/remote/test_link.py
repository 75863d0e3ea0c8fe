"""Real engines behind hosts: they answer as engines on this machine do, and nothing is left behind, however a link ends.

Most hosts run in this process. Those that are killed or stopped run in processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import psutil
import pytest
import uvloop

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine, Launcher
from steerserve.engines.remote import certificates, link
from steerserve.engines.remote.channel import PartKind, Patience
from steerserve.engines.remote.facts import Contact, checkpoint_seen
from steerserve.engines.remote.host import EngineHost
from steerserve.engines.remote.link import connect
from steerserve.errors import Refusal
from steerserve.rules.residency import heartbeat
from steerserve.rules.residency.heartbeat import Activity, Bounds, Condition
from steerserve.worker.model.checkpoint import Checkpoint
from tests import asking
from tests.engines.checkpoint.test_process import FIELDS, LONG, Folder, events, text_of, truth
from tests.engines.remote.hosting import Outside, Wanted, runs
from tests.engines.remote.proxy import Proxy, between
from tests.refusals import refused
from tests.waiting import until
from tests.worker.running import words

QUICK = Patience(beat=0.05, lost=2.0, contact=30.0)


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    return Launcher("CRITICAL", "json")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Outside]]:
    """The processes that were nodes of this module."""
    outside: list[Outside] = []
    yield outside
    for process in outside:
        process.end()


@pytest.fixture
def node(nodes: list[Outside]) -> Outside:
    """A node in a process of its own, which tests share until one kills it."""
    if not nodes or not nodes[-1].is_running():
        nodes.append(Outside())
    return nodes[-1]


@dataclass(slots=True)
class Pair:
    """An engine without a model, its host in this process, and the network between them."""

    engine: CheckpointEngine
    host: EngineHost
    contact: Contact
    proxy: Proxy

    async def is_gone(self) -> str:
        """Wait until nothing is left. Returns the reason that the host names."""
        reason = await asyncio.wait_for(self.host.ended(), 60)
        assert not psutil.pid_exists(self.contact.pid or 0)
        return reason


@asynccontextmanager
async def paired(launcher: Launcher) -> AsyncIterator[Pair]:
    identity = certificates.new_identity()
    host = EngineHost(identity.certificate, "CRITICAL", "json", QUICK)
    async with between(await host.open("127.0.0.1")) as (contact, proxy):
        engine = CheckpointEngine(*await connect(contact, identity, QUICK), launcher.prompts())
        try:
            yield Pair(engine, host, contact, proxy)
        finally:
            await host.close()
            await engine.stop()


@pytest.fixture
async def pair(launcher: Launcher) -> AsyncIterator[Pair]:
    async with paired(launcher) as made:
        yield made


async def streaming(pair: Pair, folder: Folder) -> asyncio.Task[list[m.Started | m.Piece]]:
    """A request that has begun to write."""
    await pair.engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    started = asyncio.Event()

    async def read() -> list[m.Started | m.Piece]:
        stream = pair.engine.run(asking.generate(0, [m.Text(words(20))], LONG, m.Follow()))
        seen = []
        async for event in stream:
            seen.append(event)
            started.set()
        return seen

    reading = asyncio.create_task(read())
    await started.wait()
    return reading


# ---------------------------------------------------------------- answering


async def test_an_engine_on_another_node_answers_like_a_local_one(
    launcher: Launcher, node: Outside, folder: Folder, llama: Checkpoint
) -> None:
    identity = certificates.new_identity()
    contact = await node.ask(Wanted(identity.certificate), Contact)
    engine = CheckpointEngine(*await connect(contact, identity), launcher.prompts())
    await until(lambda: engine.heartbeat.sign().activity is Activity.IDLE)
    await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    found = await asyncio.gather(*[events(engine, words(n)) for n in (5, 20, 40)])
    for n, answer in zip((5, 20, 40), found, strict=True):
        assert text_of(answer) == truth(llama, words(n))
    assert engine.pid == contact.pid
    await engine.stop()
    assert await engine.ended == f"the engine process ended on {contact.facts.name}"
    assert await node.said(str) == "the engine process ended"
    assert not psutil.pid_exists(contact.pid or 0)


def test_a_link_works_in_the_event_loop_of_the_service(launcher: Launcher, folder: Folder) -> None:
    async def answer() -> str:
        async with paired(launcher) as pair:
            await pair.engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
            answer = text_of(await events(pair.engine, words(20)))
            await pair.engine.stop()
            assert await pair.is_gone() == "the engine process ended"
            return answer

    assert uvloop.run(answer())


async def test_an_engine_that_has_ended_names_its_own_reason(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may tell the end too, before the connection is closed."""
    process = pair.engine._process
    assert isinstance(process, link.RemoteProcess)
    take = process.take_word

    def told_by_both(kind: PartKind, payload: bytes) -> None:
        take(kind, payload)
        if kind is PartKind.END:
            pair.engine.lose("the cluster has lost its replica")

    monkeypatch.setattr(process, "take_word", told_by_both)
    os.kill(pair.contact.pid or 0, signal.SIGKILL)
    reason = await asyncio.wait_for(pair.engine.ended, 60)
    assert reason.startswith("the engine process was ended by signal 9")


async def test_an_edit_larger_than_the_window_reaches_an_engine_that_is_busy(
    pair: Pair, folder: Folder
) -> None:
    """While the engine loads, it reads no command. The rest of a large command waits at the sender, and beats go on."""
    loading = asyncio.create_task(
        pair.engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    )
    values = {"sae": dict.fromkeys(range(400_000), 1.5)}
    await pair.engine.change(m.setting(steering=m.Steering(1, True, values)))
    await loading
    assert text_of(await events(pair.engine, words(20)))


async def test_a_slow_network_delays_tokens_and_nothing_else(
    pair: Pair, folder: Folder, llama: Checkpoint
) -> None:
    await pair.engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    pair.proxy.delay = 0.02
    assert text_of(await events(pair.engine, words(20))) == truth(llama, words(20))


async def test_a_node_with_another_version_is_refused() -> None:
    identity = certificates.new_identity()
    host = EngineHost(identity.certificate, "CRITICAL", "json", QUICK)
    contact = await host.open("127.0.0.1")
    other = replace(contact, facts=replace(contact.facts, steerserve="0.0.1"))
    with pytest.raises(Refusal, match=r"has steerserve 0\.0\.1") as refused:
        await connect(other, identity)
    assert refused.value.code == "ENGINE_UNAVAILABLE"
    await host.close()
    assert not psutil.pid_exists(contact.pid or 0)


async def test_a_node_says_whether_it_sees_the_same_files(folder: Folder) -> None:
    path = folder("llama")
    host = EngineHost("", "CRITICAL", "json")
    assert await host.checkpoint_seen(str(path)) == checkpoint_seen(str(path))
    assert await host.checkpoint_seen(str(path)) != checkpoint_seen(str(path.parent))
    assert await host.checkpoint_seen(str(path / "nowhere")) is None


# ---------------------------------------------------------------- every way to end


async def cut(pair: Pair) -> str:
    pair.proxy.cut()
    return "the connection to the other node closed on"


async def split(pair: Pair) -> str:
    pair.proxy.is_split = True
    return "nothing came from the other node for 2 s on"


async def engine_killed(pair: Pair) -> str:
    psutil.Process(pair.contact.pid).kill()
    return "the engine process was ended by signal 9 on"


async def host_closed(pair: Pair) -> str:
    await pair.host.close()
    return "the connection to the other node closed on"


async def lost(pair: Pair) -> str:
    pair.engine.lose("a reason of its own")
    return "a reason of its own"


async def lost_while_split(pair: Pair) -> str:
    pair.proxy.is_split = True
    pair.engine.lose("another reason of its own")
    return "another reason of its own"


WAYS: list[Callable[[Pair], Awaitable[str]]] = [
    cut,
    split,
    engine_killed,
    host_closed,
    lost,
    lost_while_split,
]


@pytest.mark.parametrize("way", WAYS)
async def test_each_end_of_a_link_ends_the_requests_and_leaves_nothing(
    way: Callable[[Pair], Awaitable[str]], launcher: Launcher, folder: Folder
) -> None:
    this = psutil.Process()
    folder("llama")
    async with paired(launcher) as first:  # the fork server and its files are there
        await first.engine.stop()
    files = this.num_fds()
    async with paired(launcher) as pair:
        reading = await streaming(pair, folder)
        expected = await way(pair)
        assert (await refused(asyncio.wait_for(reading, 60))).code == "ENGINE_UNAVAILABLE"
        assert expected in await asyncio.wait_for(pair.engine.ended, 60)
        await pair.is_gone()
    await until(lambda: this.num_fds() <= files)


async def test_a_stopped_engine_is_seen_stopped_and_can_be_ended(pair: Pair) -> None:
    await until(lambda: pair.engine.heartbeat.sign().activity is Activity.IDLE)
    process = psutil.Process(pair.contact.pid)
    process.suspend()
    await until(lambda: pair.engine.heartbeat.sign().is_stopped)
    process.resume()
    await until(lambda: not pair.engine.heartbeat.sign().is_stopped)
    process.suspend()
    await until(lambda: pair.engine.heartbeat.sign().is_stopped)
    pair.engine.lose("it is stopped")
    assert await pair.is_gone() == "the engine process was ended by signal 9"


async def test_a_short_split_is_seen_and_survived(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent meanwhile is only late, as after packets that were lost."""
    monkeypatch.setattr(link, "CUT_SECONDS", 0.2)
    held = asyncio.Event()
    pair.proxy.held = held
    await until(lambda: pair.engine.heartbeat.sign().is_cut)
    held.set()
    pair.proxy.held = None
    await until(lambda: not pair.engine.heartbeat.sign().is_cut)
    assert await pair.engine.ask(m.Measure())


async def test_nobody_comes_and_the_host_ends() -> None:
    identity = certificates.new_identity()
    quick = replace(QUICK, contact=0.2)
    host = EngineHost(identity.certificate, "CRITICAL", "json", quick)
    contact = await host.open("127.0.0.1")
    assert await host.ended() == "no peer came within 0.2 s"
    assert not psutil.pid_exists(contact.pid or 0)
    with pytest.raises(Refusal, match="cannot be reached"):
        await connect(contact, identity)


async def test_a_stopped_host_is_cut_off_and_ends_when_it_goes_on(
    launcher: Launcher, node: Outside
) -> None:
    identity = certificates.new_identity()
    contact = await node.ask(Wanted(identity.certificate), Contact)
    patience = replace(QUICK, lost=4.0)
    engine = CheckpointEngine(*await connect(contact, identity, patience), launcher.prompts())
    node.signal(signal.SIGSTOP)
    await until(lambda: engine.heartbeat.sign().is_cut)
    silent = heartbeat.silence(None, engine.heartbeat.sign(), 0.0)
    for look in (1.0, 2.0):
        silent = heartbeat.silence(silent, engine.heartbeat.sign(), look)
    assert heartbeat.condition(silent, Bounds(300, 1800)) is Condition.STALLED
    assert "nothing came from the other node" in await asyncio.wait_for(engine.ended, 60)
    node.signal(signal.SIGCONT)
    await node.said(str)
    assert not psutil.pid_exists(contact.pid or 0)


async def test_a_killed_host_leaves_no_engine(launcher: Launcher, node: Outside) -> None:
    identity = certificates.new_identity()
    contact = await node.ask(Wanted(identity.certificate), Contact)
    engine = CheckpointEngine(*await connect(contact, identity), launcher.prompts())
    processes = node.tree()
    assert contact.pid in [process.pid for process in processes]
    node.signal(signal.SIGKILL)
    assert "closed on" in await asyncio.wait_for(engine.ended, 60)
    await until(lambda: not any(runs(process) for process in processes))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_control_plane_that_is_killed_or_stopped_leaves_no_engine(
    number: signal.Signals,
) -> None:
    control = Outside("peer")
    try:
        host = EngineHost(await control.said(str), "CRITICAL", "json", QUICK)
        contact = await host.open("127.0.0.1")
        assert await control.ask(contact, str) == "connected"
        control.signal(number)
        assert await asyncio.wait_for(host.ended(), 60)
        assert not psutil.pid_exists(contact.pid or 0)
    finally:
        control.end()
