"""Descriptions, asked by real downloader processes of a hub on a loopback port."""

from __future__ import annotations

import gzip
import os
from typing import Any

import pytest

from steerserve.rules.bounds import CORPUS_HUB_BYTES
from tests.hub.conftest import FILES, MakeHub
from tests.loopback_hub import LoopbackHub
from tests.refusals import refused


async def test_the_facts_of_a_repository(make_hub: MakeHub, loopback: LoopbackHub) -> None:
    repo = loopback.add(
        "acme/tiny",
        FILES | {"sub/deep/x.gguf": b"GGUF"},
        info={
            "downloads": 12,
            "likes": 3,
            "tags": ["a", "b"],
            "pipeline_tag": "text-generation",
            "cardData": {"license": "mit", "language": ["en", "de"]},
            "safetensors": {"total": 77, "parameters": {"F32": 70, "I64": 7}},
            "gguf": {"total": 78, "architecture": "llama", "context_length": 2048},
        },
    )
    found = await make_hub().describe("acme/tiny")
    assert (found.repo_id, found.sha, found.revision) == ("acme/tiny", repo.sha, None)
    assert {file.path: file.size for file in found.files} == {
        path: len(body) for path, body in repo.files.items()
    }
    assert found.config == {"architectures": ["TinyForCausalLM"], "model_type": "tiny"}
    assert (found.architectures, found.model_type) == (("TinyForCausalLM",), "tiny")
    assert not found.requires_trust_remote_code
    assert not found.is_gated
    assert (found.downloads, found.likes, found.tags) == (12, 3, ("a", "b"))
    assert (found.pipeline_tag, found.license, found.language) == (
        "text-generation",
        "mit",
        "en, de",
    )
    assert (found.parameters, found.parameters_by_dtype) == (77, {"F32": 70, "I64": 7})
    gguf = (found.gguf_architecture, found.gguf_context_length, found.gguf_parameters)
    assert gguf == ("llama", 2048, 78)


