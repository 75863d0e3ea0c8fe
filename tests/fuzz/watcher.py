"""A process beside the run: it asks for liveness, and reads the memory of every process of the service.

It is a process of its own, so that neither the threads of the run nor their interpreter delay what it measures.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
from contextlib import suppress

import psutil

PROBE_SECONDS = 0.05
MEMORY_SECONDS = 2.0
_ASKED = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def roles(pid: int) -> dict[str, list[int]]:
    """The processes of a service by their role; a helper is called like its module."""
    plane = psutil.Process(pid)
    found = {"control plane": [pid]}
    for child in plane.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.setdefault(_role(child, pid), []).append(child.pid)
    return found


def _role(child: psutil.Process, plane: int) -> str:
    command = " ".join(child.cmdline())
    if "multiprocessing.resource_tracker" in command:
        return "resource tracker"
    if "multiprocessing.forkserver" in command:
        return "fork server" if child.ppid() == plane else "engine"
    helper = re.search(r"steerserve\.(?:\w+\.)*(\w+)", command)
    return helper[1] if helper else "another process"


def memory(pid: int) -> dict[str, float]:
    """Role -> MiB that its largest process holds."""
    return {role: max(map(_mib, pids)) for role, pids in roles(pid).items()}


def _mib(pid: int) -> float:
    try:
        return round(psutil.Process(pid).memory_info().rss / (1 << 20), 1)
    except psutil.NoSuchProcess:
        return 0.0


def _probe(port: int) -> tuple[float, bool]:
    """Seconds of one question for liveness on a new connection, and whether the answer was 200."""
    since = time.perf_counter()
    read = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as link:
            link.sendall(_ASKED)
            while part := link.recv(4096):
                read += part
    except OSError:
        pass
    return time.perf_counter() - since, read.startswith(b"HTTP/1.1 200")


def _watch(port: int, pid: int) -> None:
    """Measure until the standard input closes; then print what was measured."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    durations: list[float] = []
    failed = 0
    peak: dict[str, float] = {}
    read_at = 0.0
    while not over.wait(PROBE_SECONDS):
        seconds, is_alive = _probe(port)
        durations.append(seconds)
        failed += not is_alive
        if time.monotonic() - read_at > MEMORY_SECONDS:
            read_at = time.monotonic()
            with suppress(psutil.NoSuchProcess):
                for role, mib in memory(pid).items():
                    peak[role] = max(mib, peak.get(role, 0.0))
    print(json.dumps({"durations": durations, "failed": failed, "peak": peak}))


if __name__ == "__main__":
    _watch(int(sys.argv[1]), int(sys.argv[2]))
