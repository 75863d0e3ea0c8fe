"""Every way to steer a request, after every way in which a service comes to serve: the text is that of an own hook, the
digest names what steers, and the report counts the positions that the hook changes."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from steerserve import demo
from steerserve.cli import main
from steerserve.client import Client
from tests.agents.test_mcp import agent
from tests.circuits import detach, document
from tests.local_cluster import LocalCluster
from tests.service import Running, add_model, add_sae, load_demo, running
from tests.worker import models

pytestmark = pytest.mark.timeout(400)  # one test brings a service through all states

SAE = demo.saes()[1]
FEATURE, VALUE = 90, 52.5
"""The feature of the sea, and its value."""
TOKENS = 8
MESSAGES = [{"role": "user", "content": "What did Anna do?"}]
GREEDY = {"max_tokens": TOKENS, "temperature": 0}
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MARGIN = 0.25
"""How far the logit of each token is above all others, so that no rounding decides a text."""


# ---------------------------------------------------------------- what an own hook computes


class OwnHook:
    """The demo model in float32, whose residual stream after the layer of the SAE gets value x decoder row."""

    def __init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            demo.MODEL_DIR, dtype=torch.float32
        ).eval()
        self.row = load_file(SAE.path / "sae_weights.safetensors")["W_dec"][FEATURE]
        prompt = self.tokenizer.apply_chat_template(
            MESSAGES, add_generation_prompt=True, tokenize=False
        )
        self.prompt: str = prompt
        self.ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def text(self, value: float) -> str:
        """The greedy answer with this value."""
        added = torch.from_numpy(self.row) * value
        hook = self.model.model.layers[SAE.layer].register_forward_hook(
            lambda _module, _given, out: out + added
        )
        ids = list(self.ids)
        try:
            with torch.inference_mode():
                for _ in range(TOKENS):
                    (first, second), tokens = self.model(torch.tensor([ids])).logits[0, -1].topk(2)
                    assert first - second > MARGIN, "rounding may decide this text"
                    ids.append(int(tokens[0]))
        finally:
            hook.remove()
        return str(self.tokenizer.decode(ids[len(self.ids) :]))


@pytest.fixture(scope="module")
def own() -> OwnHook:
    return OwnHook()


# ---------------------------------------------------------------- ways to steer


@dataclass(frozen=True)
class Seen:
    """What a way answered: the text, the digest of its steering, and at how many positions the report says that an edit
    acted. What a way does not tell is None."""

    text: str
    state: str | None
    acted: int | None


Ask = Callable[[Running, OwnHook], Seen]
FEATURE_VALUES = {"features": [{"index": FEATURE, "value": VALUE}]}
FEATURE_EDITS = {"edits": [{"op": "add", "feature": {"index": FEATURE}, "value": VALUE}]}


def vector_edits(own: OwnHook) -> dict[str, Any]:
    data = base64.b64encode(own.row.astype("<f4").tobytes()).decode()
    return {"edits": [{"op": "add", "vector": {"layer": SAE.layer, "data": data}, "value": VALUE}]}


def seen(answer: dict[str, Any], text: str, state: str | None) -> Seen:
    report = answer["steering_report"]
    assert report["changed"] is False
    assert "steering_changed" not in answer
    assert report["state"] == state
    acted = [edit["acted"] for edit in report["edits"]]
    assert len(acted) == (state is not None)
    return Seen(text, state, acted[0] if acted else 0)


def chat(live: Running, model: str = demo.MODEL_NAME, **fields: Any) -> Seen:
    body = {"model": model, "messages": MESSAGES, "return_steering_report": True, **GREEDY}
    answer = live.post(CHAT, body | fields)
    made, state = answer.json(), answer.headers.get("x-service-steering-state")
    return seen(made, made["choices"][0]["message"]["content"], state)


def streamed(live: Running, own: OwnHook) -> Seen:
    body = {
        "model": demo.MODEL_NAME,
        "messages": MESSAGES,
        "return_steering_report": True,
        **GREEDY,
    }
    chunks = [
        c for c in live.stream(CHAT, body | {"sae_steering": FEATURE_VALUES}) if c != "[DONE]"
    ]
    pieces = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
    return seen(chunks[-1], "".join(pieces), chunks[-1]["steering_report"]["state"])


def completed(live: Running, own: OwnHook) -> Seen:
    body = {"model": demo.MODEL_NAME, "prompt": own.prompt, "add_special_tokens": False, **GREEDY}
    answer = live.post(
        TEXT, body | {"interventions": FEATURE_EDITS, "return_steering_report": True}
    )
    made, state = answer.json(), answer.headers.get("x-service-steering-state")
    return seen(made, made["choices"][0]["text"], state)


def responded(live: Running, own: OwnHook) -> Seen:
    body = {"model": demo.MODEL_NAME, "input": MESSAGES, "return_steering_report": True}
    body |= {"max_output_tokens": TOKENS, "temperature": 0, "sae_steering": FEATURE_VALUES}
    answer = live.post(RESPONSES, body)
    made, state = answer.json(), answer.headers.get("x-service-steering-state")
    return seen(made, made["output"][0]["content"][0]["text"], state)


def in_a_batch(live: Running, own: OwnHook) -> Seen:
    body = {"model": demo.MODEL_NAME, "messages": MESSAGES, "return_steering_report": True}
    body |= {**GREEDY, "sae_steering": FEATURE_VALUES}
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body}
    file = live.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line))}
    ).json()
    asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    batch = live.post("/v1/batches", asked).json()
    while batch["status"] not in ("completed", "failed"):
        batch = live.http.get(f"/v1/batches/{batch['id']}").json()
    text = live.http.get(f"/v1/files/{batch['output_file_id']}/content").text
    made = json.loads(text)["response"]["body"]
    state = made["steering_report"]["state"]
    return seen(made, made["choices"][0]["message"]["content"], state)


def compared(live: Running, own: OwnHook) -> Seen:
    body = {"messages": MESSAGES, "sae_steering": FEATURE_VALUES, "intensities": [1], **GREEDY}
    (side,) = live.data("POST", "/api/compare", body)["sides"]
    return Seen(side["text"], side["steering_state"], None)


def by_an_agent(live: Running, own: OwnHook) -> Seen:
    async def asked() -> Any:
        async with agent(live.url) as one:
            edits = FEATURE_EDITS["edits"]
            return await one.call("generate", messages=MESSAGES, edits=edits, **GREEDY)

    answer = asyncio.run(asked())
    return Seen(answer["text"], answer["steering_state"], None)


def by_the_client(live: Running, own: OwnHook) -> Seen:
    with Client(live.url) as client:
        answer = client.chat(
            MESSAGES, sae_steering=FEATURE_VALUES, return_steering_report=True, **GREEDY
        )
    return seen(dict(answer.raw), answer.text, answer.steering_state)


def by_the_terminal(live: Running, own: OwnHook) -> Seen:
    """The feature is set for everybody, and the chat of the terminal has it."""

    def ran(*words: str) -> str:
        done = CliRunner().invoke(main, list(words), env={"STEERSERVE_URL": live.url})
        assert done.exit_code == 0, done.output
        return done.stdout

    ran("steer", f"{FEATURE}={VALUE}")
    try:
        options = ["--temperature", "0", "--max-tokens", str(TOKENS)]
        text = ran("run", demo.MODEL_NAME, *options, MESSAGES[0]["content"])
    finally:
        ran("steer", "--off")
    return Seen(text.rstrip("\n"), None, None)


def by_the_harness(live: Running, own: OwnHook) -> Seen:
    """The request that the model of lm-evaluation-harness sends."""
    module = importlib.import_module("steerserve.evals.lm_eval_model")
    model = module.SteerserveLM(base_url=live.url, sae_steering=FEATURE_VALUES)
    payload = model._create_payload(
        own.prompt, generate=True, gen_kwargs={"max_gen_toks": TOKENS, "temperature": 0}
    )
    made = live.post(TEXT, payload)
    state = made.headers.get("x-service-steering-state")
    return Seen(made.json()["choices"][0]["text"], state, None)


@contextmanager
def profile(live: Running, **fields: Any) -> Iterator[str]:
    """A saved profile of this name."""
    saved = live.data("POST", "/api/profiles", {"name": "sea", **fields}, 201)
    try:
        yield str(saved["id"])
    finally:
        live.data("DELETE", f"/api/profiles/{saved['id']}")


def with_profile(fields: Callable[[OwnHook], dict[str, Any]], ask: Ask) -> Ask:
    def asked(live: Running, own: OwnHook) -> Seen:
        with profile(live, **fields(own)):
            return ask(live, own)

    return asked


def active(fields: Callable[[OwnHook], dict[str, Any]], **body: Any) -> Ask:
    """A profile that steers everybody."""

    def asked(live: Running, own: OwnHook) -> Seen:
        with profile(live, **fields(own)) as profile_id:
            live.data("POST", f"/api/profiles/{profile_id}/activate")
            return chat(live, **body)

    return asked


def live_feature(live: Running, own: OwnHook) -> Seen:
    live.data("POST", "/api/saes/steering", {"feature_idx": FEATURE, "value": VALUE})
    try:
        return chat(live)
    finally:
        live.data("DELETE", "/api/saes/steering")


def live_edits(live: Running, own: OwnHook) -> Seen:
    live.data("PUT", "/api/interventions", vector_edits(own))
    try:
        return chat(live)
    finally:
        live.data("DELETE", "/api/interventions")


def cluster(live: Running, own: OwnHook) -> Seen:
    made = {
        "kind": "mistudio.cluster-definition",
        "schema_version": "1",
        "name": "sea words",
        "members": [{"feature_idx": FEATURE, "strength": VALUE, "sign": 1}],
    }
    (found,) = live.data("POST", "/api/clusters/import", made)["results"]
    try:
        live.data("POST", f"/api/clusters/{found['profile_id']}/activate")
        return chat(live)
    finally:
        live.data("DELETE", f"/api/profiles/{found['profile_id']}")


def circuit(live: Running, own: OwnHook) -> Seen:
    """A circuit of which the layer with an SAE is served."""
    made = document()
    made["members"][1] = {
        "layer": SAE.layer,
        "feature": {"feature_idx": FEATURE, "strength": VALUE, "sign": 1},
    }
    made["edges"][0]["down"]["feature_idx"] = FEATURE
    found = live.data("POST", "/api/circuits/import", made)["id"]
    try:
        live.data("POST", f"/api/circuits/{found}/activate")
        return chat(live)
    finally:
        live.data("DELETE", f"/api/circuits/{found}")


def sae_values(_: OwnHook) -> dict[str, Any]:
    return {"steering": {str(FEATURE): VALUE}}


def half_values(_: OwnHook) -> dict[str, Any]:
    return {"steering": {str(FEATURE): VALUE / 2}}


PLAIN: dict[str, Ask] = {"nothing": lambda live, own: chat(live)}
OF_VECTORS: dict[str, Ask] = {
    "interventions, a vector": lambda live, own: chat(live, interventions=vector_edits(own)),
    "profile, a vector": with_profile(vector_edits, lambda live, own: chat(live, profile="sea")),
    "name@profile, a vector": with_profile(
        vector_edits, lambda live, own: chat(live, f"{demo.MODEL_NAME}@sea")
    ),
    "live interventions": live_edits,
    "active profile, a vector": active(vector_edits),
}
OF_FEATURES: dict[str, Ask] = {
    "sae_steering": lambda live, own: chat(live, sae_steering=FEATURE_VALUES),
    "sae_steering, streamed": streamed,
    "interventions": lambda live, own: chat(live, interventions=FEATURE_EDITS),
    "interventions of a text completion": completed,
    "profile": with_profile(sae_values, lambda live, own: chat(live, profile="sea")),
    "name@profile": with_profile(
        sae_values, lambda live, own: chat(live, f"{demo.MODEL_NAME}@sea")
    ),
    "live": live_feature,
    "active profile": active(sae_values),
    "steering_intensity": active(half_values, steering_intensity=2),
    "cluster": cluster,
    "circuit": circuit,
    "batch": in_a_batch,
    "responses": responded,
    "compare": compared,
    "client": by_the_client,
    "terminal": by_the_terminal,
}
if importlib.util.find_spec("mcp"):
    OF_FEATURES["agent"] = by_an_agent
if importlib.util.find_spec("lm_eval"):
    OF_FEATURES["harness"] = by_the_harness


# ---------------------------------------------------------------- ways to come to serve


class Place:
    """A service that is brought from one state to the next."""

    def __init__(self, home: Path, other: Path, cluster: LocalCluster | None = None) -> None:
        self.home, self.other, self.cluster = home, other, cluster
        self._context: Any = None
        self.live: Running
        self.start()

    def start(self) -> None:
        settings: dict[str, Any] = {}
        if self.cluster is not None:
            settings = {"engine_backend": "ray", "engine_replicas": 2}
        self._context = running(self.home, self.cluster, **settings)
        self.live = self._context.__enter__()

    def stop(self) -> None:
        self._context.__exit__(None, None, None)

    @property
    def model(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.live.data("GET", "/api/models")["models"]
        return next(model for model in found if model["name"] == demo.MODEL_NAME)

    def attach(self) -> None:
        sae_id = add_sae(self.live, SAE)
        self.live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": SAE.layer})

    def detach(self) -> None:
        detach(self.live)

    def change(self) -> None:
        """The operator changes the live steering, so that the next engine begins in a later epoch."""
        self.live.data("POST", "/api/saes/steering", {"feature_idx": 1, "value": 5.0})
        self.live.data("DELETE", "/api/saes/steering")

    def load(self) -> None:
        self.live.data("POST", f"/api/models/{self.model['id']}/unload")
        self.live.data("POST", f"/api/models/{self.model['id']}/load?wait=true")

    def swap(self) -> None:
        """Another model takes the place, and a request brings this one back."""
        add_model(self.live, self.other, "other")
        body = {"model": "other", "prompt": "w1", "max_tokens": 1}
        self.live.post(TEXT, body)
        self.live.post(TEXT, body | {"model": demo.MODEL_NAME})

    def crash(self) -> None:
        resident = self.live.service.owners.conductor.resident
        assert resident is not None
        engine = resident.held()
        if self.cluster is not None:
            engine = self.cluster.alive[0]
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        if self.cluster is None:
            while self.model["status"] == "loaded":
                pass
        else:
            while len(self.cluster.alive) < 2 or not self._is_whole():
                pass
        self.live.post(TEXT, {"model": demo.MODEL_NAME, "prompt": "One", "max_tokens": 1})

    def _is_whole(self) -> bool:
        now = self.live.data("GET", f"/api/models/{self.model['id']}/replicas")
        return bool((now["strength"], now["serving"]) == ("whole", 2))

    def restart(self) -> None:
        self.stop()
        self.start()
        self.live.data("POST", f"/api/models/{self.model['id']}/load?wait=true")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    other = tmp_path_factory.mktemp("other")
    models.save("llama", other)
    made = Place(tmp_path_factory.mktemp("home"), other)
    load_demo(made.live)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("replicas"), Path(), LocalCluster())
    load_demo(made.live)
    made.attach()
    yield made
    made.stop()


STATES: dict[str, tuple[Callable[[Place], None], ...]] = {
    "fresh": (),
    "attached": (Place.attach,),
    "changed, then detached": (Place.change, Place.detach),
    "loaded again": (Place.load,),
    "loaded again, attached": (Place.attach,),
    "crashed while attached": (Place.change, Place.crash),
    "detached, then crashed": (Place.detach, Place.crash),
    "swapped": (Place.attach, Place.change, Place.detach, Place.swap),
    "restarted": (Place.attach, Place.change, Place.restart),
    "restarted, attached": (Place.attach,),
}
"""Each state with the steps that lead to it from the state before. In the first, no SAE is attached."""
REPLICAS: dict[str, tuple[Callable[[Place], None], ...]] = {
    "two replicas": (Place.change,),
    "a replica crashed": (Place.change, Place.crash),
}


def check_every_way(live: Running, own: OwnHook) -> None:
    """Ask in each way that the service offers now, and compare with what the own hook writes."""
    is_attached = live.data("GET", "/api/saes/attachments")["is_attached"]
    positions = len(own.ids) + TOKENS - 1  # the last token is read by no pass
    for ways, value in (
        (PLAIN, 0.0),
        (OF_VECTORS, VALUE),
        (OF_FEATURES if is_attached else {}, VALUE),
    ):
        found = {name: ask(live, own) for name, ask in ways.items()}
        texts = {name: one.text for name, one in found.items()}
        assert texts == dict.fromkeys(ways, own.text(value))
        counts = {name: one.acted for name, one in found.items() if one.acted is not None}
        assert counts == dict.fromkeys(counts, positions if value else 0)
        told = {name: one.state for name, one in found.items() if name != "terminal"}
        assert len(set(told.values())) <= 1, told
        assert all((state is not None) == bool(value) for state in told.values())
        DIGESTS.setdefault(tuple(ways), next(iter(told.values()), None))
        assert set(told.values()) <= {DIGESTS[tuple(ways)]}


DIGESTS: dict[tuple[str, ...], str | None] = {}
"""The digest of each kind of steering, which is the same in every state and in every service."""


def test_the_own_hook_moves_the_text(own: OwnHook) -> None:
    assert own.text(VALUE) != own.text(0)


@pytest.mark.slow
def test_in_every_state_every_way_steers_as_it_says(place: Place, own: OwnHook) -> None:
    for steps in STATES.values():
        for step in steps:
            step(place)
        check_every_way(place.live, own)


@pytest.mark.slow
@pytest.mark.local("starts replicas on a cluster of its own")
def test_on_every_replica_every_way_steers_as_it_says(replicated: Place, own: OwnHook) -> None:
    for steps in REPLICAS.values():
        for step in steps:
            step(replicated)
        check_every_way(replicated.live, own)
