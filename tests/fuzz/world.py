"""The service under the fuzzer: what exists in it, its first state, and what it answers in that state."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from steerserve import demo
from tests.loopback_hub import LoopbackHub
from tests.processes import Process, serving
from tests.recorded import RUN
from tests.soak import watching

SETTINGS: dict[str, Any] = {
    "default_max_tokens": 8,
    "lease_max_ttl_seconds": 2,
    "disk_reserve_mb": 0,
    "hub_breaker_recovery_s": 1,
    "kv_cache_mb": 32,
    "torch_threads": 1,
}
"""Small bounds, so that what is served is short and a forgotten lease ends by itself."""
CALM: dict[str, Any] = {"name": "calm", "steering": {"1": 2.0}}
VECTOR: dict[str, Any] = {
    "name": "calm",
    "source": "inline",
    "directions": [{"layer": 2, "data": "AACAPwAAAEA="}],
}
BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}
LENS = "identity"
FOLDERS = ("one", "two", "three")
KEPT = "own "
"""Names that begin so belong to a sequence that still runs."""
_VARYING = re.compile(rb'"(id|request_id)":"[^"]*"|"created(_at)?":\d+')

_SAMPLED = {"temperature": 1.0, "seed": 11, "max_tokens": 24}
CLEAN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "One day", "temperature": 0, "max_tokens": 24}),
    ("/v1/completions", {"prompt": ["One day", "The sea"], "stream": True} | _SAMPLED),
    ("/v1/completions", {"prompt": "One day", "max_tokens": 1, "logprobs": 5, "seed": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]} | _SAMPLED),
    ("/v1/responses", {"input": "Hello", "temperature": 1.0, "seed": 11, "max_output_tokens": 24}),
    ("/v1/embeddings", {"input": ["One day", "The sea"]}),
)
"""Requests that are answered alike before and after the run."""


class World:
    """A service with the demo model and its SAEs. Ids of what was deleted meanwhile are renewed by `tidy`."""

    def __init__(self, served: Process, root: Path) -> None:
        self.served = served
        self.url = served.url
        self.sae = demo.saes()[0]
        self.folders = [str(root / "models" / name) for name in FOLDERS]
        self.sae_folder = str(root / "saes" / self.sae.name)
        self.lens_file = str(root / "lens.safetensors")
        width = json.loads((demo.MODEL_DIR / "config.json").read_bytes())["hidden_size"]
        save_file({"J.1": np.eye(width, dtype=np.float32)}, self.lens_file)
        self._http = served.http
        self._ids: dict[str, Any] = {}

    # ------------------------------------------------------------- what exists

    def ids(self) -> dict[str, Any]:
        """What a request may name."""
        return self._ids

    def filled(self, value: Any, draw: Random, instead: Callable[[], str] | None = None) -> Any:
        """A body or a path with its placeholders replaced by what exists, or by what `instead` makes."""
        if isinstance(value, dict):
            return {key: self.filled(part, draw) for key, part in value.items()}
        if isinstance(value, list):
            return [self.filled(part, draw) for part in value]
        if not isinstance(value, str) or "{" not in value:
            return value

        def of(place: re.Match[str]) -> str:
            if instead is not None:
                return instead()
            if place[1] == "unique":
                return f"{draw.getrandbits(40):x}"
            return str(self._ids[place[1]])

        return re.sub(r"\{(\w+)\}", of, value)

    def data(self, method: str, path: str, body: Any = None) -> Any:
        """The data of a management answer that must be a success."""
        answer = self._http.request(method, path, json=body)
        assert answer.status_code < 300, f"{method} {path}: {answer.text[:500]}"
        return answer.json()["data"]

    # ------------------------------------------------------------- the first state

    def restore(self) -> None:
        """Bring the service into the state of the beginning."""
        watching.until_idle(self._http)
        self.tidy(is_last=True)
        models = self.data("GET", "/api/models")
        model_id = self._ids["model"]
        self._settled(lambda: self._unleased(model_id), "no lease is left")
        # a new engine: what requests of the run left in the old one ends with it
        if models["loaded_model_id"] is not None:
            self.data("POST", f"/api/models/{models['loaded_model_id']}/unload")
        self.data("POST", f"/api/models/{model_id}/load?wait=true")
        self.data("POST", f"/api/saes/{self._ids['sae']}/attach", {"layer": self.sae.layer})
        self.data("POST", f"/api/models/{model_id}/unlock")
        self.data("POST", "/api/monitoring/configure", {"enabled": False})
        self.data("DELETE", "/api/monitoring/history")
        self.data("DELETE", "/api/monitoring/statistics")

    def tidy(self, *, is_last: bool = False) -> None:
        """Remove what requests of the run have added, and register again what they have removed."""
        for profile in self.data("GET", "/api/profiles")["profiles"]:
            is_kept = profile["name"].startswith(KEPT) and not is_last
            if profile["name"] != CALM["name"] and not is_kept:
                self._http.delete(f"/api/profiles/{profile['id']}")
        for vector in self.data("GET", "/api/vectors")["vectors"]:
            if vector["name"] != VECTOR["name"]:
                self._http.delete(f"/api/vectors/{vector['id']}")
        for probe in self.data("GET", "/api/probes")["probes"]:
            self._http.delete(f"/api/probes/{probe['id']}")
        self._settled(self._registers_no_lens, "no lens is being registered")
        for lens in self.data("GET", "/api/lenses")["lenses"]:
            if lens["name"] != LENS:
                self._http.delete(f"/api/lenses/{lens['id']}")
        for effects in self.data("GET", "/api/effects")["effects"]:
            self._http.delete(f"/api/effects/{effects['id']}")
        saes = self.data("GET", "/api/saes")["saes"]
        models = self.data("GET", "/api/models")["models"]
        for kind, rows in (("saes", saes), ("models", models)):
            for row in rows:
                if row["status"] == "downloading":
                    self._http.post(f"/api/{kind}/{row['id']}/cancel")
                if row["name"] != demo.MODEL_NAME and row["local_path"] != self.sae_folder:
                    # the resident model and an attached SAE stay for now
                    self._http.delete(f"/api/{kind}/{row['id']}")
        self._ids = self._named()

    def _registers_no_lens(self) -> bool:
        jobs = self.data("GET", "/api/jobs")["jobs"]
        return all(job["finished_at"] for job in jobs if job["kind"] == "lens")

    def _lens(self) -> str:
        """The id of the lens of `lens_file`, which is registered here unless a generated request has done so just now."""
        lens = {"name": LENS, "source": "local", "local_path": self.lens_file}
        answer = self._http.post("/api/lenses?wait=true", json=lens)
        error = answer.json()["error"]
        if error is not None and error["code"] == "LENS_ALREADY_EXISTS":
            return str(error["details"]["lens_id"])
        assert answer.status_code < 300, answer.text[:500]
        return str(answer.json()["data"]["job"]["result"]["id"])

    def _named(self) -> dict[str, Any]:
        """The ids of what requests name. The model, the SAE, the profile, the vector, the lens, the file and the batch
        always exist; what is missing is made."""
        model = {"source": "local", "local_path": self.folders[0], "custom_name": demo.MODEL_NAME}
        sae = self.data("POST", "/api/saes/download", {"local_path": self.sae_folder})
        self.data("POST", "/api/runs/import", {"runs": [RUN]})
        files = self._http.get("/v1/files", params={"limit": 1}).json()["data"]
        file_id = files[0]["id"] if files else self._file()
        batches = self._http.get("/v1/batches", params={"limit": 1}).json()["data"]
        return {
            "capture": self._any_of("captures"),
            "corpus": self._any_of("corpora"),
            "model": self._id_of("models", demo.MODEL_NAME) or self._made("models", model),
            "file": file_id,
            "batch": batches[0]["id"] if batches else self._batch(file_id),
            "name": demo.MODEL_NAME,
            "sae": sae["sae_id"],
            "profile": self._id_of("profiles", CALM["name"]) or self._made("profiles", CALM),
            "vector": self._id_of("vectors", VECTOR["name"]) or self._made("vectors", VECTOR),
            "effects": self._any_of("effects"),
            "probe": self._any_of("probes"),
            "lens": self._id_of("lenses", LENS) or self._lens(),
            "lens_file": self.lens_file,
            "run": RUN["request_id"],
            "folder": self.folders[1],
            "sae_folder": self.sae_folder,
        }

    def _any_of(self, noun: str) -> str:
        """The id of the first of them; where there is none, an id that nothing has."""
        rows = self.data("GET", f"/api/{noun}")[noun]
        return str(rows[0]["id"]) if rows else "nobody"

    def _id_of(self, noun: str, name: str) -> Any:
        """The id of the one with this name; None where there is none."""
        rows = self.data("GET", f"/api/{noun}")[noun]
        return next((row["id"] for row in rows if row["name"] == name), None)

    def _made(self, noun: str, body: dict[str, Any]) -> Any:
        return self.data("POST", f"/api/{noun}", body)["id"]

    def _file(self) -> str:
        """The id of a new file. A batch of it fails its check, so no line runs."""
        sent = {"file": ("lines.jsonl", b"{}")}
        answer = self._http.post("/v1/files", files=sent, data={"purpose": "batch"})
        return str(answer.json()["id"])

    def _batch(self, file_id: str) -> str:
        body = {"input_file_id": file_id, **BATCH}
        return str(self._http.post("/v1/batches", json=body).json()["id"])

    def _unleased(self, model_id: int) -> bool:
        return self.data("GET", f"/api/models/{model_id}/lease")["lease"] is None

    @staticmethod
    def _settled(condition: Callable[[], object], what: str) -> None:
        watching.until(lambda: condition() or time.sleep(0.1), what, 10.0)

    # ------------------------------------------------------------- what it answers

    def clean(self) -> list[bytes]:
        """The answers to the fixed requests, without the fields that differ from answer to answer."""
        return [self._clean(path, body) for path, body in CLEAN]

    def _clean(self, path: str, body: dict[str, Any]) -> bytes:
        answer = self._http.post(path, json={"model": demo.MODEL_NAME} | body)
        assert answer.status_code == 200, answer.text
        kept = {n: v for n, v in answer.headers.items() if n.startswith("x-service")}
        return json.dumps(kept, sort_keys=True).encode() + _VARYING.sub(b"", answer.content)

    def description(self) -> dict[str, Any]:
        """The description that the service gives of itself."""
        described: dict[str, Any] = self._http.get("/openapi.json").json()
        return described


@contextmanager
def opened(root: Path) -> Iterator[World]:
    """A service in a folder of its own, beside a model hub on this machine."""
    for name in FOLDERS:
        shutil.copytree(demo.MODEL_DIR, root / "models" / name)
    shutil.copytree(demo.saes()[0].path, root / "saes" / demo.saes()[0].name)
    with LoopbackHub() as hub:
        hub.add("acme/tiny", {"config.json": b"{}", "model.safetensors": b""})
        hub.add("acme/sae", {p.name: p.read_bytes() for p in demo.saes()[0].path.iterdir()})
        with serving(root / "home", hf_endpoint=hub.url, **SETTINGS) as served:
            assert served.process.poll() is None, served.lines
            try:
                world = World(served, root)
                world.tidy()
                world.restore()
                yield world
            finally:
                watching.end(served)
