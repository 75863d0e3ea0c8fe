"""SAE activations of one request over HTTP: where they are read, what they are, and when they are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from steerserve import demo
from steerserve.worker.sae import formats
from steerserve.worker.sae.canonical import Sae
from tests.openai.conftest import piece_of
from tests.service import Running, add_sae
from tests.worker.saes import source

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
STEERING = "/api/saes/steering"
FIELD = "return_sae_activations"
REFUSED = (400, "sae_activations_refused")
PROMPT = "One day the old fisherman"
COUNT = 6
FEATURE = 17
SAE = demo.saes()[0]
STORY = [{"role": "user", "content": "Tell me a story."}]


def text(asked: Any = None, **fields: Any) -> dict[str, Any]:
    body = {"model": demo.MODEL_NAME, "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}
    return body | {FIELD: asked if asked is not None else {}} | fields


def chat(asked: Any = None, **fields: Any) -> dict[str, Any]:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": COUNT, "temperature": 0}
    return body | {FIELD: asked if asked is not None else {}} | fields


def read(live: Running, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The activations of an answer."""
    whole = live.post(path, body).json()
    assert set(whole["service"]) == {"sae_activations"}
    found = whole["service"]["sae_activations"]
    assert set(found) == {"sae_id", "layer", "read_point", "positions", "note"}
    for position in found["positions"]:
        assert set(position) == {"position", "token_id", "features"}
        assert all(set(feature) == {"index", "value"} for feature in position["features"])
    return found


def places(found: dict[str, Any]) -> list[int]:
    return [position["position"] for position in found["positions"]]


def by_feature(position: dict[str, Any]) -> dict[int, float]:
    return {feature["index"]: feature["value"] for feature in position["features"]}


class Truth:
    """The demo model and its SAE, read with a hook of the test's own."""

    def __init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(demo.MODEL_DIR)
        self.model: Any = AutoModelForCausalLM.from_pretrained(demo.MODEL_DIR)
        self.sae: Sae = formats.load(source(SAE.path))

    def tokens(self, prompt: str) -> list[int]:
        return list(self.tokenizer(prompt)["input_ids"])

    def hidden(self, ids: list[int], steering: dict[int, float] | None = None) -> Tensor:
        """What the SAE's layer gives for these tokens, after this steering of it, [T, d_in]."""
        caught: list[Tensor] = []
        delta = self.sae.direction(steering) if steering else torch.zeros(self.sae.d_in)

        def after(_: Any, __: Any, output: Any) -> Any:
            steered = output + delta.to(output.dtype)
            caught.append(steered[0])
            return steered

        handle = self.model.model.layers[SAE.layer].register_forward_hook(after)
        with torch.inference_mode():
            self.model(input_ids=torch.tensor([ids]))
        handle.remove()
        return caught[0]

    def features(self, ids: list[int], steering: dict[int, float] | None = None) -> Tensor:
        """The SAE's own encoding of them, [T, d_sae]."""
        return self.sae.encode(self.hidden(ids, steering))


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


def check(position: dict[str, Any], expected: Tensor, count: int) -> None:
    """The largest features of a position, as the SAE encodes them, within half precision."""
    found = by_feature(position)
    assert len(found) == count
    values = list(found.values())
    assert values == sorted(values, reverse=True)
    scale = float(expected.max())
    for index, value in found.items():
        assert value == pytest.approx(float(expected[index]), abs=0.03 * scale)
    assert values == pytest.approx(expected.topk(count).values.tolist(), abs=0.03 * scale)


# ---------------------------------------------------------------- where


