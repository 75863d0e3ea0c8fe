"""A process beside a run: it asks for liveness until its standard input closes, then prints the seconds of each answer.

It is a process of its own, so that the interpreter of the clients does not delay what it measures.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PROBE_EVERY = 0.02


@asynccontextmanager
async def probing(port: int) -> AsyncIterator[list[float]]:
    """The list has the seconds of every answer once the block has ended."""
    seconds: list[float] = []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.probe", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield seconds
    finally:
        printed, _ = await process.communicate(b"")  # closes its standard input
        seconds += json.loads(printed)


def main() -> None:
    link = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    seconds: list[float] = []
    while not over.wait(PROBE_EVERY):
        since = time.perf_counter()
        link.request("GET", "/api/health")
        answer = link.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        seconds.append(time.perf_counter() - since)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
