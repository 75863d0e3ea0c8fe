"""Replicas on a Ray cluster of several nodes on this machine: real engines, and every way in which one ends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.ray import cluster as clusters
from steerserve.engines.ray import placer_process
from steerserve.engines.ray.cluster import RayCluster
from steerserve.engines.remote.facts import checkpoint_seen
from steerserve.errors import Refusal
from tests import asking
from tests.engines.checkpoint.test_process import GREEDY, LONG, events, text_of
from tests.engines.ray.conftest import STORY, Joining, environment_of, loaded, placed
from tests.engines.ray.nodes import Nodes, ReplicaProcesses, arguments_of, kill, replica_of
from tests.refusals import refused

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


async def test_a_replica_serves_like_an_engine_here(cluster: RayCluster, nodes: Nodes) -> None:
    engine, replica = await placed(cluster, nodes)
    await loaded(engine)
    assert engine.node == os.uname().nodename
    assert engine.address == nodes.nodes[1].node_ip_address
    assert engine.pid in {process.pid for process in replica.all()}
    assert text_of(await events(engine, STORY, GREEDY)).startswith(" caught three silver fish")
    # neither the prompt nor the text of the model is in any log of Ray
    logs = [file for file in nodes.logs().rglob("*") if file.is_file()]
    assert len(logs) > 5
    assert not [
        file for file in logs if b"sentinel" in file.read_bytes() or b"seagull" in file.read_bytes()
    ]
    await engine.stop()
    await replica.gone()


async def test_no_secret_reaches_a_node(
    joined: Joining, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    secret = token.read_text()  # noqa: ASYNC240 -- a test may wait for a file
    monkeypatch.setenv("API_KEYS", "sentinel-of-keys")
    monkeypatch.setenv("hub_token", "sentinel-of-hub")
    async with joined() as cluster:
        engine, replica = await placed(cluster, nodes)
        monkeypatch.undo()
        placer = environment_of(cluster.placer_pid)
        assert "RAY_AUTH_TOKEN_PATH" in placer
        assert "sentinel" not in str(placer)
        for process in replica.all():
            if process != replica.actor:
                # code of a model's repository may run in an engine
                assert not [name for name in environment_of(process.pid) if name.startswith("RAY_")]
        arguments = [" ".join(arguments_of(each)) for each in psutil.process_iter()]
        assert not [line for line in arguments if secret in line or "PRIVATE KEY" in line]
        await engine.stop()


@pytest.mark.slow
async def test_replicas_are_spread_over_nodes_or_packed(joined: Joining, nodes: Nodes) -> None:
    for placement, homes in (("spread", 2), ("pack", 1)):
        async with joined(engine_placement=placement) as cluster:
            pairs = [await placed(cluster, nodes), await placed(cluster, nodes)]
            parents = {replica.actor.ppid() for _, replica in pairs}
            assert len(parents) == homes, placement
            await asyncio.gather(*(engine.stop() for engine, _ in pairs))
            await asyncio.gather(*(replica.gone() for _, replica in pairs))


@pytest.mark.slow
async def test_a_replica_never_goes_to_a_node_that_is_left_out(
    joined: Joining, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined() as cluster:
        rooms = [node for node in await cluster.nodes() if node.resources.get("CPU")]
        ids = [node.id for node in rooms]
        assert len(set(ids)) == 2
        # resources of every name count, as ENGINE_RESOURCES may name them
        assert all(any(name.startswith("node:") for name in node.resources) for node in rooms)
        homes = []
        for left_out in (*ids, *ids):
            engine = await cluster.launch(barred={left_out: "a: it has other files in /m"})
            (process,) = nodes.replica_processes()
            replica = replica_of(process)
            homes.append(replica.actor.ppid())
            await engine.stop()
            await replica.gone()
        # each of the two nodes was left out in turn
        assert homes[0] != homes[1]
        assert homes == homes[:2] * 2
        monkeypatch.setattr(clusters, "PLACE_SECONDS", 2.0)
        refusal = await refused(
            cluster.launch(barred=dict.fromkeys(ids, "a: it has other files in /m"))
        )
        assert refusal.code == "ENGINE_UNAVAILABLE"
        assert "nodes that were left out: a: it has other files in /m" in refusal.message
        assert "Give them the files" in refusal.message


@pytest.mark.slow
async def test_nodes_with_other_files_are_found_when_a_replica_comes_there(
    joined: Joining, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    async with joined() as cluster:
        engine = await cluster.launch(files={folder: checkpoint_seen(folder)})
        await engine.stop()
        monkeypatch.setattr(clusters, "PLACE_SECONDS", 30.0)
        refusal = await refused(cluster.launch(files={folder: "the digest of other files"}))
        # both nodes were tried, each once
        here = f"{os.uname().nodename}: it has other files in {folder}"
        assert f"nodes that were left out: {here}; {here}. " in refusal.message
        while nodes.replica_processes():
            await asyncio.sleep(0.05)


def quiet_port() -> int:
    """A free port below those that the system gives to connections, so that it stays free while other tests run."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("a hundred ports are taken")


async def test_a_replica_waits_for_the_service_on_a_port_of_the_range(
    joined: Joining, nodes: Nodes
) -> None:
    port = quiet_port()
    async with joined(engine_ports=f"{port}") as cluster:
        engine, _ = await placed(cluster, nodes)
        await engine.stop()
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((nodes.nodes[1].node_ip_address, port))
            taken.listen()
            refusal = await refused(cluster.launch())
        assert refusal.code == "ENGINE_UNAVAILABLE"
        assert f"no port from {port} to {port} is free" in refusal.message
        assert f"on {os.uname().nodename} (ENGINE_PORTS)" in refusal.message