@pytest.mark.shows("request-activations.1", "request-activations.2", "request-activations.3")
@pytest.mark.parametrize(
    ("path", "positions", "expected"),
    [
        (TEXT, None, lambda prompt, end: range(end - 1, end)),
        (CHAT, "all", lambda prompt, end: range(end)),
        (TEXT, {"start": 3, "end": 100_000}, lambda prompt, end: range(3, end)),
    ],
)
def test_exactly_the_positions_asked_for_that_were_read_are_listed(
    steered: Running, path: str, positions: Any, expected: Any
) -> None:
    asked = {"top_k": 2} | ({} if positions is None else {"positions": positions})
    body = text(asked) if path == TEXT else chat(asked)
    whole = steered.post(path, body).json()
    prompt, written = (whole["usage"][f"{name}_tokens"] for name in ("prompt", "completion"))
    assert written == COUNT
    # the last sampled token is read by no pass
    end = prompt + written - 1
    found = whole["service"]["sae_activations"]
    assert places(found) == list(expected(prompt, end))
    assert "last sampled token" in found["note"]
    assert all(len(position["features"]) <= 2 for position in found["positions"])


@pytest.mark.shows("request-activations.2", "request-activations.7")
def test_the_tokens_are_those_of_the_prompt_then_of_the_completion(
    steered: Running, truth: Truth
) -> None:
    whole = steered.post(TEXT, text({"positions": "all"})).json()
    tokens = [p["token_id"] for p in whole["service"]["sae_activations"]["positions"]]
    ids = truth.tokens(PROMPT)
    assert tokens[: len(ids)] == ids
    assert len(tokens) == len(ids) + COUNT - 1
    read_text = truth.tokenizer.decode(tokens, skip_special_tokens=True)
    assert len(read_text) > len(PROMPT)
    assert (PROMPT + whole["choices"][0]["text"]).startswith(read_text)


# ---------------------------------------------------------------- what


@pytest.mark.shows(
    "chat-parameters.16",
    "request-activations.1",
    "request-activations.4",
    "request-activations.5",
    "request-activations.7",
)
def test_values_are_the_saes_own_encoding_of_the_hidden_states(
    steered: Running, truth: Truth
) -> None:
    found = read(steered, TEXT, text({"positions": "all", "top_k": 8}))
    tokens = [position["token_id"] for position in found["positions"]]
    expected = truth.features(tokens)
    assert len(found["positions"]) == len(expected)
    for position in found["positions"][1:]:
        check(position, expected[position["position"]], 8)
    attachment = steered.data("GET", "/api/saes/attachment")
    assert (found["sae_id"], found["layer"]) == (attachment["sae_id"], SAE.layer)
    assert found["read_point"] == "post_steering"


# ---------------------------------------------------------------- before and after steering


@pytest.mark.shows("request-activations.5")
def test_reading_after_steering_sees_what_was_added_and_reading_before_does_not(
    steered: Running, truth: Truth
) -> None:
    ids = truth.tokens(PROMPT)
    asked = {"features": [FEATURE], "positions": "prompt"}

    def values(point: str, **fields: Any) -> list[float]:
        found = read(steered, TEXT, text(asked | {"read_point": point}, max_tokens=1, **fields))
        assert found["read_point"] == point
        return [by_feature(position)[FEATURE] for position in found["positions"]]

    plain = values("post_steering")
    assert values("pre_steering") == plain
    steered.data("POST", STEERING, {"feature_idx": FEATURE, "value": 40})
    before, after = values("pre_steering"), values("post_steering")
    assert before == plain
    expected = truth.features(ids, {FEATURE: 40.0})[:, FEATURE].tolist()
    assert after == pytest.approx(expected, rel=0.05, abs=0.5)
    assert all(b - a > 10 for a, b in zip(before, after, strict=True))


def test_a_profiles_steering_is_what_its_own_request_reads(steered: Running) -> None:
    made = steered.data("POST", "/api/profiles", {"name": "read", "steering": {"17": 40}}, 201)
    try:
        asked = {"features": [FEATURE], "positions": "prompt"}
        plain = read(steered, CHAT, chat(asked))
        found = read(steered, CHAT, chat(asked, profile="read"))
        off = read(steered, CHAT, chat(asked, profile="read", steering_intensity="off"))
        pairs = zip(plain["positions"], found["positions"], strict=True)
        assert all(by_feature(b)[FEATURE] - by_feature(a)[FEATURE] > 10 for a, b in pairs)
        assert off["positions"] == plain["positions"]
    finally:
        steered.data("DELETE", f"/api/profiles/{made['id']}")


