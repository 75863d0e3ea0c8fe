"""Structured output over HTTP: what ends by itself is a document of the schema; what cannot be enforced is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from steerserve import demo
from tests.openai.conftest import Zoo, payload, until_idle
from tests.service import Running

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
UNSUPPORTED = (400, "response_format_unsupported")
STORY = [{"role": "user", "content": "Tell me a story."}]
OTHERS = [[{"role": "user", "content": "Tell me about the sea."}], STORY]
OBJECT = {"type": "json_object"}
PET = {
    "$defs": {"flag": {"type": "boolean"}},
    "title": "a pet",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 3, "maximum": 40},
        "kind": {"enum": ["cat", "dog"]},
        "code": {"type": "string", "pattern": "^[A-C]{2}[0-9]$"},
        "flags": {"type": "array", "items": {"$ref": "#/$defs/flag"}, "maxItems": 1},
        "home": {"anyOf": [{"type": "null"}, {"const": "barn"}]},
    },
    "required": ["name", "age", "kind", "code", "flags", "home"],
    "additionalProperties": False,
}
"""Every document of it is short."""


def schema_format(schema: Any, name: str = "pet", **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **fields}}


def chat(wanted: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": demo.MODEL_NAME, "messages": STORY, "max_tokens": 120}
    return body | {"response_format": wanted} | fields


def documents(answer: httpx2.Response) -> list[Any]:
    """The documents of an answer whose choices all ended by themselves."""
    choices = answer.json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * len(choices)
    return [json.loads(choice["message"]["content"]) for choice in choices]


def check_pets(found: list[Any]) -> None:
    for document in found:
        Draft202012Validator(PET).validate(document)


# ---------------------------------------------------------------- what is enforced


@pytest.mark.shows(
    "chat-parameters.12",
    "structured-output.1",
    "structured-output.2",
    "structured-output.3",
    "structured-output.4",
    "structured-output.8",
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_finished_document_satisfies_its_schema_whatever_strict_says(
    shared: Running, strict: bool
) -> None:
    answer = shared.post(CHAT, chat(schema_format(PET, strict=strict), temperature=1.3))
    check_pets(documents(answer))
    assert answer.headers["x-service-constrained"] == "json_schema;name=pet"
    assert "x-service-ignored-fields" not in answer.headers
    assert answer.json()["object"] == "chat.completion"


@pytest.mark.shows("structured-output.7")
def test_each_of_several_conversations_is_constrained(shared: Running) -> None:
    answer = shared.post(CHAT, chat(schema_format(PET), extra_messages=OTHERS))
    found = documents(answer)
    assert len(found) == 3
    check_pets(found)


@pytest.mark.shows("chat-parameters.12", "structured-output.1", "structured-output.3")
def test_an_object_without_a_schema_is_one_json_object(shared: Running) -> None:
    answer = shared.post(CHAT, chat(OBJECT, n=8, seed=1, max_tokens=60))
    assert answer.headers["x-service-constrained"] == "json_object"
    choices = answer.json()["choices"]
    ended = [c["message"]["content"] for c in choices if c["finish_reason"] == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)
    assert all(c["message"]["content"].startswith("{") for c in choices)


@pytest.mark.shows("structured-output.4")
@pytest.mark.parametrize("wanted", [schema_format(PET), OBJECT])
def test_a_document_cut_by_its_length_says_so(shared: Running, wanted: dict[str, Any]) -> None:
    answer = shared.post(CHAT, chat(wanted, max_tokens=3))
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")
    assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_seeded_document_is_the_same_while_others_run(shared: Running) -> None:
    body = chat(schema_format(PET), seed=23, n=2, temperature=1.5)
    alone = shared.post(CHAT, body)
    assert alone.headers["x-service-seed"] == "23;scope=request"
    with ThreadPoolExecutor(2) as pool:
        others = [
            pool.submit(shared.post, CHAT, chat(schema_format(PET), temperature=1.5))
            for _ in range(2)
        ]
        again = shared.post(CHAT, body)
        assert again.json()["choices"] == alone.json()["choices"]
        for other in others:
            check_pets(documents(other.result()))


def test_the_name_of_a_schema_is_echoed_in_printable_characters(shared: Running) -> None:
    answer = shared.post(CHAT, chat(schema_format({"const": 1}, name="a b\r\nü;x=1")))
    found = answer.headers["x-service-constrained"]
    assert found == "json_schema;name=a%20b%0D%0A%C3%BC%3Bx%3D1"


def test_steering_and_structure_go_together(steered: Running) -> None:
    steered.data("POST", "/api/saes/steering", {"feature_idx": 3, "value": 30})
    answer = steered.post(CHAT, chat(schema_format(PET), steering_intensity=0.5))
    check_pets(documents(answer))
    assert answer.headers["x-service-steering-intensity"] == "0.5"


# ---------------------------------------------------------------- an invalid document


@pytest.mark.shows("structured-output.4")
def test_a_document_that_parses_by_chance_when_it_is_cut_says_so_too(shared: Running) -> None:
    schema = {"type": "integer", "minimum": 10, "maximum": 10**15}
    (choice,) = shared.post(CHAT, chat(schema_format(schema), max_tokens=1)).json()["choices"]
    assert isinstance(json.loads(choice["message"]["content"]), int)
    assert choice["finish_reason"] == "length"


@pytest.mark.shows("structured-output.5", "general-errors.8")
def test_a_document_that_does_not_validate_is_an_error_and_never_an_answer(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def disagree(schema: Any, text: str, client: str) -> str:
        asked.append(text)
        return "$.age: 3 is not what I meant"

    monkeypatch.setattr(shared.service.owners.around.checker, "validate", disagree)
    answer = shared.http.post(CHAT, json=chat(schema_format(PET)))
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("constrained_output_invalid", "invalid_request_error")
    assert "$.age: 3 is not what I meant" in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    check_pets([json.loads(text) for text in asked])
    # one that was cut is not a whole document, and is not checked
    cut = shared.post(CHAT, chat(schema_format(PET), max_tokens=3))
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    assert len(asked) == 1


def test_a_document_whose_validation_runs_out_of_time_is_not_called_invalid(
    shared: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = shared.service.owners.around.checker
    validate = checker.validate

    async def hostile(_: Any, __: str, client: str) -> str | None:
        pattern = {"type": "string", "pattern": "^(a|aa)*b$"}
        return await validate(pattern, json.dumps("a" * 5000), client)

    monkeypatch.setattr(checker, "validate", hostile)
    answer = shared.http.post(CHAT, json=chat(schema_format(PET)))
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("constrained_output_unchecked", "server_error")
    assert "takes longer than" in error["message"]
    assert "x-should-retry" not in answer.headers


# ---------------------------------------------------------------- refusals


@pytest.mark.shows("structured-output.6")
@pytest.mark.parametrize(
    "body",
    [
        chat(OBJECT, stream=True),
        chat(OBJECT, stop=["."]),
        chat(OBJECT, logprobs=True, max_tokens=1),
        chat(OBJECT, allowed_token_ids=[5], max_tokens=1),
        chat({"type": "xml"}),
        chat({"type": "json_schema", "json_schema": {"name": "pet"}}),
        chat(schema_format(PET, name="")),
        chat(schema_format(PET, strict="yes")),
        chat(schema_format(None)),
    ],
)
def test_what_cannot_be_constrained_is_refused_by_its_field_before_a_model_is_sought(
    shared: Running, body: dict[str, Any]
) -> None:
    status, error = shared.v1_error(CHAT, body | {"model": "nobody"})
    assert (status, error["code"]) == UNSUPPORTED
    assert error["param"] == "response_format"
    assert "response_format" in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("pattern", ["(", "(?=a)b"])
def test_a_pattern_that_cannot_be_compiled_is_named_before_a_model_is_loaded(
    zoo: Zoo, pattern: str
) -> None:
    zoo.empty()
    schema = {"type": "object", "properties": {"p": {"pattern": pattern}}, "required": ["p"]}
    status, error = zoo.live.v1_error(CHAT, chat(schema_format(schema), model="tiny"))
    assert (status, error["code"]) == UNSUPPORTED
    (found,) = error["details"]["unsupported"]
    assert (found["keyword"], found["pointer"]) == ("pattern", "/properties/p/pattern")
    assert zoo.resident() is None


# ---------------------------------------------------------------- hostile schemas


def ambiguous(kinds: int, lengths: int) -> dict[str, Any]:
    """Every array may be of any of `kinds` x `lengths` sorts, which a parser has to follow all at once."""
    any_kind = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in range(kinds)]}
    sorts = [{"type": "array", "items": any_kind, "minItems": i} for i in range(lengths)]
    return {
        "$defs": {str(kind): {"anyOf": sorts} for kind in range(kinds)},
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/0"}},
        "required": ["p"],
    }


HOSTILE: list[Any] = [
    ambiguous(6, 60),
    ambiguous(20, 60),
    {"type": "string", "pattern": "a{4294967296}"},
    {"type": "string", "pattern": "^" + "(" * 3000 + "a" + ")" * 3000 + "$"},
    {"type": "string", "minLength": 50_000, "pattern": "[0-9]$"},
    {"type": "string", "pattern": "^" + "".join(f"(a{i}|b{i})?" for i in range(2000)) + "$"},
]
WORK: list[Any] = [
    {"type": "string", "pattern": "(.*a){50}"},
    {"type": "string", "pattern": "^(.*a.{60}){20}$"},
    {"type": "string", "pattern": "((a{1,1000}){1,1000})"},
]
"""Enforceable, at a price."""


class Streams:
    """One stream after the other, read by a thread of its own until the test is over."""

    def __init__(self, live: Running) -> None:
        self._live = live
        self.arrived = 0
        self.first = threading.Event()
        self._is_over = False

    def read(self) -> None:
        while not self._is_over:
            self._read_one()

    def _read_one(self) -> None:
        body = {
            "model": demo.MODEL_NAME,
            "prompt": ["One day"] * 8,
            "max_tokens": 1000,
            "temperature": 2.0,
            "stream": True,
        }
        with self._live.http.stream("POST", TEXT, json=body) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line:
                    assert "error" not in payload(line)
                    self.arrived += 1
                    self.first.set()
                if self._is_over:
                    return

    def stop(self) -> None:
        self._is_over = True


@contextmanager
def streaming(live: Running) -> Iterator[Streams]:
    streams = Streams(live)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(streams.read)
        try:
            assert streams.first.wait(30)
            yield streams
        finally:
            streams.stop()
            reading.result()
    until_idle(live)


def test_a_hostile_schema_is_refused_while_a_stream_goes_on(
    shared: Running,
) -> None:
    shared.post(CHAT, chat(schema_format({"const": 1})))
    with streaming(shared) as streams:
        before = streams.arrived
        for schema in HOSTILE:
            status, error = shared.v1_error(CHAT, chat(schema_format(schema)))
            assert (status, error["code"]) == UNSUPPORTED
        assert streams.arrived > before + 20
        for schema in WORK:
            answer = shared.http.post(CHAT, json=chat(schema_format(schema), max_tokens=4))
            assert answer.status_code == 200, answer.text
