"""The services that the net asks: the demo model in float32, a GGUF model, and the demo model in other ways of serving.

A scene is what an operator has set at a service. Cases of one scene follow each other, and a service goes from scene to
scene by undoing the last one.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file

from steerserve import demo
from tests import gguf
from tests.circuits import document
from tests.local_cluster import LocalCluster
from tests.net.answers.case import Case
from tests.net.answers.normal import Normal, Told
from tests.service import running

LOW, HIGH = demo.saes()
FEATURE = 90
LABELS = {"3": "names", "90": "the sea"}
TEXTS = ["The boat sailed over the waves", "A whale swam near the ship", "The cow ate grass"]
SECONDS = 120.0


@dataclass
class World:
    """A running service with its client. `names` has the ids that the service chose, with their names in the tables."""

    client: httpx2.Client
    names: dict[str, str] = field(default_factory=dict)
    undo: list[Callable[[], object]] = field(default_factory=list)
    scene: str = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The `data` of an `/api` answer, which must be a success."""
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def name(self, actual: str, name: str) -> str:
        """Let a text of this service have a name in the tables."""
        self.names[actual] = f"{{{name}}}"
        return actual

    def text(self, template: str) -> str:
        """A text of the tables with the ids of this service in the place of their names."""
        for actual, name in self.names.items():
            template = template.replace(name, actual)
        return template

    def answer(self, case: Case) -> Normal:
        """The answer to a case, and to what is asked after it."""
        self.enter(case.scene)
        body = case.body if isinstance(case.body, str) else json.dumps(case.body)
        headers = {"content-type": "application/json", **case.headers}
        given = {name: self.text(value) for name, value in headers.items()}
        sent = self.text(body).encode()
        path = case.path + (f"?{case.query}" if case.query else "")
        told = Told(self.names, is_seeded='"seed"' in body)
        made = told.normal(self.client.post(path, content=sent, headers=given))
        for method, also in case.then:
            made[f"{method} {also}"] = told.normal(self.client.request(method, also))
        return made

    def enter(self, scene: str) -> None:
        """Undo the last scene, and set this one."""
        if scene == self.scene:
            return
        while self.undo:
            self.undo.pop()()
        SCENES[scene](self)
        self.scene = scene

    def later(self, method: str, path: str) -> None:
        """Ask this when the scene ends."""
        self.undo.append(lambda: self.call(method, path))


# ---------------------------------------------------------------- what worlds have


def float_demo(folder: Path) -> Path:
    """The demo model in float32, whose answers hardly depend on the processor."""
    shutil.copytree(demo.MODEL_DIR, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = load_tensors(demo.MODEL_DIR / "model.safetensors")
    made = {name: one.to(torch.float32) for name, one in weights.items()}
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "float32"}))
    return folder


def direction(sae: demo.DemoSae, feature: int) -> str:
    """The decoder row of a feature, as requests have directions."""
    row = load_file(sae.path / "sae_weights.safetensors")["W_dec"][feature]
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def lift() -> str:
    """A direction that rises from one end to the other."""
    return base64.b64encode(np.linspace(-1, 1, 192, dtype="<f4").tobytes()).decode()


def load(world: World, folder: Path) -> None:
    """Register the demo model in float32 and load it."""
    body = {"source": "local", "local_path": str(folder), "custom_name": "demo"}
    model = world.call("POST", "/api/models", body)["id"]
    world.call("POST", f"/api/models/{model}/load?wait=true")
    while world.call("GET", f"/api/models/{model}")["content_digest"] is None:
        pass  # the digest is computed beside requests, and names the model in digests of steering


def furnish(world: World) -> None:
    """Add both SAEs, and what requests name: vectors, a probe, profiles, a cluster and a circuit."""
    for sae in (LOW, HIGH):
        made = world.call("POST", "/api/saes/download", {"local_path": str(sae.path)})
        sae_id = world.name(made["sae_id"], f"sae {sae.layer}")
        world.call("POST", f"/api/saes/{sae_id}/labels", LABELS)
    sea = {"layer": HIGH.layer, "data": direction(HIGH, FEATURE)}
    rising = world.name(lift(), "data lift")
    for name, directions in (
        ("sea", [sea]),
        ("lift", [{"layer": layer, "data": rising} for layer in (1, 2)]),
    ):
        body = {"name": name, "source": "inline", "directions": directions}
        world.name(world.call("POST", "/api/vectors", body)["id"], f"vector {name}")
    probe = {"name": "wet", "source": "inline", "weights": [sea | {"bias": 0.5}]}
    world.name(world.call("POST", "/api/probes", probe)["id"], "probe wet")
    edits = [{"op": "ablate", "vector": "sea"}]
    for body in (
        {"name": "sea", "steering": {str(FEATURE): 30.0}},
        {"name": "mixed", "steering": {"3": 8.0}, "edits": edits},
    ):
        world.name(world.call("POST", "/api/profiles", body)["id"], f"profile {body['name']}")
    cluster = json.loads(demo.CLUSTER.read_text(encoding="utf-8")) | {"name": "tide"}
    (found,) = world.call("POST", "/api/clusters/import", cluster)["results"]
    world.name(found["profile_id"], "cluster")
    circuit = world.call("POST", "/api/circuits/import", document(low=70, high=FEATURE))
    world.name(circuit["id"], "circuit")


