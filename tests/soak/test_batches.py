"""A batch outlives kills of the service and of its engine at random: every line is answered, and answered once.
BATCH_LINES is the number of lines, 10,000 by default."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

import openai
from tests.openai.test_batches import OVER, TEXT, begun, read, text

pytestmark = pytest.mark.soak
LINES = int(os.environ.get("BATCH_LINES", "10000"))
KILLS = 6
SET = {"interventions": {"edits": [{"op": "set", "feature": {"index": 90}, "value": 20.0}]}}


@contextmanager
def served(home: Path, port: int) -> Iterator[psutil.Popen]:
    """The demo in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", "steerserve", "demo", "--port", str(port)]
    settings = os.environ | {"STEERSERVE_HOME": str(home), "LOG_LEVEL": "ERROR"}
    process = psutil.Popen(command, env=settings, stdout=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, "the service has ended"
            try:
                models = httpx2.get(f"http://127.0.0.1:{port}/api/models").json()["data"]["models"]
            except httpx2.HTTPError:
                continue
            if any(model["status"] == "loaded" for model in models):
                break
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def kill_engine(process: psutil.Popen) -> None:
    """The engine is the process under the service that has most memory."""
    children = process.children(recursive=True)
    max(children, key=lambda one: one.memory_info().rss).kill()


@pytest.mark.timeout(3600)
def test_a_batch_outlives_kills_of_the_service_and_of_the_engine(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)
    source = random.Random(1)
    kills = sorted(source.sample(range(LINES // 20, LINES - LINES // 10), KILLS))
    lines = [
        text(
            str(number),
            f"One day {number}",
            max_tokens=12,
            seed=number,
            **(SET if number % 2 else {}),
        )
        for number in range(LINES)
    ]
    batch_id = ""
    batch = None
    while batch is None or batch.status not in OVER:
        with served(tmp_path, port) as process:
            batch_id = batch_id or begun(client, lines, TEXT).id
            while batch is None or batch.status not in OVER:
                batch = client.batches.retrieve(batch_id)
                done = batch.request_counts.completed if batch.request_counts else 0
                if kills and done >= kills[0]:
                    del kills[0]
                    if len(kills) % 2:
                        break
                    kill_engine(process)
            else:
                answers = read(client, batch.output_file_id)
    assert (batch.status, kills) == ("completed", [])
    assert [one["custom_id"] for one in answers] == [str(number) for number in range(LINES)]
    assert {one["response"]["status_code"] for one in answers} == {200}
    print(f"{LINES} lines, {KILLS} kills: every line is answered once")
