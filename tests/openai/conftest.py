"""Fixtures: a service with several tiny models, and ways to hold a step of the service."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from tokenizers import normalizers
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, BertConfig
from transformers.utils import logging as transformers_logging

from steerserve import demo
from steerserve.rules.residency.swap import Phase
from tests.service import ONE_REPLICA, Running, add_model, running
from tests.worker import models
from tests.worker.running import altered, with_bos

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
POISON = "~"
"""A character whose embedding in the model `poisoned` is NaN, so the logits after this character are NaN too."""

PATIENCE = 60.0


@dataclass
class Zoo:
    """A service with many models. A test loads the model that it needs.

    `tiny` is in float32 and has a chat template; `plain` has no template and no token for the beginning of a sequence;
    `poisoned` is `tiny` with a token whose embedding is NaN; `bert` can only embed; `damaged` and `quarter` cannot be loaded; the demo model does not fit into memory. Three
    requests at once fill the service.
    """

    live: Running
    folders: dict[str, Path] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)

    def resident(self) -> str | None:
        """The name of the model in the slot, whatever its phase."""
        found = self.live.data("GET", "/api/models")
        names = [m["name"] for m in found["models"] if m["id"] == found["loaded_model_id"]]
        return names[0] if names else None

    def status(self, name: str) -> str:
        return str(self.live.data("GET", f"/api/models/{self.ids[name]}")["status"])

    def load(self, name: str) -> None:
        """Load a model. A load or an unload of another test ends first."""
        changing = (Phase.LOADING, Phase.UNLOADING)
        while self.live.service.owners.conductor.view().phase in changing:
            self.resident()
        if self.resident() != name:
            self.live.data("POST", f"/api/models/{self.ids[name]}/load?wait=true")

    def renew(self, name: str) -> None:
        """Register a model again, so that failed loads of the model are forgotten."""
        self.live.data("DELETE", f"/api/models/{self.ids[name]}")
        self.register(name)

    def register(self, name: str) -> None:
        quantization = "Q2" if name == "quarter" else "FP16"
        folder = self.folders[name]
        self.ids[name] = add_model(self.live, folder, name, quantization=quantization)

    def empty(self) -> None:
        """Unload the model, if one is loaded."""
        name = self.resident()
        if name is not None:
            self.live.data("POST", f"/api/models/{self.ids[name]}/unload")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """The service with many models, shared by all tests. The loaded model is the one that the last test needed."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    root = tmp_path_factory.mktemp("zoo")
    names = ("tiny", "poisoned", "plain", "bert", "damaged", "quarter")
    folders = {name: root / name for name in names}
    with_bos(models.save("llama", folders["tiny"]), TEMPLATE)
    shutil.copytree(folders["tiny"], folders["poisoned"])
    poison(folders["poisoned"])
    stripping(models.save("gpt2", folders["plain"]))
    save_encoder(folders["bert"])
    altered(folders["tiny"], folders["damaged"], hidden_size=48)
    shutil.copytree(folders["plain"], folders["quarter"])
    room = {"max_concurrent_requests": 3, "max_pending_requests": 0, **ONE_REPLICA}
    with running(root / "home", kv_cache_mb=1, torch_threads=1, **room) as live:
        made = Zoo(live, folders | {"large": demo.MODEL_DIR})
        for name in made.folders:
            made.register(name)
        yield made


@pytest.fixture
def tiny(zoo: Zoo) -> Running:
    """The service whose resident model is a random one in float32."""
    zoo.load("tiny")
    return zoo.live


