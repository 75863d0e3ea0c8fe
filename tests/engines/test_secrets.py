"""An engine and its control process: secrets of the service's environment do not reach the processes that may run a
repository's own code, and no engine outlives its control process."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

SECRET = "sentinel-0123456789"
NAMES = (
    "API_KEYS",
    "DATABASE_URL",
    "database_url",
    "HUB_TOKEN",
    "Hf_Token",
    "HUGGING_FACE_HUB_TOKEN",
    # the key of an endpoint of LABEL_ENDPOINTS, and whatever else an operator has set
    "EXAMPLE_LABELS",
    "TORCH_API_KEY",
    "AWS_SESSION_TOKEN",
)

SERVICE = """
import asyncio, psutil, sys
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
    print("torch" in sys.modules, engine.pid, flush=True)
    await asyncio.Event().wait()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.local("starts an engine of this machine")
def test_no_engine_sees_a_secret_and_each_ends_with_its_control_process() -> None:
    environment = os.environ | dict.fromkeys(NAMES, SECRET) | {"TORCH_HARMLESS": "kept"}
    control = subprocess.Popen(
        [sys.executable, "-c", SERVICE], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert control.stdout
    seen: dict[str, str] = {}
    with control.stdout as out:
        while not seen.keys() & {"True", "False"}:
            line = out.readline()
            assert line, "the control process has ended"
            kind, _, told = line.rstrip("\n").partition(" ")
            seen[kind] = told
        engine = psutil.Process(int(seen.pop("False")))  # the control process has no tensor library
        control.kill()
        control.wait(30)
    assert psutil.wait_procs([engine], timeout=30)[1] == []
    assert {"engine", "multiprocessing.forkserver"} <= seen.keys()
    assert "TORCH_HARMLESS=kept" in seen["engine"]
    assert SECRET not in str(seen)
