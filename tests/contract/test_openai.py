"""The official OpenAI client against a running service."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import httpx2
import pytest

import openai
from steerserve import demo
from tests.contract.conftest import Weather
from tests.service import Running, add_model

MODEL = demo.MODEL_NAME
STORY = [{"role": "user", "content": "Tell me a story."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def sent() -> list[httpx2.Request]:
    """What the client sent, in order."""
    return []


@pytest.fixture
def client(shared: Running, sent: list[httpx2.Request]) -> Iterator[openai.OpenAI]:
    recording = httpx2.Client(event_hooks={"request": [sent.append]})
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="any", http_client=recording) as made:
        yield made


@pytest.fixture
def profile(shared: Running) -> Iterator[str]:
    """The name of a profile that turns the sea feature up."""
    proof = demo.proof()
    steering = {str(proof["feature_idx"]): proof["strength"]}
    made = shared.data("POST", "/api/profiles", {"name": "at sea", "steering": steering}, 201)
    yield "at sea"
    shared.data("DELETE", f"/api/profiles/{made['id']}")


@pytest.fixture
def attached(shared: Running) -> Iterator[str]:
    """The id of the SAE that has the sea feature, attached."""
    (sae,) = (sae for sae in demo.saes() if sae.name == demo.proof()["sae"])
    records = shared.data("GET", "/api/saes")["saes"]
    (sae_id,) = (record["id"] for record in records if record["name"] == sae.name)
    shared.data("POST", f"/api/saes/{sae_id}/attach", {"layer": sae.layer})
    yield sae_id
    shared.data("POST", f"/api/saes/{sae_id}/detach")


@pytest.mark.shows("overview.3")
def test_it_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=8, seed=1)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.startswith("service:")


def test_it_streams_what_it_gets_whole(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": STORY, "max_tokens": 8, "seed": 1}
    whole = client.chat.completions.create(**ask)
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options=options))
    assert chunks[0].choices[0].delta.role == "assistant"
    joined = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert joined == whole.choices[0].message.content
    assert [c.usage for c in chunks if c.usage] == [whole.usage]


def test_its_stream_helper_builds_the_whole_message(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": STORY, "stop": ["."], "max_tokens": 60}
    with client.chat.completions.stream(**ask) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == "".join(texts) != ""


@pytest.mark.shows("overview.3")
def test_it_completes_a_list_of_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["One day", "The sea"], max_tokens=5)
    assert [c.index for c in answer.choices] == [0, 1]
    streamed = client.completions.create(model=MODEL, prompt="One day", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed)


def test_it_offers_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=4, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_it_parses_an_answer_into_a_pydantic_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=STORY, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=STORY, response_format=Weather, max_tokens=3
        )


def test_its_stream_helper_does_not_parse(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": STORY, "response_format": Weather}
    with (
        pytest.raises(openai.BadRequestError) as refused,
        client.chat.completions.stream(**ask),
    ):
        pass
    assert refused.value.code == "response_format_unsupported"
    assert refused.value.param == "response_format"


def test_it_reads_log_probabilities(client: openai.OpenAI) -> None:
    text = client.completions.create(model=MODEL, prompt="One day", logprobs=3, max_tokens=1)
    found = text.choices[0].logprobs
    assert found is not None
    assert found.tokens == [text.choices[0].text]
    assert found.text_offset == [len("One day")]
    assert found.top_logprobs is not None
    assert len(found.top_logprobs[0]) == 3
    assert max(found.top_logprobs[0].values()) == found.token_logprobs[0] < 0
    chat = client.chat.completions.create(
        model=MODEL, messages=STORY, logprobs=True, top_logprobs=2, max_tokens=1
    )
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    (token,) = chat.choices[0].logprobs.content
    assert token.token == chat.choices[0].message.content
    assert bytes(token.bytes or []) == token.token.encode()
    assert token.top_logprobs[0].logprob == token.logprob > token.top_logprobs[1].logprob


@pytest.mark.shows("overview.3")
def test_its_embeddings_are_the_same_in_both_encodings(
    client: openai.OpenAI, sent: list[httpx2.Request]
) -> None:
    texts = ["The sea", "A mountain path"]
    default = client.embeddings.create(model=MODEL, input=texts)
    assert b'"encoding_format":"base64"' in sent[-1].content
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [entry.index for entry in default.data] == [0, 1]
    width = len(default.data[0].embedding)
    for one, other in zip(default.data, plain.data, strict=True):
        packed = struct.pack(f"<{width}f", *other.embedding)
        assert struct.pack(f"<{width}f", *one.embedding) == packed
    assert default.data[0].embedding != default.data[1].embedding
    assert default.usage.total_tokens == plain.usage.total_tokens > 0


@pytest.mark.shows("overview.3")
def test_it_lists_models(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_extensions_travel_in_extra_body(
    client: openai.OpenAI, attached: str, profile: str
) -> None:
    feature = demo.proof()["feature_idx"]
    asked = {"features": [feature], "positions": "last"}
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=STORY,
        max_tokens=4,
        extra_body={
            "profile": profile,
            "steering_intensity": 0.5,
            "return_sae_activations": asked,
        },
    )
    assert raw.headers["X-Service-Steering-Intensity"] == "0.5"
    assert "X-Service-Ignored-Fields" not in raw.headers
    answer = raw.parse()
    assert answer.model_extra is not None
    found = answer.model_extra["service"]["sae_activations"]
    assert found["sae_id"] == attached
    assert [f["index"] for p in found["positions"] for f in p["features"]] == [feature]


def test_raw_answers_show_what_was_not_used(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=STORY, max_tokens=1, seed=3, user="u", store=False
    )
    assert raw.headers["X-Service-Ignored-Fields"] == "user"
    assert raw.headers["X-Service-Seed"] == "3;scope=request"
    assert raw.parse().choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=STORY, user="u", extra_headers={"X-Service-Strict": "true"}
        )
    assert refused.value.code == "unused_fields_refused"


def test_it_raises_its_own_typed_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=STORY)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=STORY, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(model=MODEL, messages=STORY, tools=[TOOL])
    assert (tools.value.code, tools.value.param) == ("field_not_honoured", "tools")
    with pytest.raises(openai.BadRequestError) as stored:
        client.responses.create(model=MODEL, input="Hello", store=True)
    assert (stored.value.code, stored.value.param) == ("field_not_honoured", "store")


def test_it_does_not_repeat_what_repeating_cannot_change(
    shared: Running, client: openai.OpenAI, sent: list[httpx2.Request]
) -> None:
    """The client repeats a 409 by itself; `x-should-retry: false` is why it does not here."""
    other = add_model(shared, demo.MODEL_DIR, "another", quantization="Q8")
    try:
        with pytest.raises(openai.ConflictError) as refused:
            client.chat.completions.create(
                model="another",
                messages=STORY,
                extra_headers={"X-Service-Load-Policy": "refuse"},
            )
    finally:
        shared.data("DELETE", f"/api/models/{other}")
    assert refused.value.code == "model_not_resident"
    assert len(sent) == 1


async def test_the_asynchronous_client_does_the_same(shared: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="any") as client:
        parsing = client.chat.completions.parse(
            model=MODEL, messages=STORY, response_format=Weather
        )
        embedding = client.embeddings.create(model=MODEL, input="The sea")
        parsed, vectors = await asyncio.gather(parsing, embedding)
        assert isinstance(parsed.choices[0].message.parsed, Weather)
        assert len(vectors.data[0].embedding) > 1
        ask = {"model": MODEL, "messages": STORY, "stop": ["."], "seed": 1}
        async with client.chat.completions.stream(**ask) as stream:
            final = await stream.get_final_completion()
        whole = await client.chat.completions.create(**ask)
        assert final.choices[0].message.content == whole.choices[0].message.content
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=STORY)


async def test_the_asynchronous_client_serves_many_at_once(shared: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="any") as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=8)
                for _ in range(24)
            )
        )
    assert all(answer.choices[0].message.content for answer in answers)
