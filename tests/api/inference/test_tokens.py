"""/api/tokenize and /api/detokenize: texts and conversations as the tokens of the resident model, and back."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer

from steerserve import demo
from steerserve.worker.process.tokenizing import _read_back, open_tokenizer
from tests.service import Running

TEXT = "The old  fisherman, caf\u00e9 \U0001f600!"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.MODEL_DIR / "tokenizer.json"))


def tokenized(live: Running, **body: Any) -> dict[str, Any]:
    return dict(live.data("POST", "/api/tokenize", body))


@pytest.mark.parametrize("special", [None, True, False])
def test_a_text_has_the_tokens_that_a_completion_reads(
    shared: Running, tokenizer: Tokenizer, special: bool | None
) -> None:
    found = tokenized(shared, text=TEXT, add_special_tokens=special)
    expected = tokenizer.encode(TEXT, add_special_tokens=special is not False).ids
    assert (found["model"], found["text"]) == (demo.MODEL_NAME, TEXT)
    assert (found["ids"], found["count"]) == (expected, len(expected))
    decoded = [tokenizer.decode([one], skip_special_tokens=False) for one in expected]
    assert found["pieces"] == decoded
    usage = shared.complete(found["ids"], max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == found["count"]


def test_offsets_are_those_of_an_echoed_prompt(shared: Running) -> None:
    found = tokenized(shared, text=TEXT)
    echoed = shared.complete(TEXT, max_tokens=0, logprobs=0, echo=True)["choices"][0]["logprobs"]
    assert found["pieces"] == echoed["tokens"]
    assert found["offsets"] == echoed["text_offset"]
    whole = [
        (p, o) for p, o in zip(found["pieces"], found["offsets"], strict=True) if "\ufffd" not in p
    ]
    assert all(TEXT.startswith(piece, at) for piece, at in whole[1:])


def test_a_conversation_has_the_tokens_that_a_chat_reads(shared: Running) -> None:
    messages = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "Hi."}]
    found = tokenized(shared, messages=messages)
    body = {"model": demo.MODEL_NAME, "messages": messages, "max_tokens": 8, "temperature": 0}
    chat = shared.post("/v1/chat/completions", body).json()
    assert chat["usage"]["prompt_tokens"] == found["count"]
    written = shared.complete(found["ids"], max_tokens=8, temperature=0)
    assert written["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert found["ids"] == tokenized(shared, text=found["text"], add_special_tokens=False)["ids"]


def test_ids_have_the_text_that_they_stand_for(shared: Running, tokenizer: Tokenizer) -> None:
    made = tokenized(shared, text=TEXT, add_special_tokens=False)
    back = shared.data("POST", "/api/detokenize", {"ids": made["ids"]})
    assert back == made
    marked = tokenizer.encode(TEXT).ids
    back = shared.data("POST", "/api/detokenize", {"ids": marked})
    assert back["text"] == tokenizer.decode(marked, skip_special_tokens=False)


def test_text_parts_follow_each_other_as_in_chats(shared: Running) -> None:
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
    whole = tokenized(shared, messages=[{"role": "user", "content": "Tell me a story."}])
    assert tokenized(shared, messages=[{"role": "user", "content": parts}]) == whole
    asked = {"model": demo.MODEL_NAME, "max_tokens": 1}
    answer = shared.post(
        "/v1/chat/completions", asked | {"messages": [{"role": "user", "content": parts}]}
    )
    assert answer.json()["usage"]["prompt_tokens"] == whole["count"]


def test_an_id_that_only_the_model_has_reads_as_no_text() -> None:
    """Models have more ids than their tokenizers, to fill up their tables, and may write them."""
    loaded = open_tokenizer(demo.MODEL_DIR, trust_remote_code=False)
    answer = _read_back(loaded, [5, len(loaded) + 3, 6])
    assert answer.spelling is not None
    assert answer.spelling.text == _read_back(loaded, [5, 6]).spelling.text  # type: ignore[union-attr]
    assert answer.spelling.ids == [5, len(loaded) + 3, 6]
    assert answer.spelling.pieces[1] == ""


def test_an_empty_text_has_only_special_tokens(shared: Running, tokenizer: Tokenizer) -> None:
    assert tokenized(shared, text="")["ids"] == tokenizer.encode("").ids
    assert tokenized(shared, text="", add_special_tokens=False)["ids"] == []


MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("route", "body", "status", "code"),
    [
        ("tokenize", {}, 422, "VALIDATION_ERROR"),
        ("tokenize", {"text": "a", "messages": MESSAGES}, 422, "VALIDATION_ERROR"),
        ("tokenize", {"messages": []}, 422, "VALIDATION_ERROR"),
        (
            "tokenize",
            {"messages": MESSAGES, "add_special_tokens": True},
            422,
            "VALIDATION_ERROR",
        ),
        ("tokenize", {"text": ["a"]}, 422, "VALIDATION_ERROR"),
        ("tokenize", {"text": "a" * 200_001}, 413, "PAYLOAD_TOO_LARGE"),
        ("detokenize", {"ids": []}, 422, "VALIDATION_ERROR"),
        ("detokenize", {"ids": [-1]}, 422, "VALIDATION_ERROR"),
        ("detokenize", {"ids": [True]}, 422, "VALIDATION_ERROR"),
        ("detokenize", {"ids": [1] * 50_001}, 413, "PAYLOAD_TOO_LARGE"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    shared: Running, route: str, body: dict[str, Any], status: int, code: str
) -> None:
    assert shared.error("POST", f"/api/{route}", body)[:2] == (status, code)


@pytest.mark.parametrize(
    "body", ['{"text": "a\\udfffb"}', '{"messages": [{"role": "user", "content": "\\udab5"}]}']
)
def test_half_of_a_surrogate_pair_is_refused(shared: Running, body: str) -> None:
    answer = shared.http.post(
        "/api/tokenize", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert "half of a surrogate pair" in answer.text


def test_an_id_outside_the_vocabulary_is_refused_by_its_place(
    shared: Running, tokenizer: Tokenizer
) -> None:
    size = tokenizer.get_vocab_size()
    status, code, details = shared.error("POST", "/api/detokenize", {"ids": [5, size - 1, size]})
    assert (status, code) == (400, "INVALID_PARAMETER")
    assert (details["token_id"], details["vocabulary"]) == (size, size)


def test_without_a_model_there_is_no_tokenizer(bare: Running) -> None:
    for route, body in (("tokenize", {"text": "a"}), ("detokenize", {"ids": [1]})):
        assert bare.error("POST", f"/api/{route}", body)[:2] == (400, "MODEL_NOT_LOADED")