class Truth:
    """A checkpoint as transformers runs it in float32."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def ids(self, prompt: str, *, special: bool = True) -> list[int]:
        return list(self.tokenizer(prompt, add_special_tokens=special)["input_ids"])

    def logits(self, ids: list[int]) -> Tensor:
        """Logits [T, vocabulary] after each token."""
        with torch.inference_mode():
            found: Tensor = self.model(input_ids=torch.tensor([ids])).logits[0].float()
        return found

    def text(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))


@pytest.fixture(scope="session")
def truth(zoo: Zoo) -> Truth:
    """What `tiny` is."""
    return Truth(zoo.folders["tiny"])


def poison(folder: Path) -> None:
    """Make the input embedding of one character NaN. The check of a model at its load does not use this character."""
    safetensors = pytest.importorskip("safetensors.torch")
    token = models.tokenizer().convert_tokens_to_ids(POISON)
    tried = torch.randint(0, models.VOCABULARY, (24,), generator=torch.Generator().manual_seed(0))
    assert token not in tried.tolist()
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    tensors["model.embed_tokens.weight"][token] = torch.nan
    safetensors.save_file(tensors, file, metadata={"format": "pt"})


def save_encoder(folder: Path) -> None:
    """Write a random checkpoint that can only embed, with 66 positions."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(
        vocab_size=models.VOCABULARY,
        intermediate_size=64,
        max_position_embeddings=66,
        initializer_range=0.25,
        **shape,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        AutoModel.from_config(config, dtype=torch.float32).save_pretrained(folder)
    with_bos(folder)


def stripping(folder: Path) -> None:
    """Give the folder a tokenizer that strips blanks at both ends, so that a text of blanks has no tokens."""
    tokenizer = models.tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Strip()
    tokenizer.save_pretrained(folder)


class Hold:
    """Holds one step of the service. `reached` is set when the service comes to the step, and the step goes on when
    `open` is set."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def wait(self) -> None:
        assert self.reached.wait(PATIENCE), "the service never came to the step that is held"


@contextmanager
def holding(owner: Any, name: str) -> Iterator[Hold]:
    """Inside the block, calls of the coroutine function `name` of `owner` wait until the hold is opened."""
    hold, real = Hold(), getattr(owner, name)

    async def waiting(*args: Any, **fields: Any) -> Any:
        hold.reached.set()
        await asyncio.to_thread(hold.open.wait, PATIENCE)
        return await real(*args, **fields)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, waiting)
        try:
            yield hold
        finally:
            hold.open.set()


def in_flight(live: Running) -> int:
    """The number of requests that hold a slot."""
    return int(live.data("GET", "/api/health/detailed")["inference"]["in_flight"])


def pending(live: Running) -> int:
    """The number of accepted requests, with a slot or without."""
    return int(live.data("GET", "/api/health/detailed")["inference"]["queue_pending"])


def until_idle(live: Running) -> None:
    while pending(live):
        pass


def asked(live: Running, path: str, body: dict[str, Any], address: str) -> httpx2.Response:
    """The answer to a request from an address of this machine."""
    transport = httpx2.HTTPTransport(local_address=address)
    with httpx2.Client(base_url=live.url, transport=transport, timeout=60) as client:
        return client.post(path, json=body)


def greedy(path: str, count: int, **fields: Any) -> dict[str, Any]:
    """A request for a greedy text of so many tokens, at a route that writes."""
    prompts: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "Tell me about the sea"}]},
        TEXT: {"prompt": "The boats came back to the"},
        RESPONSES: {"input": "Tell me about the sea"},
    }
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    return {"model": demo.MODEL_NAME, "temperature": 0, limit: count} | prompts[path] | fields


def payload(line: str) -> Any:
    """The object in one line of a stream, or the word that ends the stream."""
    text = line.removeprefix("data: ")
    return text if text == "[DONE]" else json.loads(text)


def piece_of(event: dict[str, Any]) -> str:
    """The text in one event of a stream of one choice."""
    (choice,) = event["choices"] or [{}]
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


def pieces(answer: httpx2.Response) -> Iterator[str]:
    """The text of each event of a stream of one choice, as it comes."""
    events = (payload(line) for line in answer.iter_lines() if line)
    return (piece_of(event) for event in events if event != "[DONE]")
