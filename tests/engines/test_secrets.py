"""Secrets of the service's environment do not reach the processes that may run a repository's own code."""

from __future__ import annotations

import os
import subprocess
import sys

SECRET = "sentinel-0123456789"
NAMES = (
    "API_KEYS",
    "DATABASE_URL",
    "database_url",
    "HUB_TOKEN",
    "Hf_Token",
    "HUGGING_FACE_HUB_TOKEN",
)

SERVICE = """
import asyncio, psutil
from pathlib import Path
from steerserve.engines.checkpoint.client import Launcher

async def main():
    launcher = Launcher("CRITICAL", "json")
    engine = await launcher.launch()
    # the fork server, its engine, and what looks after their shared memory
    for process in psutil.Process().children(recursive=True):
        kind = "engine" if process.pid == engine.pid else process.cmdline()[-1].split()[1]
        seen = Path(f"/proc/{process.pid}/environ").read_text().replace(chr(0), " ")
        print(kind, seen.replace(chr(10), " "), flush=True)
    await engine.stop()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_no_engine_and_no_fork_server_sees_a_secret() -> None:
    environment = os.environ | dict.fromkeys(NAMES, SECRET) | {"HARMLESS": "kept"}
    done = subprocess.run(
        [sys.executable, "-c", SERVICE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert {"engine", "multiprocessing.forkserver"} <= lines.keys()
    assert "HARMLESS=kept" in lines["engine"]
    assert SECRET not in done.stdout
