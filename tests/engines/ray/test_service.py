"""The whole service on a Ray cluster: a load on two nodes, answers, a lost replica, and an end that leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steerserve import demo
from tests.engines.ray.nodes import Nodes
from tests.nouns.replicas.test_replicated_model import BASE, Replicated, by_name
from tests.openai.steering import chat, words
from tests.openai.test_interventions import SET, edits, inline
from tests.service import add_sae, load_demo, running

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


def test_the_service_serves_a_model_on_the_nodes_of_a_cluster(nodes: Nodes, tmp_path: Path) -> None:
    settings = {"engine_backend": "ray", "ray_address": nodes.address, "engine_replicas": 2}
    with running(tmp_path, engine_cards=0, **settings) as live:
        model_id = load_demo(live)
        replicated = Replicated(live)
        victim = replicated.whole(2)["replicas"][0]
        # the first survey starts a process on every node, and each answer waits 5 s for it
        while "have not answered" in str(
            (report := live.data("GET", "/api/health/gpus"))["nodes_reason"]
        ):
            pass
        assert report["nodes_reason"] is None
        assert len(report["nodes"]) == 3
        text = live.complete("One day", max_tokens=8, seed=7)["choices"][0]["text"]
        os.kill(victim["pid"], signal.SIGKILL)
        replicated.until(lambda now: by_name(now)[victim["name"]]["state"] != "serving")
        assert live.data("GET", "/api/health/ready")["status"] == "degraded"
        assert live.complete("One day", max_tokens=8, seed=7)["choices"][0]["text"] == text
        back = by_name(replicated.whole(2))[victim["name"]]
        assert (back["restarts"], back["pid"] != victim["pid"]) == (1, True)
        live.data("POST", f"/api/models/{model_id}/unload")
    assert not nodes.replica_processes()


def test_every_replica_makes_the_same_edits_and_reports_the_same(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Two replicas answer one after the other, and the second one started with the live edits."""
    settings = {"engine_backend": "ray", "ray_address": nodes.address, "engine_replicas": 2}
    with running(tmp_path, engine_cards=0, **settings) as live:
        load_demo(live)
        sae = demo.saes()[0]
        live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", {"layer": sae.layer})
        direction = inline(live, 3)
        pushed = {"op": "add", "vector": direction, "value": 60, "positions": "output"}
        gated = {**SET, "when": {"vector": direction, "above": 0, "hold": "rest"}}
        live.data("PUT", "/api/interventions", {"edits": [gated]})
        replicated = Replicated(live)

        def answers() -> list[dict[str, Any]]:
            """The text and the report of a request with its own edits, and of one with the live edits."""
            own = {"seed": 5, "temperature": 1, "return_steering_report": True}
            asked = [chat(live, **own, **edits(gated, pushed)), chat(live, **own)]
            return [{"text": words(one)} | one.json()["steering_report"] for one in asked]

        def drain(name: str) -> None:
            live.data("POST", f"{BASE}/{name}/drain", status=202)
            replicated.until(lambda now: name not in by_name(now))

        first, second = by_name(replicated.whole(2))
        drain(first)
        before = answers()
        live.data("PUT", BASE, {"count": 2}, 202)
        replicated.whole(2)
        drain(second)
        assert answers() == before
        assert all(one["edits"][0]["acted"] > 0 for one in before)
        assert before[0]["text"] != before[1]["text"]
        assert before[0]["state"] != before[1]["state"]
    assert not nodes.replica_processes()


SHARED = ("tests/openai/test_dial.py", "tests/openai/test_sae_steering.py")
"""Files whose tests share one service, and load no model."""


def test_tests_of_the_local_backend_pass_over_a_cluster(nodes: Nodes) -> None:
    """The short form of `make test-both`."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "--backend", "ray", "-m", "not slow", *SHARED],
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": nodes.address},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert not nodes.replica_processes()
