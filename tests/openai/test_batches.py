"""/v1/files and /v1/batches with the official client, against a running service."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from openai.types import Batch

import openai
from steerserve import demo
from steerserve.control.inference import batches
from steerserve.database.batches import BatchRow
from steerserve.errors import Refusal
from steerserve.rules.inference import batches as rules
from tests.conftest import Start
from tests.service import ANSWER_SECONDS, Polls, Running, add_sae, load_demo, running

MODEL = demo.MODEL_NAME
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
OVER = ("failed", "completed", "expired", "cancelled")
RAW = {"sites": [{"site": "resid_post", "layers": [2]}], "positions": "last_prompt"}
TELL = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def client(shared: Running) -> Iterator[openai.OpenAI]:
    with of(shared) as made:
        yield made


def of(live: Running) -> openai.OpenAI:
    asking = httpx2.Client(timeout=ANSWER_SECONDS, event_hooks={"request": [Polls()]})
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", http_client=asking)


def chat(custom_id: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": TELL, "max_tokens": 4, "temperature": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def text(custom_id: str, prompt: str = "One day", **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": TEXT, "body": body}


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def begun(
    client: openai.OpenAI,
    lines: list[dict[str, Any]] | bytes,
    endpoint: str = CHAT,
    **headers: str,
) -> Batch:
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        extra_headers=headers,
    )


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    while batch.status not in OVER:
        batch = client.batches.retrieve(batch.id)
    return batch


def read(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def faults(batch: Batch) -> list[tuple[str | None, int | None, str | None]]:
    assert batch.errors is not None
    return [(one.code, one.line, one.param) for one in batch.errors.data or ()]


def test_every_line_is_answered_as_the_same_request_alone(
    steered: Running, client: openai.OpenAI
) -> None:
    own = {"features": [{"index": 1, "value": 150.0}]}
    lines = [
        chat("plain"),
        chat("steered", sae_steering=own),
        chat("other seed", temperature=1, seed=7),
        chat("read", return_activations_raw=RAW),
        chat("refused", temperature=9),
    ]
    batch = ended(client, begun(client, lines))
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 5, "completed": 4, "failed": 1}
    assert batch.model == MODEL
    answers = read(client, batch.output_file_id)
    assert [line["custom_id"] for line in answers] == ["plain", "steered", "other seed", "read"]
    for line, sent in zip(answers, lines, strict=False):
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        alone = steered.post(CHAT, sent["body"]).json()
        assert line["response"]["body"]["choices"] == alone["choices"]
        assert line["response"]["body"].get("service") == alone.get("service")
    assert answers[-1]["response"]["body"]["service"]["activations_raw"]
    assert answers[0]["response"]["body"]["choices"] != answers[1]["response"]["body"]["choices"]
    usage = [line["response"]["body"]["usage"] for line in answers]
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(one["prompt_tokens"] for one in usage)
    assert batch.usage.output_tokens == sum(one["completion_tokens"] for one in usage)
    (failed,) = read(client, batch.error_file_id)
    assert failed["custom_id"] == "refused"
    assert failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (TEXT, {"prompt": "One day", "max_tokens": 1}),
        ("/v1/embeddings", {"input": "One day"}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 1}),
    ],
)
def test_every_endpoint_has_batches(
    client: openai.OpenAI, endpoint: str, body: dict[str, Any]
) -> None:
    line = {"custom_id": "1", "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
    batch = ended(client, begun(client, [line], endpoint))
    (answer,) = read(client, batch.output_file_id)
    assert answer["response"]["status_code"] == 200
    assert batch.usage is not None
    assert batch.usage.input_tokens > 0


def test_an_input_is_refused_whole_with_every_fault_of_its_lines(client: openai.OpenAI) -> None:
    good = chat("good")
    lines = [
        good,
        good,
        chat("streamed", stream=True),
        chat("other", model="nobody"),
        {**chat("got"), "method": "GET"},
        text("elsewhere"),
        {"custom_id": "nothing", "method": "POST", "url": CHAT},
        chat("", model=None),
        chat("many values", x=[[]] * 100_001),
        chat("long", model="m" + "@a" * 20_000),
    ]
    batch = ended(client, begun(client, jsonl(lines) + b"\n{broken\n"))
    assert batch.status == "failed"
    assert batch.output_file_id is batch.error_file_id is None
    assert sorted(faults(batch), key=lambda fault: (fault[1] or 0, fault[0])) == [
        ("duplicate_custom_id", 2, "custom_id"),
        ("invalid_request", 3, "body.stream"),
        ("model_not_found", 4, "body.model"),
        ("invalid_method", 5, "method"),
        ("mismatched_url", 6, "url"),
        ("invalid_request", 7, None),
        ("invalid_custom_id", 8, "custom_id"),
        ("missing_required_parameter", 8, "body.model"),
        ("body_too_large", 9, "body"),
        ("invalid_parameter", 10, "body.model"),
        ("invalid_json_line", 12, None),
    ]
    assert faults(ended(client, begun(client, b"\n"))) == [("empty_file", None, None)]


def test_a_line_lists_its_unused_fields_unless_they_are_refused(client: openai.OpenAI) -> None:
    lines = [chat("plain"), chat("odd", user="u", **{"no, field": 1})]
    plain, odd = read(client, ended(client, begun(client, lines)).output_file_id)
    assert "service" not in plain
    assert odd["service"] == {"ignored_fields": ["user", "no, field"]}

    lines = [chat("near", sae_stering={"features": []}), chat("beside") | {"sae_steering": {}}]
    assert faults(ended(client, begun(client, lines))) == [
        ("unused_fields_refused", 1, "body.sae_stering"),
        ("invalid_request", 2, "sae_steering"),
    ]
    relaxed, strict = ({"X-Service-Strict": value} for value in ("false", "true"))
    (answer,) = read(client, ended(client, begun(client, lines[:1], **relaxed)).output_file_id)
    assert answer["service"] == {"ignored_fields": ["sae_stering"]}
    refused = ended(client, begun(client, [chat("odd", user="u")], **strict))
    assert faults(refused) == [("unused_fields_refused", 1, "body.user")]
    with pytest.raises(openai.BadRequestError, match="X-Service-Strict"):
        begun(client, lines, **{"X-Service-Strict": "maybe"})


def test_files_are_listed_and_deleted(client: openai.OpenAI) -> None:
    asked = {"anchor": "created_at", "seconds": 7200}
    files = [
        client.files.create(
            file=(f"{name}.jsonl", jsonl([chat(name)])),
            purpose="batch",
            expires_after=asked,  # type: ignore[arg-type]
        )
        for name in "abc"
    ]
    first = files[0]
    assert (first.object, first.filename, first.purpose) == ("file", "a.jsonl", "batch")
    assert first.expires_at == first.created_at + 7200
    assert client.files.retrieve(first.id) == first
    assert client.files.content(first.id).read() == jsonl([chat("a")])
    listed = client.files.list(limit=2)
    assert [one.id for one in listed.data] == [files[2].id, files[1].id]
    assert {one.id for one in client.files.list(limit=1)} >= {one.id for one in files}
    ascending = [one.id for one in client.files.list(limit=1, order="asc", purpose="batch")]
    assert ascending.index(first.id) < ascending.index(files[2].id)
    for one in files:
        assert client.files.delete(one.id).deleted is True
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.content(first.id)
    assert gone.value.code == "file_not_found"


def test_deleting_an_output_file_deletes_its_answers(client: openai.OpenAI) -> None:
    batch = ended(client, begun(client, [chat("1")]))
    assert batch.output_file_id is not None
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"
    size = client.files.retrieve(batch.output_file_id).bytes
    assert len(client.files.content(batch.output_file_id).read()) == size
    client.files.delete(batch.output_file_id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(batch.output_file_id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(
            input_file_id=ended_output(client), endpoint=CHAT, completion_window="24h"
        )
    assert refused.value.param == "input_file_id"


def ended_output(client: openai.OpenAI) -> str:
    batch = ended(client, begun(client, [chat("1")]))
    assert batch.output_file_id is not None
    return batch.output_file_id


def test_batches_are_listed_and_cancelled_with_what_is_done(client: openai.OpenAI) -> None:
    lines = [chat("short"), *(chat(f"long {i}", max_tokens=900) for i in range(64))]
    batch = begun(client, lines)
    while (now := client.batches.retrieve(batch.id)).request_counts.completed == 0:  # type: ignore[union-attr]
        pass
    with pytest.raises(openai.ConflictError) as used:
        client.files.delete(now.input_file_id)
    assert used.value.code == "file_in_use"
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    answers = read(client, batch.output_file_id)
    assert batch.request_counts is not None
    assert 1 <= len(answers) == batch.request_counts.completed < len(lines)
    assert batch.id in {one.id for one in client.batches.list(limit=1)}
    with pytest.raises(openai.ConflictError) as over:
        client.batches.cancel(batch.id)
    assert over.value.code == "batch_over"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.batches.retrieve("batch_nobody")
    assert unknown.value.code == "batch_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"key": "x" * 513}}, "metadata.key"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_a_bad_batch_is_refused_with_its_field(
    shared: Running, fields: dict[str, Any], param: str
) -> None:
    body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **fields}
    status, error = shared.v1_error("/v1/batches", body)
    assert (status, error["code"], error["param"]) == (400, "invalid_parameter", param)


def test_a_file_of_a_batch_that_does_not_exist_is_not_found(shared: Running) -> None:
    body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
    assert shared.v1_error("/v1/batches", body)[1]["code"] == "file_not_found"


def test_only_files_for_batches_are_taken(client: openai.OpenAI, shared: Running) -> None:
    with pytest.raises(openai.BadRequestError) as purpose:
        client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")
    assert purpose.value.param == "purpose"
    assert shared.v1_error("/v1/files", {})[1]["param"] == "Content-Type"


def test_batches_have_bounds(start: Start) -> None:
    bounds = {"batch_max_lines": 2, "max_unfinished_batches": 1, "batch_file_mb": 1}
    with start(**bounds) as live, of(live) as client:
        model_id = load_demo(live)
        batch = ended(client, begun(client, [chat(str(i)) for i in range(3)]))
        assert faults(batch) == [("too_many_lines", None, None)]
        with pytest.raises(openai.APIStatusError) as large:
            client.files.create(file=("a.jsonl", b" " * ((1 << 20) + 1)), purpose="batch")
        assert large.value.status_code == 413
        # a batch waits for a model that somebody unloaded
        live.data("POST", f"/api/models/{model_id}/unload")
        waiting = begun(client, [chat("long")])
        with pytest.raises(openai.ConflictError) as many:
            begun(client, [chat("1")])
        assert many.value.code == "too_many_batches"
        client.batches.cancel(waiting.id)


def test_a_full_store_refuses_files(start: Start) -> None:
    with start(max_batch_documents=1) as live, of(live) as client:
        client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
        with pytest.raises(openai.APIStatusError) as full:
            client.files.create(file=("b.jsonl", b"{}"), purpose="batch", timeout=60)
        assert (full.value.status_code, full.value.code) == (507, "document_store_full")


def test_where_an_operator_keeps_no_texts_none_are_taken(start: Start) -> None:
    with start(max_batch_documents=0, corpora_max_mb=0) as live, of(live) as client:
        load_demo(live)
        with pytest.raises(openai.APIStatusError) as refused:
            client.files.create(file=("a.jsonl", b"{}"), purpose="batch", timeout=60)
        assert (refused.value.status_code, refused.value.code) == (507, "document_store_full")
        assert "MAX_BATCH_DOCUMENTS" in refused.value.message
        assert "delete" not in refused.value.message
        sae = demo.saes()[0]
        live.data("POST", f"/api/saes/{add_sae(live, sae)}/attach", {"layer": sae.layer})
        for source in (
            {"source": "inline", "texts": ["a", "b"]},
            {"source": "local", "local_path": str(demo.DATA / "report.json")},
        ):
            answer = live.http.post("/api/corpora", json={"name": "a", **source})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (507, "CORPORA_FULL"), error
            assert "CORPORA_MAX_MB" in error["message"]
            assert "delete" not in error["message"]


@pytest.mark.local("it kills the one engine process of this machine")
def test_a_batch_outlasts_its_engine_and_its_service(start: Start) -> None:
    lines = [text(str(i), max_tokens=1 + i % 9) for i in range(80)]
    with start() as live, of(live) as client:
        load_demo(live)
        batch = begun(client, lines, TEXT)
        _until_answered(client, batch, 10)
        resident = live.service.owners.conductor.resident
        assert resident is not None
        os.kill(resident.held().pid or 0, signal.SIGKILL)
        _until_answered(client, batch, 40)
    with running(live.home) as live, of(live) as client:
        batch = ended(client, batch)
        assert batch.status == "completed"
        answers = read(client, batch.output_file_id)
        assert [line["custom_id"] for line in answers] == [str(i) for i in range(80)]
        alone = live.post(TEXT, lines[-1]["body"]).json()
        assert answers[-1]["response"]["body"]["choices"] == alone["choices"]


def _until_answered(client: openai.OpenAI, batch: Batch, count: int) -> None:
    while True:
        now = client.batches.retrieve(batch.id)
        assert now.status not in ("failed", "expired")
        assert now.request_counts is not None
        if now.request_counts.completed >= count:
            return


AWAY = Refusal("DATABASE_UNAVAILABLE", "the database is away for a moment")


class Faulty:
    """The next calls end with these faults; those after them work."""

    def __init__(self, owner: Any, name: str, faults: list[Exception | None]) -> None:
        self.work, self.faults = getattr(owner, name), faults

    def _fail(self) -> None:
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault

    async def parts(self, file_id: str) -> AsyncIterator[bytes]:
        self._fail()
        async for part in self.work(file_id):
            yield part

    async def get(self, batch_id: str) -> BatchRow:
        self._fail()
        row: BatchRow = await self.work(batch_id)
        return row


@pytest.mark.parametrize(
    ("status", "reads", "looks"),
    [
        ("completed", [AWAY], []),
        ("completed", [None, AWAY], []),
        ("failed", [None, ValueError("an error of ours")], [None, AWAY]),
    ],
    ids=["at the check", "while lines run", "while it is marked as failed"],
)
def test_a_passing_fault_of_the_database_ends_no_batch(
    shared: Running,
    client: openai.OpenAI,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    reads: list[Exception | None],
    looks: list[Exception | None],
) -> None:
    owner = shared.service.owners.batches
    monkeypatch.setattr(batches, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(owner.files, "parts", Faulty(owner.files, "parts", reads).parts)
    monkeypatch.setattr(owner.store, "get", Faulty(owner.store, "get", looks).get)
    batch = begun(client, [text("a"), text("b")], TEXT)
    at_once = client.with_options(max_retries=0)
    while batch.status not in OVER:
        with suppress(openai.InternalServerError):  # this read may be the one that fails
            batch = at_once.batches.retrieve(batch.id)
    assert batch.status == status
    if status == "completed":
        assert [line["custom_id"] for line in read(client, batch.output_file_id)] == ["a", "b"]


def _expired(client: openai.OpenAI, batch: Batch, lines: list[dict[str, Any]]) -> None:
    """The batch is over; what was done is kept, and each other line says that its time was over."""
    batch = ended(client, batch)
    assert (batch.status, batch.expired_at is not None) == ("expired", True)
    answers, errors = read(client, batch.output_file_id), read(client, batch.error_file_id)
    assert {line["response"]["status_code"] for line in answers} <= {200}
    assert [line["error"]["code"] for line in errors] == ["batch_expired"] * len(errors)
    assert [line["response"] for line in errors] == [None] * len(errors)
    told = [line["custom_id"] for line in answers + errors]
    assert sorted(told) == sorted(line["custom_id"] for line in lines)
    assert batch.request_counts is not None
    assert batch.request_counts.completed == len(answers)
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


LONG = [text("short"), *(text(f"long {i}", max_tokens=900) for i in range(64))]


def test_a_batch_expires_while_its_lines_run(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "WINDOW", timedelta(seconds=2))
    batch = begun(client, LONG, TEXT)
    assert batch.expires_at == batch.created_at + 2
    _expired(client, batch, LONG)


def test_a_batch_expires_while_the_service_is_off(start: Start) -> None:
    with start() as live, of(live) as client:
        load_demo(live)
        batch = begun(client, LONG, TEXT)
        _until_answered(client, batch, 1)
    with closing(sqlite3.connect(live.home / "steerserve.db")) as database, database:
        database.execute("update batches set expires_at = created_at")
    with running(live.home) as live, of(live) as client:
        _expired(client, batch, LONG)
        answers = read(client, client.batches.retrieve(batch.id).output_file_id)
        assert "short" in [line["custom_id"] for line in answers]


def test_steered_lines_wait_for_an_sae_that_was_detached(start: Start) -> None:
    proof = demo.proof()
    steering = {str(proof["feature_idx"]): proof["strength"]}
    own = {"features": [{"index": proof["feature_idx"], "value": -20.0}]}
    with start() as live, of(live) as client:
        load_demo(live)
        (found,) = (one for one in demo.saes() if one.name == proof["sae"])
        sae_id = add_sae(live, found)
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": found.layer})
        live.data("POST", "/api/profiles", {"name": "sea", "steering": steering}, 201)
        steered = ({"sae_steering": own}, {"profile": "sea"})
        lines = [chat(str(i), max_tokens=12 + i, **steered[i % 2]) for i in range(24)]
        batch = begun(client, lines)
        _until_answered(client, batch, 5)
        live.data("POST", f"/api/saes/{sae_id}/detach")
        live.complete("One day", max_tokens=12)
        assert client.batches.retrieve(batch.id).status == "in_progress"
        live.data("POST", f"/api/saes/{sae_id}/attach", {"layer": found.layer})
        batch = ended(client, batch)
        assert batch.status == "completed"
        answers = read(client, batch.output_file_id)
        assert read(client, batch.error_file_id) == []
        for line, sent in zip(answers, lines, strict=True):
            alone = live.post(CHAT, sent["body"]).json()
            assert line["response"]["body"]["choices"] == alone["choices"]
