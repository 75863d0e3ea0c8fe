"""A model with replicas through HTTP: real engines, which a cluster of two nodes starts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from steerserve.control.residency.events import ReplicaChanged
from steerserve.rules.events import Event
from tests import gguf
from tests.local_cluster import LocalCluster
from tests.service import Running, add_model, load_demo, running

pytestmark = pytest.mark.local("starts replicas on a cluster of its own")

PATIENCE = 30.0
BASE = "/api/models/1/replicas"


class Replicated:
    """A service with the demo model on two replicas. `until` waits for changes of the replicas."""

    def __init__(self, live: Running, patience: float = PATIENCE) -> None:
        self.live = live
        self._patience = patience
        self._changed = threading.Event()
        live.service.owners.bus.subscribe(self._take)

    def _take(self, event: Event) -> None:
        if isinstance(event, ReplicaChanged):
            self._changed.set()

    def now(self) -> dict[str, Any]:
        return self.live.data("GET", BASE)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The replicas, once the condition holds for them."""
        while True:
            self._changed.clear()
            now = self.now()
            if condition(now):
                return now
            assert self._changed.wait(self._patience), now

    def whole(self, count: int) -> dict[str, Any]:
        return self.until(lambda now: (now["strength"], now["serving"]) == ("whole", count))


@pytest.fixture(scope="module")
def cluster() -> LocalCluster:
    return LocalCluster()


@pytest.fixture(scope="module")
def two(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    home = tmp_path_factory.mktemp("replicated")
    with running(home, cluster, engine_backend="ray", engine_replicas=2) as live:
        load_demo(live)
        yield Replicated(live)
    assert cluster.is_closed
    assert not cluster.alive


def by_name(now: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {replica["name"]: replica for replica in now["replicas"]}


def test_both_replicas_serve_and_the_same_seed_gives_the_same_text(two: Replicated) -> None:
    now = two.whole(2)
    assert {replica["node"] for replica in now["replicas"]} == {"east", "west"}
    assert len({replica["kind"] for replica in now["replicas"]}) == 1
    health = two.live.data("GET", "/api/health/detailed")
    assert health["status"] == "healthy"
    assert health["inference"]["queue_max_concurrent"] == 16
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda _: two.live.complete("One day", max_tokens=8, seed=7, temperature=1.0), range(8)
        )
        texts = {answer["choices"][0]["text"] for answer in answers}
    assert len(texts) == 1


def test_every_node_is_shown_with_its_memory(two: Replicated) -> None:
    report = two.live.data("GET", "/api/health/gpus")
    assert [node["node"] for node in report["nodes"]] == ["east", "west"]
    assert report["nodes_reason"] is None
    assert all(node["host"]["total_mb"] > 0 for node in report["nodes"])
    parts = report["model_memory"]["parts"]
    assert [part["replica"] for part in parts] == sorted(by_name(two.whole(2)))
    assert all(part["process_mb"] > part["weights_mb"] > 0 for part in parts)


def test_replicas_are_added_replaced_and_taken_away_while_answers_are_written(
    two: Replicated,
) -> None:
    live = two.live
    before = {replica["pid"] for replica in two.whole(2)["replicas"]}
    done = threading.Event()

    def ask() -> int:
        count = 0
        while not done.is_set():
            count += live.complete("One day", max_tokens=4)["usage"]["completion_tokens"]
        return count

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            assert live.data("PUT", BASE, {"count": 3}, 202)["wanted"] == 3
            two.whole(3)
            name = by_name(two.now()).popitem()[0]
            live.data("POST", f"{BASE}/{name}/drain", status=202)
            two.until(lambda now: len(now["replicas"]) == 2)
            name = next(iter(by_name(two.now())))
            replaced = live.data("POST", f"{BASE}/{name}/replace", status=202)
            assert sorted(r["replaces"] or "" for r in replaced["replicas"]) == ["", "", name]
            assert (replaced["wanted"], replaced["strength"]) == (2, "whole")
            assert live.data("GET", "/api/health/ready")["status"] == "healthy"
            after = two.until(
                lambda now: (
                    now["strength"] == "whole"
                    and len(now["replicas"]) == 2
                    and len({r["pid"] for r in now["replicas"]} & before) == 1
                )
            )
            assert after["wanted"] == 2
            live.data("PUT", BASE, {"count": 1}, 202)
            two.until(lambda now: len(now["replicas"]) == 1)
            status, code, _ = live.error("POST", f"{BASE}/{next(iter(by_name(two.now())))}/drain")
            assert (status, code) == (409, "REPLICAS_UNAVAILABLE")
            live.data("PUT", BASE, {"count": 2}, 202)
            two.whole(2)
        finally:
            done.set()
        assert all(asked.result(PATIENCE) for asked in asking)


def test_a_gguf_model_is_refused_and_the_resident_model_stays(
    two: Replicated, tmp_path_factory: pytest.TempPathFactory
) -> None:
    live = two.live
    file = gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    added = add_model(live, file)
    assert live.error("POST", f"/api/models/{added}/load")[:2] == (
        400,
        "UNSUPPORTED_QUANTIZATION",
    )
    assert two.whole(2)["model_id"] == 1


def test_an_unload_ends_every_replica(two: Replicated, cluster: LocalCluster) -> None:
    live = two.live
    live.data("POST", "/api/models/1/unload")
    assert not cluster.alive
    assert live.data("GET", "/api/models/1")["replicas"] is None
    assert live.data("GET", "/api/health/detailed")["inference"]["queue_max_concurrent"] == 8
