"""Text and chat completions over a real service and the demo model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tokenizers import Tokenizer

from steerserve import demo
from tests.near import check_same_chat, check_same_completion
from tests.service import Running

MODEL = demo.MODEL_NAME


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.MODEL_DIR / "tokenizer.json"))


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


@pytest.mark.shows("inference.1", "chat-parameters.3", "chat-parameters.22", "overview.3")
def test_a_chat_stream_begins_with_the_role_and_joins_to_the_blocking_answer(
    shared: Running,
) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 30, "seed": 5}
    events = shared.stream("/v1/chat/completions", body)
    deltas = [e["choices"][0]["delta"] for e in events[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in d for d in deltas[1:])
    whole = shared.http.post("/v1/chat/completions", json=body).json()
    message = whole["choices"][0]["message"]
    assert "".join(d.get("content", "") for d in deltas) == message["content"]
    assert message["role"] == "assistant"
    assert whole["object"] == "chat.completion"
    assert {e["id"] for e in events[:-1]} == {events[0]["id"]}
    assert events[-2]["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.shows("chat-parameters.19")
def test_length_is_reported_exactly_at_max_tokens(shared: Running) -> None:
    for limit in (1, 2, 7):
        answer = shared.complete("One day", max_tokens=limit, seed=1)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == limit
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + limit


@pytest.mark.shows("chat-parameters.19")
def test_a_story_ends_by_itself_with_stop(shared: Running) -> None:
    answer = shared.chat("Tell me a story.", max_tokens=400, seed=2)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 400


@pytest.mark.shows("text-completions.1", "inference.2", "overview.3")
def test_each_prompt_of_a_list_yields_its_choice(shared: Running) -> None:
    prompts = ["One day", "The sea", "In the kitchen"]
    answer = shared.complete(prompts, max_tokens=8, temperature=0)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    alone = [text_of(shared.complete(p, max_tokens=8, temperature=0)) for p in prompts]
    for prompt, choice, expected in zip(prompts, answer["choices"], alone, strict=True):
        check_same_completion(shared, prompt, choice["text"], expected)
    assert answer["usage"]["completion_tokens"] == 24


def test_prompts_as_token_ids_are_written_on_as_their_texts_are(
    shared: Running, tokenizer: Tokenizer
) -> None:
    """The ids are taken as they are: the service adds no special tokens."""
    texts = ["One day", "The sea"]
    ids = [tokenizer.encode(text).ids for text in texts]
    written = shared.complete(texts, max_tokens=12, temperature=0)
    answer = shared.complete(ids, max_tokens=12, temperature=0)
    assert answer["usage"] == written["usage"]
    assert [c["text"] for c in answer["choices"]] == [c["text"] for c in written["choices"]]
    single = {"model": MODEL, "prompt": ids[0], "max_tokens": 12, "seed": 3}
    whole = shared.post("/v1/completions", single)
    assert whole.json()["choices"] == shared.complete("One day", max_tokens=12, seed=3)["choices"]
    assert whole.headers["x-service-seed"] == "3;scope=request"
    streamed = shared.stream("/v1/completions", single)[:-1]
    assert "".join(c["text"] for e in streamed for c in e["choices"]) == text_of(whole.json())


@pytest.mark.shows("chat-parameters.6")
def test_several_choices_of_a_seeded_chat_differ_and_the_first_is_the_single_one(
    shared: Running,
) -> None:
    three = shared.chat("Tell me a story.", n=3, seed=9, max_tokens=30)
    texts = [c["message"]["content"] for c in three["choices"]]
    assert len(set(texts)) == 3
    again = shared.chat("Tell me a story.", n=3, seed=9, max_tokens=30)
    assert [c["message"]["content"] for c in again["choices"]] == texts


@pytest.mark.shows("seeds.2", "seeds.3")
def test_a_seed_gives_the_same_text_while_others_run(shared: Running) -> None:
    alone = shared.complete("One day", max_tokens=40, seed=77)
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(shared.complete, "The sea", max_tokens=60) for _ in range(20)]
        again = [pool.submit(shared.complete, "One day", max_tokens=40, seed=77) for _ in range(3)]
        for answer in again:
            assert answer.result()["choices"] == alone["choices"]
        for other in others:
            other.result()


@pytest.mark.shows("chat-parameters.11", "seeds.2", "seeds.6", "seeds.7", "limits.14")
def test_a_seed_is_echoed_with_its_scope_and_none_without(shared: Running) -> None:
    body = {"model": MODEL, "prompt": "One day", "max_tokens": 2}
    seeded = shared.http.post("/v1/completions", json={**body, "seed": 4294967295})
    assert seeded.headers["x-service-seed"] == "4294967295;scope=request"
    assert "x-service-seed" not in shared.http.post("/v1/completions", json=body).headers
    greedy = shared.http.post("/v1/completions", json={**body, "seed": 0, "temperature": 0})
    assert greedy.headers["x-service-seed"] == "0;scope=request"


@pytest.mark.shows("chat-parameters.5")
def test_greedy_and_top_p_zero_agree(shared: Running) -> None:
    greedy = shared.complete("One day", max_tokens=20, temperature=0)
    narrow = shared.complete("One day", max_tokens=20, top_p=0)
    assert text_of(greedy) == text_of(narrow)


@pytest.mark.shows("chat-parameters.10")
def test_penalties_change_a_greedy_text(shared: Running) -> None:
    plain = text_of(shared.complete("One day", max_tokens=60, temperature=0))
    penalised = text_of(
        shared.complete("One day", max_tokens=60, temperature=0, frequency_penalty=2.0)
    )
    zero = text_of(
        shared.complete(
            "One day", max_tokens=60, temperature=0, frequency_penalty=0, presence_penalty=0
        )
    )
    assert penalised != plain
    assert zero == plain


@pytest.mark.shows("text-completions.2")
def test_the_prompt_of_a_chat_has_one_beginning_of_sequence(
    shared: Running, tokenizer: Tokenizer
) -> None:
    answer = shared.chat("Tell me a story.", max_tokens=1)
    bos = tokenizer.token_to_id("<s>")
    text = shared.complete("One day", max_tokens=1)
    ids = tokenizer.encode("One day", add_special_tokens=True).ids
    assert ids.count(bos) == 1
    assert text["usage"]["prompt_tokens"] == len(ids)
    rendered = tokenizer.encode("Tell me a story.", add_special_tokens=False).ids
    # one BOS, and the turn marks of the template; a second BOS would be one more
    marks = answer["usage"]["prompt_tokens"] - len(rendered)
    other = shared.chat("Tell me a story about the sea.", max_tokens=1)
    longer = tokenizer.encode("Tell me a story about the sea.", add_special_tokens=False).ids
    assert other["usage"]["prompt_tokens"] - len(longer) == marks


@pytest.mark.shows("model-naming.3")
def test_a_trailing_assistant_message_is_continued(shared: Running) -> None:
    user = {"role": "user", "content": "Tell me a story."}
    ask = {"model": MODEL, "messages": [user], "max_tokens": 24, "temperature": 0}
    whole = shared.http.post("/v1/chat/completions", json=ask).json()
    text = whole["choices"][0]["message"]["content"]
    words = text.split(" ")
    partial = " ".join(words[:5])
    ask["messages"] = [user, {"role": "assistant", "content": partial}]
    ask["max_tokens"] = 12
    rest = shared.http.post("/v1/chat/completions", json=ask).json()
    continued = partial + rest["choices"][0]["message"]["content"]
    length = min(len(text), len(continued))
    assert length > len(partial)
    check_same_chat(shared, [user], text[:length], continued[:length])
    assert rest["usage"]["prompt_tokens"] > whole["usage"]["prompt_tokens"]


@pytest.mark.shows("text-completions.2", "model-naming.3")
def test_an_assistant_message_alone_is_continued(shared: Running) -> None:
    partial = [{"role": "assistant", "content": "Once upon a time"}]
    ask = {"model": MODEL, "messages": partial, "max_tokens": 8, "temperature": 0}
    answer = shared.post("/v1/chat/completions", ask).json()
    # the demo's template writes nothing before the text but the beginning and the assistant's mark
    rendered = "<s><|assistant|>Once upon a time"
    raw = {"model": MODEL, "prompt": rendered, "add_special_tokens": False}
    same = shared.post("/v1/completions", raw | {"max_tokens": 8, "temperature": 0}).json()
    assert answer["choices"][0]["message"]["content"] == same["choices"][0]["text"]
    assert answer["usage"] == same["usage"]


def test_a_very_long_prompt_is_refused_with_the_max_tokens_that_was_sent(shared: Running) -> None:
    text = "word " * 200_000
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        status, error = shared.v1_error(path, {"model": MODEL, "max_tokens": 7} | body)
        assert (status, error["code"]) == (400, "context_length_exceeded")
        details = error["details"]
        assert details["max_tokens"] == 7
        assert details["requested_tokens"] == details["prompt_tokens"] + 7


def test_content_parts_are_read_as_one_text(shared: Running) -> None:
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
    whole = shared.chat("Tell me a story.", max_tokens=12, temperature=0)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 12,
        "temperature": 0,
    }
    split = shared.http.post("/v1/chat/completions", json=body).json()
    assert split["choices"] == whole["choices"]


WHOLE = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
CHUNK = {"id", "object", "created", "model", "choices"}


@pytest.mark.shows("chat-parameters.18", "chat-parameters.20")
def test_answers_have_no_keys_that_the_request_did_not_ask_for(shared: Running) -> None:
    text, chat = shared.complete("One day", max_tokens=2), shared.chat("Hello.", max_tokens=2)
    assert set(text) == set(chat) == WHOLE
    assert text["system_fingerprint"] == f"service:{MODEL}@unrecorded:bfloat16/FP16:transformers"
    assert set(text["choices"][0]) == {"index", "text", "finish_reason"}
    assert set(chat["choices"][0]) == {"index", "message", "finish_reason"}
    assert set(chat["choices"][0]["message"]) == {"role", "content"}
    talk = {"model": MODEL, "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
    prompt = {"model": MODEL, "prompt": "One day", "max_tokens": 2}
    streams = {
        "/v1/chat/completions": (talk, {"index", "delta", "finish_reason"}),
        "/v1/completions": (prompt, {"index", "text", "finish_reason"}),
    }
    for path, (body, choice) in streams.items():
        *chunks, last, _ = shared.stream(path, body)
        assert all(set(chunk) == CHUNK for chunk in chunks)
        assert set(last) == CHUNK | {"usage"}
        assert all(set(chunk["choices"][0]) == choice for chunk in [*chunks, last])


@pytest.mark.shows("inference.4", "inference.5", "overview.3")
def test_models_are_listed_by_name(shared: Running) -> None:
    listed = shared.http.get("/v1/models").json()
    assert listed["object"] == "list"
    entry = next(e for e in listed["data"] if e["id"] == MODEL)
    assert entry["object"] == "model"
    assert isinstance(entry["created"], int)
    assert set(entry) == {"id", "object", "created", "owned_by"}
    assert shared.http.get(f"/v1/models/{MODEL}").json() == entry
