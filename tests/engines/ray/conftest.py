"""Fixtures: a Ray cluster of three nodes on this machine, whose members must show a token, and its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steerserve.demo import MODEL_DIR
from steerserve.engines.checkpoint.client import CheckpointEngine
from steerserve.engines.ray.cluster import RayCluster
from steerserve.settings import Settings
from tests.backend import secured
from tests.engines.checkpoint.test_process import FIELDS
from tests.engines.ray.nodes import Nodes, ReplicaProcesses, replica_of, started

STORY = "the sentinel of a user walked down to the harbour and"


@pytest.fixture(scope="session", autouse=True)
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file of the token of all clusters. Ray reads the variables when it is imported."""
    with secured(tmp_path_factory.mktemp("ray")) as file:
        yield file


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray")
    with started(4, 4) as cluster:
        yield cluster


def settings(address: str, **changes: Any) -> Settings:
    fields = {
        "engine_backend": "ray",
        "ray_address": address,
        "engine_cards": 0,
        "log_level": "INFO",
    }
    return Settings(_env_file=None, **fields | changes)  # type: ignore[arg-type]


Joining = Callable[..., AbstractAsyncContextManager[RayCluster]]


@asynccontextmanager
async def client_of(nodes: Nodes, **changes: Any) -> AsyncIterator[RayCluster]:
    """A client of a cluster, which is closed after the block."""
    cluster = RayCluster(settings(changes.pop("address", nodes.address), **changes))
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.fixture
def joined(nodes: Nodes) -> Joining:
    return partial(client_of, nodes)


@pytest.fixture
async def cluster(joined: Joining) -> AsyncIterator[RayCluster]:
    async with joined() as client:
        yield client


async def placed(cluster: RayCluster, nodes: Nodes) -> tuple[CheckpointEngine, ReplicaProcesses]:
    """A new engine without a model, and its processes."""
    before = {process.pid for process in nodes.replica_processes()}
    engine = await cluster.launch()
    (process,) = [process for process in nodes.replica_processes() if process.pid not in before]
    return engine, replica_of(process)


async def loaded(engine: CheckpointEngine) -> CheckpointEngine:
    await engine.load(lambda _: None, path=str(MODEL_DIR), **FIELDS)
    return engine


def environment_of(pid: int) -> dict[str, str]:
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(line.partition("=")[::2] for line in raw.split("\0") if line)
