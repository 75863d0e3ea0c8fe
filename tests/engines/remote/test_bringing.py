"""Files of checkpoints on other nodes: which are looked for, which are fetched, and what is left of a fetch that ends.

The hosts run in this process, beside engines that do nothing. The downloads are real, from a loopback hub.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.checkpoint.prompts import TokensGiven
from steerserve.engines.remote import certificates, checkpoints
from steerserve.engines.remote.host import EngineHost
from steerserve.engines.remote.link import connect
from steerserve.engines.remote.node_engine import NodeEngine
from steerserve.engines.remote.presence import FETCHER
from steerserve.errors import Refusal
from steerserve.rules.residency.heartbeat import Sign
from steerserve.settings import Settings
from tests.engines.checkpoint.test_process import FIELDS
from tests.engines.remote.hosting import runs
from tests.hub.conftest import PATIENCE, held
from tests.loopback_hub import LoopbackHub

WEIGHTS = os.urandom(400_000)
FILES = {
    "config.json": b'{"architectures": ["TinyForCausalLM"], "model_type": "tiny"}',
    "model.safetensors": WEIGHTS,
    "layers/3/sae.safetensors": WEIGHTS[:1000],
}
TOKEN = "hf_sentinelOfThisTest"
GET = "GET /acme/tiny/resolve/"


class IdleProcess:
    """An engine that does nothing until it is killed. `far` is its end of the socket."""

    def __init__(self, far: socket.socket) -> None:
        self.far = far
        self.pid: int | None = None
        self.exitcode: int | None = None
        self._has_ended = asyncio.Event()

    def kill(self) -> None:
        if self.exitcode is None:
            self.exitcode = -9
            self.far.close()
            self._has_ended.set()

    async def wait(self, _seconds: float | None = None) -> None:
        await self._has_ended.wait()

    def sign(self) -> Sign:
        return Sign()

    def reason(self) -> str:
        return "the engine was killed"


@dataclass
class Node:
    """A node with a cache of its own, and the service that has the files."""

    settings: Settings
    cache: Path
    name: str = "gpu-2"

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[tuple[NodeEngine, IdleProcess]]:
        near, far = socket.socketpair()
        far.setblocking(False)
        process = IdleProcess(far)

        async def start() -> Any:
            return process, *await asyncio.open_connection(sock=near)

        identity = certificates.new_identity()
        host = EngineHost(identity.certificate, "CRITICAL", "json", start=start)
        contact = await host.open("127.0.0.1")
        caches = {name: str(self.cache) for name in ("MODEL_CACHE_DIR", "SAE_CACHE_DIR")}
        contact = replace(contact, facts=replace(contact.facts, name=self.name, caches=caches))
        engine = NodeEngine(*await connect(contact, identity), TokensGiven(), self.settings)
        try:
            yield engine, process
        finally:
            engine.lose("the test has ended")
            await engine.ended
            await host.close()

    def files(self) -> dict[str, bytes]:
        """What is in the cache of the node, without hidden files."""
        paths = [path for path in self.cache.rglob("*") if path.is_file()]
        named = {path.relative_to(self.cache).as_posix(): path.read_bytes() for path in paths}
        return {name: body for name, body in named.items() if not name.startswith(".")}


@pytest.fixture
def loopback() -> Iterator[LoopbackHub]:
    with LoopbackHub() as hub:
        hub.add("acme/tiny", FILES, tokens=(TOKEN,))
        yield hub


@pytest.fixture
def make(loopback: LoopbackHub, tmp_path: Path) -> Callable[..., Node]:
    def made(**values: Any) -> Node:
        settings = {
            "steerserve_home": tmp_path / "home",
            "hf_endpoint": loopback.url,
            "hub_token": TOKEN,
            "disk_reserve_mb": 0,
            "download_attempts": 1,
        }
        return Node(Settings(_env_file=None, **settings | values), tmp_path / "node")  # type: ignore[arg-type]

    return made


@pytest.fixture
def node(make: Callable[..., Node]) -> Node:
    return make()


@pytest.fixture
def folder(node: Node, loopback: LoopbackHub) -> Path:
    """The folder of the download on the machine of the service."""
    place = node.settings.model_cache_dir / "acme--tiny" / loopback.repos["acme/tiny"].sha
    for name, body in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(body)
    return place


def there(folder: Path, *names: str) -> dict[str, bytes]:
    """The files of the download as a node should have them."""
    return {f"acme--tiny/{folder.name}/{name}": FILES[name] for name in names or FILES}


async def refused(
    engine: NodeEngine, path: Path, report: Callable[[m.Progress], object] = lambda _: None
) -> Refusal:
    with pytest.raises(Refusal) as raised:
        await engine.bring(str(path), lambda told: report(told) and None)
    return raised.value


def fetchers() -> list[psutil.Process]:
    """The running downloaders of hosts in this process."""
    running = []
    for each in psutil.Process().children():
        with suppress(psutil.Error):
            if FETCHER in each.cmdline():
                running.append(each)
    return running


# ---------------------------------------------------------------- looking


async def test_files_that_are_there_are_not_fetched_and_no_token_is_sent(
    node: Node, folder: Path, loopback: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(checkpoints, "fetch_task", lambda *_: asked.append(1))
    for name, body in there(folder).items():
        (node.cache / name).parent.mkdir(parents=True, exist_ok=True)
        (node.cache / name).write_bytes(body)
    async with node.engine() as (engine, _):
        await engine.bring(str(folder))
    assert (asked, loopback.seen) == ([], [])


async def test_files_that_are_no_download_are_refused_with_the_node_and_the_path(
    node: Node, tmp_path: Path
) -> None:
    """The host sees the same disk, so the files are in a cache folder that is another one on the node."""
    local = node.settings.sae_cache_dir / "own" / "sae.safetensors"
    local.parent.mkdir(parents=True)
    local.write_bytes(b"x")
    async with node.engine() as (engine, _):
        refusal = await refused(engine, local)
    assert refusal.code == "INVALID_LOCAL_PATH"
    assert refusal.details == {"node": "gpu-2", "path": str(local)}
    assert "gpu-2" in refusal.message
    assert str(local) in refusal.message


async def test_an_engine_that_ends_refuses_to_bring_files(node: Node, folder: Path) -> None:
    async with node.engine() as (engine, _):
        engine.lose("the node has lost power")
        assert "the node has lost power" in (await refused(engine, folder)).message


async def test_commands_name_the_paths_of_the_node(node: Node, folder: Path) -> None:
    async with node.engine() as (engine, process):
        fields = FIELDS | {"path": str(folder)}
        loading = asyncio.create_task(engine.load(lambda _: None, **fields))
        loop = asyncio.get_running_loop()
        size = m.LENGTH.unpack(await loop.sock_recv(process.far, m.LENGTH.size))[0]
        command = m.decode_command(await loop.sock_recv(process.far, size))
        loading.cancel()
        await asyncio.wait([loading])
    assert isinstance(command, m.Load)
    assert command.path == str(node.cache / "acme--tiny" / folder.name)


# ---------------------------------------------------------------- fetching


@pytest.mark.ray
@pytest.mark.slow
async def test_a_node_fetches_the_files_of_the_commit_that_it_lacks(
    node: Node, folder: Path, loopback: LoopbackHub
) -> None:
    kept = node.cache / next(iter(there(folder, "config.json")))
    kept.parent.mkdir(parents=True)
    kept.write_bytes(FILES["config.json"])
    told: list[m.Progress] = []
    async with node.engine() as (engine, _):
        await engine.bring(str(folder), told.append)
        assert node.files() == there(folder)
        assert {one.stage for one in told} == {m.FETCHING_FILES}
        assert {seen.token for seen in loopback.asked(GET)} == {TOKEN}
        asked = {seen.path.rpartition("/")[2] for seen in loopback.asked(GET)}
        assert asked == {"config.json", "model.safetensors", "sae.safetensors"}
        before = len(loopback.seen)
        await engine.bring(str(folder))
        assert len(loopback.seen) == before
    assert not fetchers()


@pytest.mark.ray
@pytest.mark.slow
async def test_an_sae_of_a_repository_is_fetched_without_the_others(
    node: Node, folder: Path, loopback: LoopbackHub
) -> None:
    async with node.engine() as (engine, _):
        await engine.bring(str(folder / "layers" / "3" / "sae.safetensors"))
    assert node.files() == there(folder, "layers/3/sae.safetensors")


@pytest.mark.ray
@pytest.mark.slow
async def test_two_replicas_of_a_node_fetch_once(
    node: Node, folder: Path, loopback: LoopbackHub
) -> None:
    async with node.engine() as (one, _), node.engine() as (other, _):
        await asyncio.gather(one.bring(str(folder)), other.bring(str(folder)))
    assert node.files() == there(folder)
    assert len(loopback.asked(f"{GET}{folder.name}/model.safetensors")) == 1


@pytest.mark.ray
@pytest.mark.slow
async def test_a_fetch_that_is_killed_leaves_no_half_written_file_and_the_next_goes_on(
    node: Node, folder: Path, loopback: LoopbackHub
) -> None:
    fault = loopback.fault(f"{GET}{folder.name}/model.safetensors", hold=100_000, times=1)
    async with node.engine() as (engine, _):
        has_bytes = asyncio.Event()
        bringing = asyncio.create_task(
            refused(engine, folder, lambda told: told.percent > 1 and has_bytes.set())
        )
        await asyncio.wait_for(has_bytes.wait(), PATIENCE)
        (fetcher,) = fetchers()
        others = fetcher.children(recursive=True)
        fetcher.kill()
        refusal = await bringing
        assert (refusal.code, refusal.details["node"]) == ("DOWNLOAD_FAILED", "gpu-2")
        await asyncio.to_thread(psutil.wait_procs, others, PATIENCE)
        assert not any(runs(other) for other in others)
        assert not any(f"/{folder.name}/" in name for name in node.files())
        fault.release.set()
        loopback.heal()
        await engine.bring(str(folder))
    assert node.files() == there(folder)
    assert loopback.asked(f"{GET}{folder.name}/model.safetensors")[-1].range is not None


@pytest.mark.ray
@pytest.mark.slow
async def test_a_fetch_ends_with_its_engine(
    node: Node, folder: Path, loopback: LoopbackHub
) -> None:
    fault = loopback.fault(f"{GET}{folder.name}/model.safetensors", hold=100_000, times=1)
    async with node.engine() as (engine, _):
        bringing = asyncio.create_task(refused(engine, folder))
        await held(fault.held)
        running = fetchers()
        engine.lose("nobody needs it any more")
        assert (await bringing).code == "ENGINE_UNAVAILABLE"
        await asyncio.to_thread(psutil.wait_procs, running, PATIENCE)
        assert not fetchers()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "values", "code"),
    [
        ({"status": 503}, {}, "HUB_UNAVAILABLE"),
        ({}, {"disk_reserve_mb": 1 << 24}, "INSUFFICIENT_DISK"),
        ({"match": "resolve", "status": 400}, {}, "DOWNLOAD_FAILED"),
    ],
)
async def test_the_refusal_of_a_fetch_names_the_node(
    make: Callable[..., Node],
    folder: Path,
    loopback: LoopbackHub,
    fault: dict[str, Any],
    values: dict[str, Any],
    code: str,
) -> None:
    node = make(**values)
    if fault:
        loopback.fault(fault.get("match", ""), status=fault["status"])
    async with node.engine() as (engine, _):
        refusal = await refused(engine, folder)
    assert refusal.code == code
    assert refusal.details["node"] == "gpu-2"
    assert "node gpu-2 cannot fetch acme/tiny" in refusal.message
    assert TOKEN not in msgspec.json.encode([refusal.message, refusal.details]).decode()


@pytest.mark.ray
@pytest.mark.slow
async def test_files_with_another_content_than_the_hub_lists_are_refused(
    node: Node, folder: Path, loopback: LoopbackHub
) -> None:
    wrong = bytes(len(WEIGHTS))
    loopback.fault(f"{GET}{folder.name}/model.safetensors", status=200, body=wrong)
    async with node.engine() as (engine, _):
        assert (await refused(engine, folder)).code == "DOWNLOAD_FAILED"
    assert not any(name.endswith("/model.safetensors") for name in node.files())
