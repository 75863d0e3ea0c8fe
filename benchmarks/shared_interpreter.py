"""How long a request waits while a thread of the same process writes the metrics, by the time after which a thread must
give the interpreter to another (`sys.setswitchinterval`).

    python -m benchmarks.shared_interpreter

A small server answers on the event loop of the service. A thread writes the text of metrics of 200 routes again and
again. A client in another process asks, one request on a new connection after the other.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

import uvloop
from prometheus_client import generate_latest

from benchmarks.kept import Kept
from benchmarks.machine import Spread, quantile
from steerserve.control.metrics import Metrics

INTERVALS_MS = (5.0, 1.0, 0.2, 0.05)
"""Python sets the first one."""
ROUNDS = 3
SECONDS = 4.0
ROUTES, STATUSES = 200, (200, 400, 404, 405, 422)
WORK = 20_000
"""Numbers that are added for each answer."""
CLIENT = """
import json, socket, sys, time
port, seconds = int(sys.argv[1]), float(sys.argv[2])
until, waited = time.monotonic() + seconds, []
while time.monotonic() < until:
    since = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"?")
        while link.recv(100):
            pass
    waited.append((time.perf_counter() - since) * 1000)
    time.sleep(0.01)
print(json.dumps(waited))
"""


def _metrics() -> Metrics:
    metrics = Metrics(clock=time.monotonic)
    for route in range(ROUTES):
        for status in STATUSES:
            metrics.answered(f"/api/{route}", status, 0.01, is_stream=False)
    return metrics


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    sum(range(WORK))
    writer.write(b".")
    await writer.drain()
    writer.close()


async def _measured(metrics: Metrics | None) -> tuple[list[float], list[float]]:
    """The milliseconds of each request, and those of each text that the thread wrote meanwhile."""
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    over, texts = threading.Event(), list[float]()

    def write() -> None:
        while metrics is not None and not over.is_set():
            since = time.perf_counter()
            generate_latest(metrics.registry)
            texts.append((time.perf_counter() - since) * 1000)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        port = str(server.sockets[0].getsockname()[1])
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, port, str(SECONDS)), stdout=subprocess.PIPE
        )
        told, _ = await client.communicate()
    finally:
        over.set()
        await asyncio.to_thread(thread.join)
        server.close()
    return json.loads(told), texts


def _figures(rounds: list[tuple[list[float], list[float]]]) -> dict[str, Any]:
    return {
        "request_ms_p50": asdict(Spread.of([quantile(asked, 0.5) for asked, _ in rounds])),
        "request_ms_p99": asdict(Spread.of([quantile(asked, 0.99) for asked, _ in rounds])),
        "text_ms": asdict(Spread.of([quantile(texts, 0.5) for _, texts in rounds if texts] or [0])),
    }


def main() -> None:
    kept = Kept("shared-interpreter", rounds=ROUNDS, seconds=SECONDS)
    metrics, before = _metrics(), sys.getswitchinterval()
    alone: list[Any] = []
    beside: dict[float, list[Any]] = {interval: [] for interval in INTERVALS_MS}
    for _ in range(ROUNDS):
        alone.append(uvloop.run(_measured(None)))
        for interval, rounds in beside.items():
            sys.setswitchinterval(interval / 1000)
            rounds.append(uvloop.run(_measured(metrics)))
            sys.setswitchinterval(before)
    figures = {f"{interval:g}": _figures(rounds) for interval, rounds in beside.items()}
    for name, found in figures.items():
        print(f"{name} ms: {found['request_ms_p50']['median']:.1f} ms for a request")
    kept.end({"alone": _figures(alone), "beside_a_thread_by_interval_ms": figures})


if __name__ == "__main__":
    main()