@pytest.mark.shows("request-activations.6")
def test_a_scored_prompt_is_read_unsteered(steered: Running) -> None:
    asked = {"positions": "all", "features": [FEATURE, 3]}
    plain = read(steered, TEXT, text(asked, max_tokens=1))
    steered.data("POST", STEERING, {"feature_idx": FEATURE, "value": 40})
    for read_point in ({}, {"read_point": "pre_steering"}, {"read_point": "post_steering"}):
        answer = steered.post(TEXT, text(asked | read_point, max_tokens=1, logprobs=1))
        assert answer.headers["x-service-steering"] == "none"
        found = answer.json()["service"]["sae_activations"]
        assert found["read_point"] == "unsteered"
        assert found["positions"] == plain["positions"]
    chatted = steered.post(CHAT, chat(asked, max_tokens=1, logprobs=True))
    assert chatted.json()["service"]["sae_activations"]["read_point"] == "unsteered"
    assert chatted.headers["x-service-steering"] == "none"


# ---------------------------------------------------------------- streamed, or not asked for


@pytest.mark.shows("request-activations.9")
@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_stream_carries_them_in_one_last_chunk_without_choices(
    steered: Running, path: str
) -> None:
    body = (text if path == TEXT else chat)({"positions": "all", "top_k": 3}, seed=4)
    whole = steered.post(path, body).json()
    *chunks, last, done = steered.stream(path, body)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["service"] == whole["service"]
    assert "usage" not in last
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"]
    assert all("service" not in chunk and chunk["choices"] for chunk in chunks)
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {(last["id"], last["object"])}


