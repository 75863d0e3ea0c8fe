"""The service and its commands, each as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil

from steerserve import demo
from steerserve.engines.checkpoint.process import ENGINE, NAMES
from tests.blank import DATABASE, lay
from tests.described import Held
from tests.service import ANSWER_SECONDS, Polls

LISTENING, DRAINING = '"listening"', '"draining"'
"""What a service writes once its port is open, and once it has the signal to stop."""


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_program(*words: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with these words to its end."""
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS,
    )


def run_command(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command of steerserve to its end."""
    return run_program("-m", "steerserve", *words, **settings)


class Process:
    """`steerserve serve`, or another command that serves, on a free port. It has started once it has written `ready`.
    The process may have at most `open_files` files open."""

    def __init__(
        self,
        home: Path,
        command: str = "serve",
        ready: str = LISTENING,
        open_files: int | None = None,
        **settings: Any,
    ) -> None:
        self.port = free_port()
        lay(home / DATABASE)
        environment = {name.upper(): str(value) for name, value in settings.items()}
        words = [sys.executable, "-m", "steerserve", command, "--port", str(self.port)]
        if open_files is not None:
            words = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *words]
        self.process = subprocess.Popen(
            words,
            env=os.environ | {"STEERSERVE_HOME": str(home), "LOG_FORMAT": "json"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.started = threading.Event()
        self.draining = threading.Event()
        self._ready = ready
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.started.wait(ANSWER_SECONDS), self.lines
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx2.Client(
            base_url=self.url,
            timeout=ANSWER_SECONDS,
            event_hooks={"request": [Polls()], "response": [Held(self._described)]},
        )

    def _described(self) -> dict[str, Any]:
        described: dict[str, Any] = httpx2.get(
            f"{self.url}/openapi.json", timeout=ANSWER_SECONDS
        ).json()
        return described

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # closed under it: a child still held the other end
            for line in self.process.stdout:
                self.lines.append(line)
                if self._ready in line:
                    self.started.set()
                if DRAINING in line:
                    self.draining.set()
        self.started.set()

    def load_demo(self) -> int:
        body = {
            "source": "local",
            "local_path": str(demo.MODEL_DIR),
            "custom_name": demo.MODEL_NAME,
        }
        answer = self.http.post("/api/models", json=body)
        model_id = answer.json()["data"]["id"]
        loaded = self.http.post(f"/api/models/{model_id}/load?wait=true")
        assert loaded.status_code == 200, loaded.text
        return int(model_id)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def engines(self) -> list[psutil.Process]:
        """The processes that hold the model: the engine, or those of its replicas, which are no children."""
        health = self.http.get("/api/health/detailed").json()["data"]
        if health["replicas"] is not None:
            return [psutil.Process(one["pid"]) for one in health["replicas"]["replicas"]]
        name = NAMES[ENGINE]
        (engine,) = (child for child in self.family() if child.name() == name)
        return [engine]

    def wait(self) -> int:
        return self.process.wait(ANSWER_SECONDS)

    def end(self) -> None:
        """Kill what is left of the service."""
        self.http.close()
        if self.process.poll() is None:
            for child in self.family():
                child.kill()
            self.process.kill()
        self.process.wait(10)
        # it reads to the end of the pipe, which children hold open for a moment
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(home: Path, **settings: Any) -> Iterator[Process]:
    """A service that is killed at the end of the block. `settings` are the arguments of `Process`."""
    served = Process(home, **settings)
    try:
        yield served
    finally:
        served.end()
