"""The served OpenAPI description, fuzzed: whatever is sent, the answer is one that the description promises.

Generated values rarely name what exists, so they are aimed at it: the loaded model, an SAE, a saved profile.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import reduce
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from safetensors.numpy import save_file
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.generation.meta import CoveragePhaseData, CoverageScenario

from steerserve import demo
from tests.fuzz.checks import faults
from tests.fuzz.client import Answer, Request
from tests.loopback_hub import LoopbackHub
from tests.recorded import RUN
from tests.service import Running, add_sae, load_demo, running

NAMED_500 = {"NON_FINITE_LOGITS", "CONSTRAINED_OUTPUT_INVALID", "MODEL_LOAD_FAILED"}
NEVER_SUCCEED = {
    # a generated lease id is nobody's
    "POST /api/models/{model_id}/lease/renew",
    "DELETE /api/models/{model_id}/lease",
    # a loaded model and an attached SAE stay
    "DELETE /api/models/{model_id}",
    "DELETE /api/saes/{sae_id}",
    # one engine process serves
    "GET /api/models/{model_id}/replicas",
    "PUT /api/models/{model_id}/replicas",
    "POST /api/models/{model_id}/replicas/{name}/drain",
    "POST /api/models/{model_id}/replicas/{name}/replace",
    # a generated name is that of no file
    "GET /api/captures/{capture_id}/files/{name}",
    # a body has either words or two groups of texts
    "POST /api/vectors/{vector_id}/measure",
    # the batch is over
    "POST /v1/batches/{batch_id}/cancel",
    # nothing fires
    "GET /api/sensing/events/{event_id}",
    "GET /api/circuit-sensing/events/{event_id}",
}
NAMING = {
    "/api/profiles",
    "/api/profiles/save-current",
    "/api/profiles/import",
    "/api/vectors",
    "/api/vectors/train",
    "/api/probes",
    "/api/probes/train",
    "/api/corpora",
    "/api/captures",
    "/api/lenses",
}
STANDARD = (
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
CAPTURE: dict[str, Any] = {
    "texts": ["a b c"],
    "sites": [{"site": "resid_post", "layers": [1]}],
    "positions": "all",
}
PATCH: dict[str, Any] = {
    "clean": "a b",
    "corrupt": "a c",
    "sites": ["resid_post"],
    "layers": [1],
    "positions": "each",
    "heads": None,
    "metric": {"kind": "kl"},
}
MOST_TOKENS = 4
LONG = 64
"""The default run sends no list with more items than its bound allows where the bound is above this number."""
METHODS, JOBS_BEGUN = 4, 8
"""Of the methods that a path does not have, and of the valid requests that begin a job, one in so many is sent in the
default run."""
JOBS = {
    "POST /api/captures",
    "POST /api/corpora",
    "POST /api/effects",
    "POST /api/features/contrast",
    "POST /api/lenses",
    "POST /api/patches",
    "POST /api/probes/train",
    "POST /api/saes/{sae_id}/labels/suggest",
    "POST /api/vectors/train",
    "POST /api/vectors/{vector_id}/measure",
}
TRAINING = {"/api/vectors/train", "/api/probes/train"}
"""Routes whose bodies are of one class, but for the method. In the default run one of them breaks a rule of a field for
both."""
GENERATING = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}
"""Routes whose fields are read by the same code. In the default run one of them breaks a rule of a field for all, and
the rules of edits are broken at `/api/interventions` alone."""
SAME = (
    "/properties/(all|any)/anyOf/0/items",
    "(all|any) -> Array with invalid items(: | -> )",
    "Object with valid '(all|any)' value: Single-item array: ",
)
"""Parts of the place of a rule that say only in which of several equal conditions it is."""
FEW = settings(
    max_examples=1,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=200)

# made when a test runs, because all workers of the test suite collect this file
described = schemathesis.pytest.from_fixture("description")
lasting = described.exclude(method="DELETE").exclude(path_regex="/(detach|load|unload)$")
quick = (
    schemathesis.pytest.from_fixture("without_long_lists")
    .exclude(method="DELETE")
    .exclude(path_regex="/(detach|load|unload)$")
    .exclude(path_regex="^/api/clusters/hub/")  # each question starts a process
)
removing = described.include(method="DELETE").include(path_regex="/detach$")
unloading = described.include(path_regex="/unload$")
loading = described.include(path_regex="/load$")


REPO = "acme/tiny"
PACKED = "small.cluster.json"
BATCH = {"endpoint": "/v1/completions", "completion_window": "24h"}
GROUPS = {"positives": ["a", "b"], "negatives": ["c", "d"]}
SUGGEST = {
    "features": [90],
    "endpoint": "resident",
    "examples": 1,
    "texts": ["A whale swam near the ship"],
}
SHORT_EFFECT = {
    "feature": {"index": 1},
    "strengths": [1.0],
    "tokens": 1,
    "random_directions": 0,
    "prompts": ["a"],
}
HUB_FILE = ("repository_id", "revision", "file_path", "hub_token")
SMALL = {"name": "small", "members": [{"feature_idx": 1, "strength": 1.0}]}


class World:
    """What exists in a service, and how it answered each operation."""

    def __init__(self, live: Running, folder: Path) -> None:
        self.live = live
        self.sae = demo.saes()[0]
        self.ids: dict[str, Any] = {
            "model_id": load_demo(live),
            "sae_id": add_sae(live, self.sae),
            "name": demo.MODEL_NAME,
            "repo_id": REPO,
        }
        live.data("POST", f"/api/saes/{self.ids['sae_id']}/attach", {"layer": self.sae.layer})
        calm = {"name": "calm", "steering": {"1": 2.0}}
        self.ids["profile_id"] = live.data("POST", "/api/profiles", calm, 201)["id"]
        (item,) = live.data("POST", "/api/clusters/import", SMALL)["results"]
        self.ids["cluster_id"] = item["profile_id"]
        circuit = {
            "name": "one layer",
            "saes": [{"layer": self.sae.layer}],
            "members": [{"layer": self.sae.layer, "feature": {"feature_idx": 1, "strength": 1.0}}],
        }
        self.ids["circuit_id"] = live.data("POST", "/api/circuits/import", circuit)["id"]
        width = live.data("GET", f"/api/saes/{self.ids['sae_id']}")["d_in"]
        self.direction = {"layer": self.sae.layer, "data": _zeros_and_one(width)}
        vector = {"name": "calm", "source": "inline", "directions": [self.direction]}
        self.ids["vector_id"] = live.data("POST", "/api/vectors", vector, 201)["id"]
        self.ids["probe_id"] = self._result("/api/probes/train", {"name": "calm", **GROUPS})["id"]
        self.lens_file = str(folder / "lens.safetensors")
        save_file({"J.1": np.eye(width, dtype=np.float32)}, self.lens_file)
        lens = {"name": "calm", "source": "local", "local_path": self.lens_file}
        self.ids["lens_id"] = self._result("/api/lenses", lens)["id"]
        corpus = {"name": "calm", "source": "inline", "texts": ["a b c"]}
        self.ids["corpus_id"] = self._result("/api/corpora", corpus)["id"]
        capture = self._result("/api/captures", {"name": "calm", **CAPTURE})
        self.ids["capture_id"] = capture["capture_id"]
        path = f"/api/saes/{self.ids['sae_id']}/labels/suggest"
        assert self._result(path, SUGGEST)["suggestions"]
        live.data("POST", "/api/runs/import", {"runs": [RUN]})
        self.ids["request_id"] = RUN["request_id"]
        self.ids["file_id"] = self._file()
        batch = {"input_file_id": self.ids["file_id"], **BATCH}
        self.ids["batch_id"] = live.post("/v1/batches", batch).json()["id"]
        self.ids["effect_id"], self._removed_effect = self._effect(1.0), self._effect(2.0)
        proof = {"name": "proof", "steering": {"1": 2.0}}
        self.ids["document_id"] = live.data("POST", "/api/profiles", proof, 201)["id"]
        self.answers: defaultdict[str, set[int]] = defaultdict(set)
        self.numbers = count()
        self._kinds: set[tuple[Any, ...]] = set()
        self._sent: set[str] = set()
        # one connection for all cases; the environment has no proxy for this machine
        self._session = requests.Session()
        self._session.trust_env = False

    def end_lease(self) -> None:
        """A lease that was granted on the way is nobody's, and would refuse every load."""
        self.live.service.owners.conductor.leases.restart()

    def answer(self, case: schemathesis.Case) -> None:
        """Send a case, aimed; the answer must be as described."""
        self._aim(case)
        self._send(case)

    def answer_new(self, case: schemathesis.Case) -> None:
        """Like `answer`, but of the cases that break one rule of one field, or keep to it, only the first is sent, and
        no case whose aimed request was sent before."""
        meta = case.meta  # the library looks through the whole case each time
        rule = meta and meta.phase.data
        if isinstance(rule, CoveragePhaseData) and not self._is_new(case, rule):
            return
        self._aim(case)
        request = (case.method, case.formatted_path, case.query, case.headers, case.body)
        content = sha256(repr(request).encode(errors="surrogatepass")).hexdigest()
        if content not in self._sent:
            self._sent.add(content)
            self._send(case)

    def _is_new(self, case: schemathesis.Case, rule: CoveragePhaseData) -> bool:
        label = case.operation.label
        if rule.scenario is CoverageScenario.UNSPECIFIED_HTTP_METHOD:
            return crc32(f"{case.method} {case.operation.path}".encode()) % METHODS == 0
        if rule.scenario is not CoverageScenario.DEFAULT_POSITIVE_TEST:
            begins_job = label in JOBS and not _is_negative(case)
            if begins_job and crc32(rule.description.encode()) % JOBS_BEGUN:
                return False
            is_of_both = case.operation.path in TRAINING and "method" not in (rule.location or "")
            if is_of_both and _is_negative(case):
                label = "a training"
            if case.operation.path in GENERATING:
                if "'edits'" in rule.description or "edits ->" in rule.description:
                    return False  # the same code reads the edits of /api/interventions
                label = "a generation"
        place, what = _read_once(rule.location or ""), _read_once(rule.description)
        kind = (label, rule.parameter, place, rule.scenario, what)
        is_new = kind not in self._kinds
        self._kinds.add(kind)
        return is_new

    def _send(self, case: schemathesis.Case) -> None:
        body = case.body
        if case.path in NAMING and isinstance(body, dict) and body.get("name") == "0":
            # the shortest name is the one generated most, and a name is given once
            body["name"] = f"0 {next(self.numbers)}"
        response = case.call_and_validate(
            self.live.url, checks=CHECKS_OF_EVERY_ANSWER, session=self._session
        )
        self.answers[case.operation.label].add(response.status_code)

    def never_succeeded(self) -> set[str]:
        served = {
            label for label, codes in self.answers.items() if any(code < 300 for code in codes)
        }
        return set(self.answers) - served

    def _file(self) -> str:
        """The id of a new file. A batch of it fails its check."""
        sent = {"file": ("lines.jsonl", b"{}")}
        answer = self.live.http.post("/v1/files", files=sent, data={"purpose": "batch"})
        return str(answer.json()["id"])

    def _effect(self, strength: float) -> str:
        """The id of a kept result."""
        return str(self._result("/api/effects", SHORT_EFFECT | {"strengths": [strength]})["id"])

    def _result(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The result of the job that a request begins."""
        result: dict[str, Any] = self.live.data("POST", f"{path}?wait=true", body)["job"]["result"]
        return result

    def _job(self) -> str:
        """The id of the newest job. Where there is none, one begins if an SAE is attached."""
        if not self.live.data("GET", "/api/jobs")["jobs"]:
            self.live.http.post("/api/features/contrast", json=GROUPS)
        jobs = self.live.data("GET", "/api/jobs")["jobs"]
        return str(jobs[0]["id"]) if jobs else "job_nobody"

    def _aim(self, case: schemathesis.Case) -> None:
        for name, value in self.ids.items():
            if isinstance((case.path_parameters or {}).get(name), str | int):
                case.path_parameters[name] = value
        if case.path.startswith("/api/sensing/") and "profile_id" in (case.path_parameters or {}):
            case.path_parameters["profile_id"] = self.ids["cluster_id"]
        if case.path.startswith("/api/health/circuits/"):
            case.path_parameters["name"] = "huggingface"
        if "job_id" in (case.path_parameters or {}):
            case.path_parameters["job_id"] = self._job()
        if case.method == "DELETE" and "file_id" in (case.path_parameters or {}):
            case.path_parameters["file_id"] = self._file()
        if case.method == "DELETE" and case.path == "/api/effects/{effect_id}":
            case.path_parameters["effect_id"] = self._removed_effect
        if case.method == "DELETE" and "document_id" in (case.path_parameters or {}):
            effect_id, document_id = self.ids["effect_id"], self.ids["document_id"]
            self.live.data("PUT", f"/api/effects/{effect_id}/evidence/{document_id}")
        if "/features/" in case.path and "index" in (case.path_parameters or {}):
            case.path_parameters["index"] = 3
        if case.path.endswith("/labels") and isinstance(case.body, dict):
            case.body = {"3": "sea"}
        for name in case.headers or {}:
            if name.lower().startswith("x-service-"):
                case.headers[name] = {"x-service-load-policy": "auto"}.get(name.lower(), "0")
        body = case.body
        if not isinstance(body, dict):
            return
        if isinstance(body.get("repo_id"), str):
            body["repo_id"] = REPO
            for choice in ("revision", "gguf_label", "hub_token"):
                body.pop(choice, None)
        if case.path == "/api/clusters/hub/import":
            body["filename"] = PACKED
        if isinstance(body.get("repository_id"), str):
            body["repository_id"] = REPO
            for choice in ("revision", "file_path", "hub_token", "local_path"):
                body.pop(choice, None)
        for member in body["saes"] if isinstance(body.get("saes"), list) else ():
            if isinstance(member, dict):
                member |= {"sae_id": self.ids["sae_id"], "layer": self.sae.layer}
        if case.path == "/api/compare" and isinstance(body.get("prompt"), str):
            _aim_comparison(body)
        if isinstance(body.get("local_path"), str):
            is_sae = case.path.startswith("/api/saes")
            body["local_path"] = str(self.sae.path if is_sae else demo.MODEL_DIR)
            if is_sae:
                for choice in ("repository_id", "revision", "file_path", "hub_token"):
                    body.pop(choice, None)
            else:
                body["source"] = "local"
        if not _is_negative(case):
            self._aim_work(case.path, body)
        if case.path == "/v1/batches" and isinstance(body.get("input_file_id"), str):
            body["input_file_id"] = self.ids["file_id"]
        elif case.path.startswith("/v1") and case.path != "/v1/files":
            is_response = case.path == "/v1/responses"
            _aim_request(body, "embeddings" not in case.path, is_response=is_response)

    def _aim_work(self, path: str, body: dict[str, Any]) -> None:
        """Let what is valid ask for little work, on what exists. What breaks a rule is sent as it is: it is refused."""
        if path == "/api/corpora" and isinstance(body.get("texts"), list):
            for choice in ("local_path", "repo_id", "file_path", "revision", "hub_token"):
                body.pop(choice, None)
            body |= {"source": "inline", "texts": ["a b c"]}
        if path == "/api/captures":
            for choice in ("messages", "corpus_id", "local_path", "repo_id", "interventions"):
                body.pop(choice, None)
            for choice in ("file_path", "revision", "hub_token"):
                body.pop(choice, None)
            body |= CAPTURE
        if path == "/api/patches":
            body.pop("align", None)
            body |= PATCH
        if path == "/api/lenses":
            for choice in ("repository_type", *HUB_FILE):
                body.pop(choice, None)
            body |= {"source": "local", "local_path": self.lens_file}
        if path.endswith("/labels/suggest") and "texts" in body:
            body |= SUGGEST
        if path.endswith("/labels/accept"):
            body["features"] = SUGGEST["features"]
        if path == "/api/runs/import":
            body["runs"] = [RUN]
        if path == "/api/vectors" and isinstance(body.get("directions"), list):
            _aim_file(body)
            body["directions"] = [self.direction]
        if path == "/api/probes" and isinstance(body.get("weights"), list):
            _aim_file(body)
            body["weights"] = [self.direction | {"bias": 0.5}]
        if path.endswith(("/train", "/contrast")) and isinstance(body.get("positives"), list):
            for choice in ("pairs", "site", "read", "layers"):
                body.pop(choice, None)
            body |= GROUPS
        if path == "/api/effects" and isinstance(body.get("strengths"), list):
            for choice in ("vector", "edits"):
                body.pop(choice, None)
            body |= SHORT_EFFECT


def _read_once(told: str) -> str:
    """The place of a rule. A condition and each of the conditions of which it is made are read by the same code."""
    return reduce(lambda text, part: re.sub(part, "", text), SAME, told)


def _is_negative(case: schemathesis.Case) -> bool:
    """Whether a case is made to break a rule."""
    meta = case.meta
    return meta is not None and meta.generation.mode.is_negative


def _zeros_and_one(width: int) -> str:
    """A direction of this width, in base64."""
    return base64.b64encode(struct.pack(f"<{width}f", 1, *[0] * (width - 1))).decode()


def _aim_file(body: dict[str, Any]) -> None:
    """Let the body have what it adds, and name no file."""
    for choice in (*HUB_FILE, "local_path", "layer"):
        body.pop(choice, None)
    body["source"] = "inline"


def _aim_comparison(body: dict[str, Any]) -> None:
    for choice in ("messages", "profile", "sae_id", "layer", "activations"):
        body.pop(choice, None)
    body |= {"steering": {"1": 2.0}, "intensities": [0.0, 1.0], "max_tokens": MOST_TOKENS}


def _aim_request(body: dict[str, Any], is_generating: bool, *, is_response: bool) -> None:
    for name, value in (("model", demo.MODEL_NAME), ("profile", "calm")):
        if isinstance(body.get(name), str):
            body[name] = value
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        if isinstance(message, dict) and message.get("content") is None:
            message["content"] = "Hello"
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if is_response:
        body["max_output_tokens"] = 1
    elif is_generating and body.get("max_completion_tokens") is None:
        body.setdefault("max_tokens", 1)


# ------------------------------------------------------------------ what every answer is held to


def every_answer_is_as_the_fuzzer_asks(_: Any, response: schemathesis.Response, case: Any) -> None:
    sent = Request(case.method, case.formatted_path)
    headers = {name: values[0] for name, values in response.headers.items()}
    answer = Answer(response.status_code, headers, response.content)
    assert list(faults(sent, answer)) == []
    if response.status_code == 500:
        assert response.json()["error"]["code"].upper() in NAMED_500


load_all_checks()
CHECKS_OF_EVERY_ANSWER: list[Callable[..., Any]] = [
    *CHECKS.get_by_names(list(STANDARD)),
    every_answer_is_as_the_fuzzer_asks,
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service to break. What was tried must have reached it: all but a few operations succeeded at least once."""
    home = tmp_path_factory.mktemp("described")
    with LoopbackHub() as hub, running(home, hf_endpoint=hub.url, disk_reserve_mb=0) as live:
        packed = json.dumps(SMALL).encode()
        hub.add(REPO, {"config.json": b"{}", "model.safetensors": b"", PACKED: packed})
        made = World(live, tmp_path_factory.mktemp("files"))
        yield made
        assert made.never_succeeded() <= NEVER_SUCCEED


@pytest.fixture(scope="module")
def description(world: World) -> schemathesis.BaseSchema:
    """The description that the service has made of itself."""
    return schemathesis.openapi.from_dict(world.live.http.get("/openapi.json").json())


@pytest.fixture(scope="module")
def without_long_lists(world: World) -> schemathesis.BaseSchema:
    """The description without the bounds of long lists. Lists beyond them take most of the time of a run."""
    told = world.live.http.get("/openapi.json").json()
    _drop_bounds(told)
    return schemathesis.openapi.from_dict(told)


def _drop_bounds(part: Any) -> None:
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for one in parts:
        _drop_bounds(one)
    if isinstance(part, dict) and isinstance(most := part.get("maxItems"), int) and most > LONG:
        del part["maxItems"]


@pytest.mark.shows("endpoints.1", "envelope.1", "envelope.2", "envelope.3")
@pytest.mark.slow
@pytest.mark.timeout(600)
@quick.parametrize()
@FEW
def test_every_answer_is_as_described(case: schemathesis.Case, world: World) -> None:
    world.answer_new(case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@lasting.parametrize()
@MANY
def test_every_answer_of_many_is_as_described(case: schemathesis.Case, world: World) -> None:
    world.answer(case)


@pytest.mark.shows("endpoints.1", "envelope.1", "envelope.2", "envelope.3")
@removing.parametrize()
@FEW
def test_every_answer_of_a_removal_is_as_described(case: schemathesis.Case, world: World) -> None:
    world.answer(case)


@pytest.mark.shows("endpoints.1", "envelope.1", "envelope.2", "envelope.3")
@unloading.parametrize()
@FEW
def test_every_answer_of_an_unload_is_as_described(case: schemathesis.Case, world: World) -> None:
    world.end_lease()
    world.answer(case)


@pytest.mark.shows("endpoints.1", "envelope.1", "envelope.2", "envelope.3")
@loading.parametrize()
@FEW
def test_every_answer_of_a_load_is_as_described(case: schemathesis.Case, world: World) -> None:
    world.end_lease()
    world.answer(case)