def by_chunk(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The positions in one chunk of a stream."""
    told = event.get("service", {}).get("sae_activations")
    if told is None:
        return []
    assert set(told) == {"sae_id", "layer", "read_point", "positions"}
    return list(told["positions"])


@pytest.mark.parametrize(
    ("path", "positions"),
    [(TEXT, "completion"), (TEXT, "last"), (CHAT, "all")],
)
def test_stream_positions_sends_each_position_with_the_chunk_of_its_token(
    steered: Running, path: str, positions: str
) -> None:
    build = text if path == TEXT else chat
    whole = read(steered, path, build({"positions": positions, "top_k": 3}))
    asked = {"positions": positions, "top_k": 3, "stream_positions": True}
    plain = steered.post(path, build({})).json()["choices"][0]
    *chunks, done = steered.stream(path, build(asked))
    assert done == "[DONE]"
    assert "".join(map(piece_of, chunks)) == (plain.get("text") or plain["message"]["content"])
    told = [position for event in chunks for position in by_chunk(event)]
    assert [p["position"] for p in told] == places(whole)
    assert [p["token_id"] for p in told] == [p["token_id"] for p in whole["positions"]]
    for event in chunks:
        if event["choices"] and by_chunk(event):
            (position,) = by_chunk(event)
            assert position["text"] == piece_of(event)
    # what is read of the prompt comes before the first text
    first = next(at for at, event in enumerate(chunks) if piece_of(event))
    prompt = [at for at, event in enumerate(chunks) if by_chunk(event) and not event["choices"]]
    assert all(at < first for at in prompt)
    assert bool(prompt) == (positions in ("all", "prompt"))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == COUNT


def test_a_streamed_score_with_stream_positions_has_them_before_the_score(
    steered: Running,
) -> None:
    asked = {"positions": "prompt", "stream_positions": True}
    first, score, _ = steered.stream(TEXT, text(asked, max_tokens=1, logprobs=1))
    assert first["choices"] == []
    assert first["service"]["sae_activations"]["read_point"] == "unsteered"
    assert by_chunk(first)[0]["position"] == 0
    assert score["choices"][0]["logprobs"]["tokens"]


def test_stream_positions_is_reported_where_the_answer_is_not_streamed(steered: Running) -> None:
    asked = {"stream_positions": True}
    answer = steered.post(TEXT, text(asked))
    assert answer.headers["x-service-ignored-fields"] == f"{FIELD}.stream_positions"
    assert set(answer.json()["service"]["sae_activations"]) >= {"note"}
    streamed = steered.post(TEXT, text(asked, stream=True))
    assert "x-service-ignored-fields" not in streamed.headers


@pytest.mark.shows("request-activations.8")
def test_an_answer_that_was_not_asked_has_no_service_key(steered: Running) -> None:
    bare = {name: value for name, value in text().items() if name != FIELD}
    for body in (bare, bare | {FIELD: None}, bare | {"max_tokens": 1, "logprobs": 1}):
        assert "service" not in steered.post(TEXT, body).json()
        assert all("service" not in event for event in steered.stream(TEXT, body)[:-1])
    assert "service" not in steered.post(CHAT, chat() | {FIELD: None}).json()


# ---------------------------------------------------------------- refusals


@pytest.mark.shows("request-activations.10")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(n=2)),
        (CHAT, chat(extra_messages=[STORY])),
        (CHAT, chat(extra_messages=[STORY], max_tokens=1, logprobs=True)),
        (TEXT, text(prompt=["One day", "The sea"])),
        (TEXT, text(prompt=["One day", "The sea"], max_tokens=1, logprobs=1)),
    ],
)
def test_several_choices_are_refused_before_a_model_is_sought(
    shared: Running, path: str, body: dict[str, Any]
) -> None:
    status, error = shared.v1_error(path, body | {"model": "nobody"})
    assert (status, error["code"], error["param"]) == (*REFUSED, FIELD)


@pytest.mark.shows("request-activations.10")
@pytest.mark.parametrize("is_stream", [False, True])
def test_without_an_attached_sae_they_are_refused(shared: Running, is_stream: bool) -> None:
    sae_id = add_sae(shared, SAE)
    for asked in ({}, {"sae_id": sae_id}):
        status, error = shared.v1_error(TEXT, text(asked, stream=is_stream))
        assert (status, error["code"], error["param"]) == (*REFUSED, f"{FIELD}.sae_id")


def test_one_sae_at_two_layers_is_read_at_the_layer_that_is_named(steered: Running) -> None:
    own = steered.data("GET", "/api/saes/attachment")["sae_id"]
    other = SAE.layer + 1
    steered.data("POST", "/api/saes/attach-set", {"saes": [{"sae_id": own, "layer": other}]})
    _, error = steered.v1_error(TEXT, text({"sae_id": own}))
    assert (error["code"], error["param"]) == (REFUSED[1], f"{FIELD}.layer")
    both = [{"sae_id": own, "layer": layer} for layer in (SAE.layer, other)]
    assert error["details"]["attached"] == both
    here, there = (
        read(steered, TEXT, text({"sae_id": own, "layer": layer})) for layer in (SAE.layer, other)
    )
    assert (here["layer"], there["layer"]) == (SAE.layer, other)
    assert here["positions"][0]["features"] != there["positions"][0]["features"]
    _, error = steered.v1_error(TEXT, text({"layer": 99}))
    assert (error["code"], error["param"]) == (REFUSED[1], f"{FIELD}.layer")


@pytest.mark.shows("request-activations.10")
def test_more_entries_than_allowed_are_refused_counting_max_tokens_in_full(
    steered: Running, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = len(truth.tokens(PROMPT))
    limit = 5 * (prompt + 100)
    monkeypatch.setattr(steered.service.settings, "sae_activations_max_entries", limit)

    def asked(positions: Any, top_k: int, max_tokens: int) -> dict[str, Any]:
        fields = {"positions": positions, "top_k": top_k}
        return text(fields, max_tokens=max_tokens, stop=[" "])

    assert steered.post(TEXT, asked("all", 5, 100)).json()["service"]
    for is_stream in (False, True):
        status, error = steered.v1_error(TEXT, asked("all", 5, 101) | {"stream": is_stream})
        assert (status, error["code"], error["param"]) == (*REFUSED, f"{FIELD}.positions")
        assert error["details"]["max_entries"] == limit
        assert error["details"]["entries"] > limit
