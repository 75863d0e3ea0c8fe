"""The Responses API over HTTP: its answers are those of chats, and its stream has the events that clients expect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai.types.responses import Response
from pydantic import BaseModel

import openai
from steerserve import demo
from tests.openai.conftest import Zoo
from tests.service import Running

PATH = "/v1/responses"
LOGPROBS = "message.output_text.logprobs"
MODEL = demo.MODEL_NAME
ASK: dict[str, Any] = {"model": MODEL, "input": "Tell me a story.", "temperature": 0}
STORY = {"role": "user", "content": "Tell me a story."}


class Pet(BaseModel):
    name: str
    is_calm: bool


@pytest.fixture
def client(shared: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def events(live: Running, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream. The name of each event is its type."""
    with live.http.stream("POST", PATH, json={**ASK, "stream": True, **fields}) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [line for line in answer.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [one["type"] for one in found] == names
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    return found


def text_of(response: Any) -> str:
    (message,) = response["output"]
    (part,) = message["content"]
    return str(part["text"])


# ---------------------------------------------------------------- answers


def test_a_response_has_every_field_that_the_client_requires(shared: Running) -> None:
    Response.model_validate(shared.post(PATH, ASK).json())


def test_a_response_is_the_chat_of_its_instructions_and_input(shared: Running) -> None:
    more = {"temperature": 0.9, "top_p": 0.8, "seed": 3}
    told = {"instructions": "Be brief.", "max_output_tokens": 6, "metadata": {"run": "one"}}
    answer = shared.post(PATH, ASK | more | told).json()
    system = {"role": "system", "content": "Be brief."}
    chat = {"model": MODEL, "messages": [system, STORY], "max_tokens": 6} | more
    same = shared.post("/v1/chat/completions", chat).json()
    assert text_of(answer) == same["choices"][0]["message"]["content"]
    assert answer["usage"]["input_tokens"] == same["usage"]["prompt_tokens"]
    assert answer["usage"]["output_tokens"] == 6
    assert (answer["status"], answer["output"][0]["status"]) == ("incomplete", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["instructions"] == "Be brief."
    assert answer["metadata"] == {"run": "one"}
    assert (answer["temperature"], answer["top_p"], answer["store"]) == (0.9, 0.8, False)


def test_items_of_an_earlier_response_are_its_next_turn(shared: Running) -> None:
    first = shared.post(PATH, ASK | {"max_output_tokens": 5}).json()
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    more = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "On."}]}
    items = [STORY, *first["output"], thought, more]
    answer = shared.post(PATH, ASK | {"input": items, "max_output_tokens": 5})
    assert answer.headers["x-service-ignored-fields"] == "input[2]"
    messages = [
        STORY,
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "On."},
    ]
    chat = {"model": MODEL, "messages": messages, "max_tokens": 5, "temperature": 0}
    same = shared.post("/v1/chat/completions", chat).json()
    assert text_of(answer.json()) == same["choices"][0]["message"]["content"]


def test_a_stream_has_its_events_in_their_order_and_ends_with_the_whole(shared: Running) -> None:
    found = events(shared, max_output_tokens=4)
    kinds = [one["type"].removeprefix("response.") for one in found]
    deltas = [one["delta"] for one in found if one["type"].endswith("text.delta")]
    assert deltas
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    whole = found[-1]["response"]
    assert found[0]["response"]["id"] == whole["id"]
    assert found[0]["response"]["output"] == []
    text = "".join(deltas)
    assert (found[-4]["text"], found[-3]["part"]["text"], text_of(whole)) == (text, text, text)
    assert found[-2]["item"] == whole["output"][0]
    assert {one["item_id"] for one in found if "item_id" in one} == {whole["output"][0]["id"]}
    assert text == text_of(shared.post(PATH, ASK | {"max_output_tokens": 4}).json())


def test_a_stop_string_completes_a_response(shared: Running) -> None:
    found = events(shared, stop=["."], max_output_tokens=60)
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["incomplete_details"] is None


def test_a_failure_in_a_stream_is_its_last_event(zoo: Zoo) -> None:
    zoo.load("poisoned")
    found = events(zoo.live, model="poisoned", input="~", max_output_tokens=4)
    assert found[-1]["type"] == "response.failed"
    failed = found[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "non_finite_logits")


def test_a_document_follows_its_schema(shared: Running) -> None:
    wanted = {"type": "json_schema", "name": "pet", "schema": Pet.model_json_schema()}
    answer = shared.post(PATH, ASK | {"text": {"format": wanted}, "max_output_tokens": 200})
    assert answer.headers["x-service-constrained"] == "json_schema;name=pet"
    assert answer.json()["text"]["format"] == wanted
    if answer.json()["status"] == "completed":
        Pet.model_validate_json(text_of(answer.json()))


def test_a_text_has_the_log_probabilities_that_chats_have(shared: Running) -> None:
    more = {"include": [LOGPROBS], "top_logprobs": 2, "max_output_tokens": 4}
    part = shared.post(PATH, ASK | more).json()["output"][0]["content"][0]
    chat = {"model": MODEL, "messages": [STORY], "max_tokens": 4, "temperature": 0}
    same = shared.post("/v1/chat/completions", chat | {"return_logprobs": {"top": 2}}).json()
    expected = same["service"]["logprobs"]
    found = [(one["token"], one["logprob"]) for one in part["logprobs"]]
    assert found == [(one["token"], one["steered"]["logprob"]) for one in expected]
    assert [len(one["top_logprobs"]) for one in part["logprobs"]] == [2] * 4
    streamed = events(shared, **more)
    (done,) = (one for one in streamed if one["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]
    assert streamed[-1]["response"]["output"][0]["content"] == [part]
    assert "service" not in streamed[-1]["response"]


# ---------------------------------------------------------------- steering


def test_a_response_is_steered_and_reports_it(steered: Running) -> None:
    own = {"features": [{"index": 500, "value": 9.0}]}
    more = {"max_output_tokens": 4, "sae_steering": own, "return_steering_report": True}
    answer = steered.post(PATH, ASK | more)
    assert answer.headers["x-service-steering-sources"] == "request"
    report = answer.json()["steering_report"]
    assert report["edits"][0]["acted"] > 0
    assert events(steered, **more)[-1]["response"]["steering_report"] == report


def test_activations_are_in_the_last_event_of_a_stream(steered: Running) -> None:
    asked = {"top_k": 1, "positions": "completion", "stream_positions": True}
    found = events(steered, return_sae_activations=asked, max_output_tokens=4)
    service = found[-1]["response"]["service"]
    assert len(service["sae_activations"]["positions"]) == 3


# ---------------------------------------------------------------- the client of OpenAI


def test_the_client_of_openai_creates_streams_and_parses(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK, max_output_tokens=8)
    assert whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    stream = client.responses.create(**ASK, max_output_tokens=8, stream=True)
    joined = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert joined == whole.output_text
    with client.responses.stream(**ASK, max_output_tokens=8) as helped:
        kinds = {event.type for event in helped}
    assert "response.incomplete" in kinds
    parsed = client.responses.parse(
        model=MODEL, input="A pet.", text_format=Pet, extra_body={"seed": 1}
    )
    if parsed.status == "completed":
        assert isinstance(parsed.output_parsed, Pet)


async def test_the_asynchronous_client_of_openai(shared: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="any") as client:
        whole = await client.responses.create(**ASK, max_output_tokens=4)
        stream = await client.responses.create(**ASK, max_output_tokens=4, stream=True)
        last = [event async for event in stream][-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
