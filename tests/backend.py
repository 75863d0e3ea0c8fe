"""The backend of the services of a run: engines of this machine, or with `--backend ray` two replicas on the nodes of a
Ray cluster. Then the tests with the marker `local` are left out, whose reasons say what they need of one engine process
of this machine."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.ray.nodes import started

OPTION = "--backend"
RAY = "ray"
REPLICAS = 2
NODES = (4, 4)
"""The CPUs of the nodes for replicas. Ray starts as many workers on a node in advance."""
TEST_SECONDS = 600
"""Seconds for a test over a cluster, whose loads take minutes on a busy machine."""
SHARE = 0.1
"""The CPUs that a replica takes, as Ray counts. Several services of a run have replicas at once."""


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        choices=("local", RAY),
        default="local",
        help="where the engines of the services run; `ray` leaves out the tests with the markers `local` and `ray`",
    )


def is_ray(config: pytest.Config) -> bool:
    return bool(config.getoption(OPTION) == RAY)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a cluster, leave out the tests that are about engines of this machine, and those with a cluster of their
    own."""
    if not is_ray(config):
        return
    left = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not is_left_out(item)]


def give_time(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a cluster, give the tests without a time limit of their own more time."""
    for item in items if is_ray(config) else []:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def is_left_out(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("local", RAY))


@contextmanager
def secured(folder: Path) -> Iterator[Path]:
    """A token that all members of the clusters must show, as a file. Ray reads the variables when it is imported."""
    file = folder / "token"
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield file


@contextmanager
def over_ray(folder: Path) -> Iterator[None]:
    """Inside the block, the environment lets every service run its engines on a cluster: the one at RAY_ADDRESS if that
    is set, else a new one of this machine, on which no service must leave a replica."""
    if (address := os.environ.get("RAY_ADDRESS")) is not None:
        with joined(address):
            yield
        return
    with secured(folder), started(*NODES) as nodes:
        with joined(nodes.address):
            yield
        assert not nodes.replica_processes(), "a service has left replicas"


@contextmanager
def joined(address: str) -> Iterator[None]:
    settings = {
        "ENGINE_BACKEND": RAY,
        "RAY_ADDRESS": address,
        "ENGINE_REPLICAS": str(REPLICAS),
        "ENGINE_MIN_REPLICAS": str(REPLICAS),
        "ENGINE_CARDS": "0",
        "ENGINE_RESOURCES": json.dumps({"CPU": SHARE}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield
