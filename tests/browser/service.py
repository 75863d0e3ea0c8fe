"""`steerserve demo` as a process of its own, for a browser to visit."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

from steerserve import demo
from steerserve.engines.checkpoint.process import ENGINE, NAMES

START_SECONDS = 300
PATIENCE_SECONDS = 90
LINES = 200
"""The last lines of its output that are kept, for the message of a failed start."""
READY = ("is ready at", "listening")
"""What the process writes once the demo is loaded, and once the port is open."""


class Demo:
    """A running demo, which can be stopped and started again on the same port and data folder."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home = home
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx2.Client(base_url=self.url, timeout=180)
        self.start()

    def start(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._awaited = set(READY)
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "steerserve", "demo", "--port", str(self.port)],
            env=os.environ | {"STEERSERVE_HOME": str(self.home), "RECORD_RUNS": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        assert self._ready.wait(START_SECONDS), list(self._lines)
        assert not self._awaited, list(self._lines)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        self._reader.join(120)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def close(self) -> None:
        self.http.close()
        self.stop()

    def kill_engine(self) -> None:
        """End the process that holds the model, as a crash would."""
        self._engine().kill()

    @contextmanager
    def engine_held(self) -> Iterator[None]:
        """Let the engine stand still, so that nothing is complete before a person acts."""
        engine = self._engine()
        engine.suspend()
        try:
            yield
        finally:
            engine.resume()

    def is_busy(self) -> bool:
        """Whether a request is at work."""
        return int(self.data("GET", "/api/health/detailed")["inference"]["in_flight"]) > 0

    def _engine(self) -> psutil.Process:
        name = NAMES[ENGINE]
        children = psutil.Process(self.process.pid).children(recursive=True)
        (engine,) = (child for child in children if child.name() == name)
        return engine

    def processor_seconds(self) -> float:
        """The time of the processor that all processes of the service have used."""
        root = psutil.Process(self.process.pid)
        used = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        return float(sum(one.user + one.system for one in used))

    def data(self, method: str, path: str, body: Any = None) -> Any:
        """The `data` of an `/api` answer, which must be a success. A service that the machine starves may refuse with 503
        for a moment."""
        until = time.monotonic() + PATIENCE_SECONDS
        answer = self.http.request(method, path, json=body)
        while answer.status_code == 503 and time.monotonic() < until:
            threading.Event().wait(float(answer.headers.get("retry-after", 1)))
            answer = self.http.request(method, path, json=body)
        whole = answer.json()
        assert whole["success"] is True, whole
        return whole["data"]

    def write(
        self, prompt: str = "One day a sailor sailed past the lighthouse", **fields: Any
    ) -> Any:
        """Let the model continue a prompt, and return the answer."""
        body = {"model": demo.MODEL_NAME, "prompt": prompt, "max_tokens": 40, "seed": 1, **fields}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def attach_all(self) -> None:
        """Attach both SAEs of the demo."""
        attached = {row["sae_id"] for row in self.data("GET", "/api/saes/attachments")["entries"]}
        layers = {sae.name: sae.layer for sae in demo.saes()}
        rows = self.data("GET", "/api/saes")["saes"]
        missing = [
            {"sae_id": row["id"], "layer": layers[Path(row["local_path"]).name]}
            for row in rows
            if row["id"] not in attached
        ]
        if missing:
            self.data("POST", "/api/saes/attach-set", {"saes": missing})

    def live_in(self) -> None:
        """Make the service look used: both SAEs are attached, monitoring is on, sensing has recorded, a cluster
        serves."""
        self.attach_all()
        self.data("POST", "/api/monitoring/configure", {"enabled": True, "top_k": 12})
        if self.data("GET", "/api/circuit-sensing/events?limit=1")["total"] == 0:
            self.data("POST", f"/api/circuits/{demo.CIRCUIT_ID}/activate")
            self.write()
            self.data("POST", f"/api/circuits/{demo.CIRCUIT_ID}/deactivate")
        self.data("POST", f"/api/clusters/{demo.CLUSTER_ID}/activate")
        self.write()

    def store_vector(self, name: str, layers: list[int]) -> None:
        """Store a vector that has a direction at each of these layers."""
        sae = self.data("GET", "/api/saes/attachments")["entries"][0]["sae_id"]
        width = self.data("GET", f"/api/saes/{sae}")["d_in"]
        numbers = np.random.default_rng(len(name)).normal(size=(len(layers), width))
        directions = [
            {"layer": layer, "data": base64.b64encode(row.astype("<f4").tobytes()).decode()}
            for layer, row in zip(layers, numbers * np.sqrt(layers)[:, None], strict=True)
        ]
        body = {"name": name, "source": "inline", "model_hint": demo.MODEL_NAME}
        self.data("POST", "/api/vectors", body | {"directions": directions})

    def train_probe(self) -> None:
        """Train a probe of the sea."""
        sea = ["The boat sailed", "A whale swam", "The sailor slept", "Waves at the shore"]
        other = ["The farmer slept", "A knight rode", "The king sat", "Trains at the station"]
        body = {"name": "sea or not", "positives": sea, "negatives": other, "layers": "all"}
        self.data("POST", "/api/probes/train?wait=true", body)

    def reset(self) -> None:
        """Take back what a test may have changed: what serves and steers, what was imported, what is monitored."""
        for noun, own in (
            ("circuits", demo.CIRCUIT_ID),
            ("clusters", demo.CLUSTER_ID),
            ("profiles", ""),
        ):
            for row in self.data("GET", f"/api/{noun}")[noun]:
                if row["is_active"]:
                    self.data("POST", f"/api/{noun}/{row['id']}/deactivate")
                if row["id"] not in (own, demo.CLUSTER_ID):
                    self.data("DELETE", f"/api/{noun}/{row['id']}")
        for row in self.data("GET", "/api/vectors")["vectors"]:
            self.data("DELETE", f"/api/vectors/{row['id']}")
        for row in self.data("GET", "/api/probes")["probes"]:
            self.data("DELETE", f"/api/probes/{row['id']}")
        for row in self.data("GET", "/api/corpora")["corpora"]:
            if row["id"] != demo.CORPUS_ID:
                self.data("DELETE", f"/api/corpora/{row['id']}")
        for row in self.data("GET", "/api/effects")["effects"]:
            self.data("DELETE", f"/api/effects/{row['id']}")
        self.data("DELETE", "/api/saes/steering")
        self.data("POST", "/api/monitoring/enable", {"enabled": False})
        self.data("DELETE", "/api/monitoring/history")
        for row in self.data("GET", "/api/saes/attachments")["entries"]:
            if row["layer"] != demo.proof()["layer"]:
                self.data("POST", f"/api/saes/{row['sae_id']}/detach")

    def answers(self) -> bool:
        with suppress(httpx2.TransportError):
            return self.http.get("/api/health").status_code == 200
        return False

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            self._awaited -= {mark for mark in self._awaited if mark in line}
            if not self._awaited:
                self._ready.set()
        self._ready.set()


def wait_for(condition: Any, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition of the service holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "what was waited for did not happen"
        threading.Event().wait(0.05)
