"""The whole service on a Ray cluster: a load on two nodes, answers, a lost replica, and an end that leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.residency.test_replicated_model import Replicated, by_name
from tests.engines.ray.nodes import Nodes
from tests.service import load_demo, running

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


def test_the_service_serves_a_model_on_the_nodes_of_a_cluster(nodes: Nodes, tmp_path: Path) -> None:
    settings = {"engine_backend": "ray", "ray_address": nodes.address, "engine_replicas": 2}
    with running(tmp_path, engine_cards=0, **settings) as live:
        model_id = load_demo(live)
        replicated = Replicated(live)
        victim = replicated.whole(2)["replicas"][0]
        report = live.data("GET", "/api/health/gpus")
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