# ---------------------------------------------------------------- scenes


def _nothing(_: World) -> None:
    """No SAE is attached, and nothing is steered."""


def _attached(world: World) -> None:
    """The SAE of the upper layer is attached."""
    sae_id = world.text("{sae 3}")
    world.call("POST", f"/api/saes/{sae_id}/attach", {"layer": HIGH.layer})
    world.later("POST", f"/api/saes/{sae_id}/detach")


def _live(world: World) -> None:
    """A feature and an edit steer everybody."""
    _attached(world)
    world.call("POST", "/api/saes/steering", {"feature_idx": FEATURE, "value": 30.0})
    world.later("DELETE", "/api/saes/steering")
    edit = {"op": "scale", "vector": "lift", "layers": [1], "value": 0.5}
    world.call("PUT", "/api/interventions", {"edits": [edit]})
    world.later("DELETE", "/api/interventions")


def _active(world: World) -> None:
    """A profile is active."""
    _attached(world)
    profile = world.text("{profile sea}")
    world.call("POST", f"/api/profiles/{profile}/activate")
    world.later("POST", f"/api/profiles/{profile}/deactivate")


def _both(world: World) -> None:
    """Both SAEs are attached."""
    wanted = [{"sae_id": world.text(f"{{sae {s.layer}}}"), "layer": s.layer} for s in (LOW, HIGH)]
    world.call("POST", "/api/saes/attach-set", {"saes": wanted})
    for sae in wanted:
        world.later("POST", f"/api/saes/{sae['sae_id']}/detach")


def _circuit(world: World) -> None:
    """A circuit of both SAEs serves."""
    _both(world)
    circuit = world.text("{circuit}")
    world.call("POST", f"/api/circuits/{circuit}/activate")
    world.later("POST", f"/api/circuits/{circuit}/deactivate")


def _measured(world: World) -> None:
    """A corpus tells how large and how rare the features of the attached SAE are."""
    _attached(world)
    body = {"name": "sea", "source": "inline", "texts": TEXTS, "context": 16}
    job = world.call("POST", "/api/corpora?wait=true", body)["job"]
    world.later("DELETE", f"/api/corpora/{job['result']['id']}")


SCENES: dict[str, Callable[[World], None]] = {
    "bare": _nothing,
    "attached": _attached,
    "live": _live,
    "active": _active,
    "both": _both,
    "circuit": _circuit,
    "measured": _measured,
}

# ---------------------------------------------------------------- worlds


def furnished(**settings: Any) -> Callable[[Path], Any]:
    """A way to start a service with the demo model and all that requests name."""

    @contextmanager
    def start(home: Path) -> Iterator[World]:
        cluster = LocalCluster() if "engine_replicas" in settings else None
        folder = float_demo(home / "demo")
        with (
            running(home / "home", cluster, log_level="ERROR", **settings) as live,
            httpx2.Client(base_url=live.url, timeout=SECONDS) as client,
        ):
            world = World(client)
            load(world, folder)
            furnish(world)
            yield world

    return start


@contextmanager
def _gguf(home: Path) -> Iterator[World]:
    """A service with the counting model, and the demo model that is not loaded."""
    folder = float_demo(home / "demo")
    file = gguf.write(home / "counting-Q8_0.gguf", "Q8_0")
    with (
        running(home / "home", log_level="ERROR") as live,
        httpx2.Client(base_url=live.url, timeout=SECONDS) as client,
    ):
        world = World(client)
        for path, name in ((folder, "demo"), (file, "counting")):
            body = {"source": "local", "local_path": str(path), "custom_name": name}
            model = world.call("POST", "/api/models", body)["id"]
        world.call("POST", "/api/profiles", {"name": "sea", "steering": {str(FEATURE): 30.0}})
        world.call("POST", f"/api/models/{model}/load?wait=true")
        yield world


WORLDS: dict[str, Callable[[Path], Any]] = {
    "checkpoint": furnished(),
    "gguf": _gguf,
    "batching": furnished(enable_continuous_batching=True),
    "recorded": furnished(record_runs=True),
    "replicas": furnished(engine_backend="ray", engine_replicas=2),
}
"""Each way of serving by its name."""