End = Callable[[ReplicaProcesses, int], None]
ENDS: dict[str, End] = {
    "actor": lambda replica, _: kill(replica.actor),
    "replica process": lambda replica, _: kill(replica.process),
    "engine": lambda _, engine: os.kill(engine, signal.SIGKILL),
    "stopped replica process": lambda replica, _: replica.process.send_signal(signal.SIGSTOP),
    "stopped engine": lambda _, engine: os.kill(engine, signal.SIGSTOP),
    "stopped actor": lambda replica, _: replica.actor.send_signal(signal.SIGSTOP),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_replica_that_dies_or_stands_still_leaves_nothing(
    cluster: RayCluster, nodes: Nodes, name: str
) -> None:
    engine, replica = await placed(cluster, nodes)
    await loaded(engine)
    assert engine.pid is not None
    generation = asking.generate(0, [m.Text("The boat")], LONG, m.Follow())
    stream = engine.run(generation)
    assert isinstance(await anext(stream), m.Started)
    ENDS[name](replica, engine.pid)
    if name.startswith("stopped"):
        engine.lose("the engine stands still")

    async def asking_on() -> None:
        # the engine may have written all of a text before it learns of the end
        async for _ in stream:
            pass
        while True:
            async for _ in engine.run(generation):
                pass

    assert (await refused(asking_on())).code == "ENGINE_UNAVAILABLE"
    await asyncio.wait_for(asyncio.shield(engine.ended), 30)
    await replica.gone()


async def test_the_placer_may_die_while_replicas_serve(cluster: RayCluster, nodes: Nodes) -> None:
    engine, replica = await placed(cluster, nodes)
    await loaded(engine)
    before = cluster.placer_pid
    os.kill(before, signal.SIGKILL)
    assert text_of(await events(engine, STORY, GREEDY))
    assert await cluster.nodes()
    assert cluster.placer_pid != before
    # the new placer finds the actors of the former one
    replica.process.send_signal(signal.SIGSTOP)
    engine.lose("the engine stands still")
    await engine.ended
    await replica.gone()


@pytest.mark.slow
async def test_a_cluster_without_room_refuses_with_a_sentence(
    joined: Joining, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "PLACE_SECONDS", 2.0)
    async with joined(engine_resources={"CPU": 1000}) as cluster:
        with pytest.raises(Refusal, match="large enough for a replica with CPU 1000"):
            await cluster.launch()
    monkeypatch.setattr(clusters, "PLACE_SECONDS", 60.0)
    async with joined(engine_resources={"CPU": 4}) as cluster:
        engines = [await cluster.launch(), await cluster.launch()]
        monkeypatch.setattr(clusters, "PLACE_SECONDS", 2.0)
        with pytest.raises(Refusal, match="has room for a replica with CPU 4"):
            await cluster.launch()
        await asyncio.gather(*(engine.stop() for engine in engines))
        monkeypatch.setattr(clusters, "PLACE_SECONDS", 60.0)
        # the actor that waited for room is gone, so the room is free
        again = [await cluster.launch(), await cluster.launch()]
        await asyncio.gather(*(engine.stop() for engine in again))


async def test_a_start_that_is_given_up_leaves_nothing(cluster: RayCluster, nodes: Nodes) -> None:
    starting = asyncio.create_task(cluster.launch())
    while not (processes := nodes.replica_processes()):
        await asyncio.sleep(0.02)
    replica = replica_of(processes[0])
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await replica.gone()


async def test_replicas_end_with_their_service(nodes: Nodes, tmp_path: Path) -> None:
    before = {process.pid for process in nodes.replica_processes()}
    file = tmp_path / "service.py"
    file.write_text(SERVICE)
    service = await asyncio.create_subprocess_exec(
        sys.executable, str(file), nodes.address, stdout=subprocess.PIPE
    )
    assert service.stdout is not None
    while (line := await service.stdout.readline()) != b"serves\n":
        assert line, "the service has ended"
    (process,) = [process for process in nodes.replica_processes() if process.pid not in before]
    (placer,) = psutil.Process(service.pid).children()[:1]
    children = psutil.Process(service.pid).children(recursive=True)
    assert placer in children
    replica = replica_of(process)
    service.kill()
    await service.wait()
    await replica.gone()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


SERVICE = """
import asyncio, sys
from steerserve.engines.ray.cluster import RayCluster
from steerserve.settings import Settings

async def main():
    settings = Settings(_env_file=None, engine_backend="ray", ray_address=sys.argv[1], engine_cards=0)
    engine = await RayCluster(settings).launch()
    print("serves", flush=True)
    await engine.ended

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_nodes_tell_their_facts(cluster: RayCluster, nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"12345")
    seen = await cluster.nodes(str(tmp_path), str(tmp_path / "missing"))
    assert len(seen) == 3
    for node in seen:
        assert node.error is None
        assert node.facts is not None
        assert node.facts.python == sys.version.split()[0]
        assert node.folders[str(tmp_path)]
        assert node.folders[str(tmp_path / "missing")] is None
    assert sorted(node.resources.get("CPU", 0) for node in seen) == [0, 4, 4]


async def test_an_address_without_a_cluster_is_refused(
    joined: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placer_process, "JOIN_SECONDS", 8.0)
    async with joined(address="127.0.0.1:9") as cluster:
        with pytest.raises(Refusal, match="Failed to connect to"):
            await cluster.nodes()


async def test_a_service_with_another_token_is_not_let_in(
    joined: Joining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placer_process, "JOIN_SECONDS", 8.0)
    other = tmp_path / "token"
    other.write_text("0" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(other))
    async with joined() as cluster:
        with pytest.raises(Refusal, match="token is missing or incorrect"):
            await cluster.launch()