async def test_a_file_of_a_repository_of_data_sets_is_read(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    loopback.add("datasets/acme/stories", {"sea.jsonl": b"a whale"})
    hub = make_hub()
    assert await hub.dataset_file("acme/stories", "main", "sea.jsonl", 7) == b"a whale"
    large = os.urandom(CORPUS_HUB_BYTES // 4 + 1)
    loopback.add("datasets/acme/large", {"sea.txt": large})
    assert await hub.dataset_file("acme/large", "main", "sea.txt", CORPUS_HUB_BYTES) == large
    larger = await refused(hub.dataset_file("acme/stories", "main", "sea.jsonl", 6))
    assert larger.code == "DOWNLOAD_FAILED"
    other = await refused(hub.dataset_file("acme/other", "main", "sea.jsonl", 7))
    assert other.code == "REPO_NOT_FOUND"


async def test_a_revision_is_asked_for_by_its_name(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    repo = loopback.add("gpt2", FILES)
    hub = make_hub()
    assert (await hub.describe("gpt2", "main")).revision == "main"
    assert (await hub.describe("gpt2", repo.sha)).sha == repo.sha
    assert loopback.asked("/api/models/gpt2/revision/main")
    assert (await refused(hub.describe("gpt2", "v2"))).code == "REPO_NOT_FOUND"


async def test_a_long_listing_is_read_page_by_page(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    loopback.page = 3
    loopback.add("acme/many", {f"part{n}": b"" for n in range(10)})
    assert len((await make_hub().describe("acme/many")).files) == 10
    assert len(loopback.asked("/tree/")) == 4


@pytest.mark.parametrize(
    ("facts", "token", "code", "said"),
    [
        (None, None, "REPO_NOT_FOUND", "no repository"),
        (None, "hf_good", "REPO_NOT_FOUND", "no repository"),
        ({"private": True}, None, "REPO_NOT_FOUND", "no repository"),
        ({"private": True}, "hf_good", "REPO_NOT_FOUND", "no repository"),
        ({}, "hf_unknown", "INVALID_HUB_TOKEN", "rejects"),
        ({"gated": "auto"}, None, "GATED_MODEL_NO_TOKEN", "needs a hub token"),
        ({"gated": "manual"}, "hf_good", "INVALID_HUB_TOKEN", "no access"),
        ({"gated": True}, "hf_unknown", "INVALID_HUB_TOKEN", "rejects"),
        ({}, "bad\r\ntoken", "INVALID_HUB_TOKEN", "characters"),
    ],
)
async def test_repositories_that_may_not_be_seen(
    make_hub: MakeHub,
    loopback: LoopbackHub,
    facts: dict[str, Any] | None,
    token: str | None,
    code: str,
    said: str,
) -> None:
    loopback.known_tokens.add("hf_good")
    if facts is not None:
        loopback.add("acme/tiny", FILES, **facts)
    hub = make_hub(hub_breaker_failures=1)
    refusal = await refused(hub.describe("acme/tiny", token=token))
    assert refusal.code == code
    assert said in refusal.message
    assert hub.breakers()[0].failure_count == 0


@pytest.mark.parametrize("files", [FILES, {"tiny-Q4_0.gguf": b"GGUF"}])
async def test_a_token_with_access_opens_a_gated_repository(
    make_hub: MakeHub, loopback: LoopbackHub, files: dict[str, bytes]
) -> None:
    loopback.add("acme/tiny", files, gated="manual", private=True, tokens=("hf_in", "hf_own"))
    assert (await make_hub().describe("acme/tiny", token="hf_in")).is_gated
    assert (await make_hub(hub_token="hf_own").describe("acme/tiny")).is_private
    assert {seen.token for seen in loopback.seen} == {"hf_in", "hf_own"}
    assert (await refused(make_hub().describe("acme/tiny"))).code == "REPO_NOT_FOUND"


@pytest.mark.parametrize(
    ("repo_id", "revision"), [("http://127.0.0.1:9/x", None), ("a/b", "../x"), ("a@b", None)]
)
async def test_a_name_that_is_none_asks_nobody(
    make_hub: MakeHub, loopback: LoopbackHub, repo_id: str, revision: str | None
) -> None:
    assert (await refused(make_hub().describe(repo_id, revision))).code == "VALIDATION_ERROR"
    assert not loopback.seen


@pytest.mark.parametrize(
    "extra",
    [
        {"type": "file", "path": "../../x", "size": 1},
        {"type": "file", "path": "a\ud800", "size": 1},
        {"type": "file", "path": "a", "size": -5},
        {"type": "file", "path": "a", "size": "5"},
        {"type": "file", "path": "a", "size": 1e300},
        {"type": "file", "path": "a", "size": 1 << 70},
        {"type": "file", "path": 5, "size": 1},
        {"type": "file", "size": 1},
        None,
        [],
        "config.json",
    ],
)
async def test_a_hostile_listing_is_refused(
    make_hub: MakeHub, loopback: LoopbackHub, extra: Any
) -> None:
    loopback.add("acme/evil", FILES, extra=[extra])
    hub = make_hub()
    refusal = await refused(hub.describe("acme/evil"))
    assert refusal.code == "DOWNLOAD_FAILED"
    assert refusal.message.isprintable()
    assert hub.breakers()[0].failure_count == 0


@pytest.mark.parametrize(
    "info",
    [
        {"sha": None},
        {"sha": "../../etc"},
        {"sha": 5},
    ],
)
async def test_a_hub_that_names_no_commit_is_refused(
    make_hub: MakeHub, loopback: LoopbackHub, info: dict[str, Any]
) -> None:
    loopback.add("acme/tiny", FILES, info=info)
    assert (await refused(make_hub().describe("acme/tiny"))).code == "DOWNLOAD_FAILED"


async def test_facts_of_the_wrong_type_are_unknown(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    odd = {
        "downloads": -1,
        "likes": "many",
        "tags": None,
        "pipeline_tag": ["x"],
        "cardData": "x",
        "safetensors": [1],
        "gguf": {"total": 1e400, "architecture": "a\x1b[31m\nb", "context_length": True},
        "siblings": None,
        "id": "../../x",
    }
    loopback.add("acme/odd", {"config.json": b"[" * 100_000}, info=odd)
    found = await make_hub().describe("acme/odd")
    assert found.repo_id == "acme/odd"
    assert (found.downloads, found.likes, found.tags, found.pipeline_tag) == (None, None, (), None)
    assert (found.license, found.parameters, found.gguf_parameters) == (None, None, None)
    assert (found.gguf_architecture, found.gguf_context_length) == ("a[31mb", None)
    assert found.config is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b"[]", b"[" * 200_000, b"\xff\xfe"])
async def test_an_answer_that_is_none_is_refused(
    make_hub: MakeHub, loopback: LoopbackHub, body: bytes
) -> None:
    loopback.fault("/api/models/", status=200, body=body)
    assert (await refused(make_hub().describe("acme/tiny"))).code == "DOWNLOAD_FAILED"


@pytest.fixture(scope="module")
def packed() -> bytes:
    return gzip.compress(b"[" + b" " * 400_000_000, compresslevel=1)


@pytest.mark.parametrize("where", ["GET /api/models/acme/tiny", "/tree/", "/config.json"])
async def test_an_answer_that_unpacks_without_end_is_bounded(
    make_hub: MakeHub, tiny: LoopbackHub, packed: bytes, where: str
) -> None:
    bomb = packed if where != "/tree/" else gzip.compress(packed, compresslevel=1)
    fault = tiny.fault(where, status=200, body=bomb)
    fault.headers = {"Content-Encoding": "gzip" if where != "/tree/" else "gzip, gzip"}
    if where == "/config.json":
        assert (await make_hub().describe("acme/tiny")).config is None
    else:
        assert (await refused(make_hub().describe("acme/tiny"))).code == "DOWNLOAD_FAILED"


async def test_a_listing_of_too_many_files_is_refused(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    loopback.page = 50_000
    many = [{"type": "file", "path": str(n), "size": 1} for n in range(20_001)]
    loopback.add("acme/many", {}, extra=many)
    refusal = await refused(make_hub().describe("acme/many"))
    assert (refusal.code, "20000 files" in refusal.message) == ("DOWNLOAD_FAILED", True)


async def test_a_listing_that_goes_on_elsewhere_is_refused(
    make_hub: MakeHub, tiny: LoopbackHub
) -> None:
    link = {"Link": '<http://169.254.169.254/latest>; rel="next"'}
    tiny.fault("/tree/", status=200, headers=link, body=b"[]")
    assert (await refused(make_hub().describe("acme/tiny"))).code == "DOWNLOAD_FAILED"


async def test_a_renamed_repository_is_found_under_its_new_name(
    make_hub: MakeHub, loopback: LoopbackHub
) -> None:
    loopback.add("acme/new", FILES)
    loopback.fault("/api/models/acme/old", status=307, headers={"Location": "/api/models/acme/new"})
    with LoopbackHub() as other:
        other.add("acme/old", FILES)
        found = await make_hub().describe("acme/old")
        assert found.repo_id == "acme/new"
        loopback.faults[0].headers = {"Location": f"{other.url}/api/models/acme/old"}
        assert (await refused(make_hub().describe("acme/old"))).code == "DOWNLOAD_FAILED"
        assert not other.seen
        assert not loopback.asked("/acme/old/tree/")
