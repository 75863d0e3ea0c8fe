"""Packs of clusters: what is read of a repository, and which answers of the hub are used again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from steerserve.errors import DocumentRefusal
from steerserve.hub.described import Repository
from steerserve.nouns.cluster_packs.owner import ClusterPacks, from_manifest
from steerserve.nouns.clusters.owner import ImportOptions
from steerserve.rules.bounds import PACK_ANSWERS_KEPT, PACK_DEFINITIONS
from steerserve.rules.models.repository import RepoFile
from tests.control.conftest import refused
from tests.doubles import World

SHA = "a" * 40
CLUSTER = {
    "kind": "mistudio.cluster-definition",
    "name": "rain",
    "members": [{"feature_idx": 1, "strength": 2}],
}


class PackHub:
    """A hub with one repository. `asked` are the questions."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[tuple[Any, ...]] = []

    async def search(self, query: str, tags: list[str], limit: int) -> list[Any]:
        self.asked.append(("search", query, tuple(tags), limit))
        return []

    async def describe(self, repo_id: str, revision: str | None) -> Repository:
        self.asked.append(("describe", repo_id, revision))
        files = tuple(RepoFile(path, len(body)) for path, body in self.files.items())
        known = {"repo_id": repo_id, "sha": SHA, "revision": revision, "files": files, "tags": ()}
        return Repository(**dict.fromkeys(Repository.__struct_fields__) | known)  # type: ignore[arg-type]

    async def content(self, repo_id: str, sha: str, path: str, max_bytes: int) -> bytes:
        self.asked.append(("content", repo_id, sha, path))
        return self.files[path]


def packs_of(world: World, hub: PackHub, now: list[float]) -> ClusterPacks:
    return ClusterPacks(
        world.settings,
        hub,  # type: ignore[arg-type]
        world.clusters,
        world.reader,
        lambda: now[0],
    )


async def test_an_answer_is_used_again_until_its_time_is_over(world: World) -> None:
    hub, now = PackHub({"rain.cluster.json": b""}), [0.0]
    packs = packs_of(world, hub, now)
    for _ in range(2):
        await packs.search("rain", None, 30)
        await packs.definitions("acme/pack", None)
    assert len(hub.asked) == 2
    now[0] = world.settings.cluster_hub_cache_ttl_s
    await packs.search("rain", None, 30)
    await packs.search("rain", "acme/tiny", 30)
    assert [asked[2] for asked in hub.asked if asked[0] == "search"] == [
        (world.settings.cluster_hub_tag,),
        (world.settings.cluster_hub_tag,),
        (world.settings.cluster_hub_tag, "base_model:acme/tiny"),
    ]


async def test_only_the_latest_answers_are_kept(world: World) -> None:
    hub = PackHub({})
    packs = packs_of(world, hub, [0.0])
    for number in range(PACK_ANSWERS_KEPT + 1):
        await packs.search(str(number), None, 30)
    before = len(hub.asked)
    await packs.search(str(PACK_ANSWERS_KEPT), None, 30)
    assert len(hub.asked) == before
    await packs.search("0", None, 30)
    assert len(hub.asked) == before + 1


def test_a_manifest_is_read_line_by_line_and_bad_lines_are_left_out() -> None:
    row = {"file": "rain.cluster.json", "name": "rain", "member_count": 1, "base_model": "acme/t"}
    lines = [
        json.dumps(row).encode(),
        b"not json",
        b'{"file": "README.md"}',
        b'["rain.cluster.json"]',
        b'{"file": "x.cluster.json", "member_count": "many", "name": 3}',
        b"[" * 100_000,
        b"\xff",
        b"",
    ]
    read = from_manifest(b"\n".join(lines))
    assert [(one.file, one.name, one.member_count, one.base_model) for one in read] == [
        ("rain.cluster.json", "rain", 1, "acme/t"),
        ("x.cluster.json", None, None, None),
    ]
    assert len(from_manifest(b"\n".join(lines[:1] * 300))) == PACK_DEFINITIONS


async def test_a_manifest_alone_is_read_where_there_is_one(world: World) -> None:
    hub = PackHub({"manifest.jsonl": b'{"file": "a.cluster.json"}', "b.cluster.json": b""})
    read = await packs_of(world, hub, [0.0]).definitions("acme/pack", None)
    assert [one.file for one in read] == ["a.cluster.json"]
    plain = PackHub({"b.cluster.json": b"", "x/c.cluster.json": b"", "d.json": b""})
    listed = await packs_of(world, plain, [0.0]).definitions("acme/pack", None)
    assert [one.file for one in listed] == ["b.cluster.json", "x/c.cluster.json"]


@pytest.mark.parametrize(
    ("content", "code", "is_of_document"),
    [
        (json.dumps({"kind": "mistudio.cluster-bundle"}).encode(), "UNKNOWN_KIND", True),
        (json.dumps(CLUSTER | {"members": []}).encode(), "VALIDATION_ERROR", True),
        (b'{"x":' + b"[" * 40 + b"]" * 40 + b"}", "VALIDATION_ERROR", True),
        (b"not json", "VALIDATION_ERROR", False),
        pytest.param(b" " * (2**20 + 1), "VALIDATION_ERROR", False, id="too large"),
    ],
)
async def test_a_file_is_checked_like_the_body_of_an_import(
    world: World, content: bytes, code: str, is_of_document: bool
) -> None:
    hub = PackHub({"a.cluster.json": content})
    packs = packs_of(world, hub, [0.0])
    refusal = await refused(packs.add("acme/pack", "a.cluster.json", None, ImportOptions()))
    assert refusal.code == code
    assert isinstance(refusal, DocumentRefusal) is is_of_document
    assert (await world.clusters.page(200))[0] == []
