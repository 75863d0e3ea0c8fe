"""Packs of clusters on the model hub: public repositories with a tag, whose files end in `.cluster.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, TypeVar

from steerserve.control.threads import Threads
from steerserve.errors import Refusal
from steerserve.hub.client import Hub
from steerserve.hub.described import Repository
from steerserve.nouns.cluster_packs.form import PackedDefinition
from steerserve.nouns.clusters import rules as cluster
from steerserve.nouns.clusters.form import HubReference, ImportedItem
from steerserve.nouns.clusters.owner import Clusters, ImportOptions
from steerserve.nouns.clusters.rules import OfferedPack
from steerserve.rules.bounds import DOCUMENT_BYTES, PACK_ANSWERS_KEPT, PACK_DEFINITIONS
from steerserve.rules.field_faults import refuse_field
from steerserve.rules.steering import documents
from steerserve.rules.text import storable
from steerserve.settings import Settings

SUFFIX = ".cluster.json"
MANIFEST = "manifest.jsonl"
"""A file at the root of a pack with one JSON object for each definition."""

TEXT_MAXIMUM = 200

ABSENT = ("REPO_NOT_FOUND", "GATED_MODEL_NO_TOKEN", "INVALID_HUB_TOKEN")
"""Codes of a repository, a revision or a file that nobody can read without a token."""

Known = TypeVar("Known")


class ClusterPacks:
    """Asks the hub without a token. Answers about searches and packs are used again for some time."""

    def __init__(
        self,
        settings: Settings,
        hub: Hub,
        clusters: Clusters,
        reader: Threads,
        seconds: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._clusters = clusters
        self._reader = reader
        self._seconds = seconds
        self._cache: dict[tuple[object, ...], tuple[float, Any]] = {}

    async def search(self, query: str, base_model: str | None, limit: int) -> Sequence[OfferedPack]:
        """The packs that match a text, and that are made for a model if one is named.

        Raises:
            Refusal: HUB_UNAVAILABLE, DOWNLOAD_FAILED.
        """
        key = ("search", query, base_model, limit)
        known: Sequence[OfferedPack] | None = self._cached(key)
        if known is None:
            tags = [self._settings.cluster_hub_tag]
            tags += [f"base_model:{base_model}"] if base_model else []
            known = self._kept(key, await self._hub.search(query, tags, limit))
        return known

    async def definitions(self, repo_id: str, revision: str | None) -> Sequence[PackedDefinition]:
        """The definitions of a pack: those of its manifest, or else all files that may be definitions.

        Raises:
            Refusal: VALIDATION_ERROR for a repository that is not there or is not public; HUB_UNAVAILABLE,
                DOWNLOAD_FAILED.
        """
        key = ("definitions", repo_id, revision)
        known: Sequence[PackedDefinition] | None = self._cached(key)
        if known is None:
            pack = await self._described(repo_id, revision, None)
            known = self._kept(key, await self._listed(pack))
        return known

    async def add(
        self, repo_id: str, filename: str, revision: str | None, options: ImportOptions
    ) -> ImportedItem:
        """Import one definition of a pack.

        Raises:
            DocumentRefusal: the file does not match the contract of cluster definitions.
            Refusal: VALIDATION_ERROR for a file that is not there or may not be read; HUB_UNAVAILABLE, DOWNLOAD_FAILED.
        """
        check_filename(repo_id, filename)
        pack = await self._described(repo_id, revision, filename)
        file = next((file for file in pack.files if file.path == filename), None)
        if file is None:
            raise _absent(repo_id, filename, "the repository has no such file")
        if (file.size or 0) > DOCUMENT_BYTES:
            raise _absent(repo_id, filename, f"the file has more than {DOCUMENT_BYTES} bytes")
        body = await self._content(pack, filename)
        imported = await self._reader.run(documents.parse, body, cluster.definition)
        came_from = HubReference(pack.repo_id, pack.sha, filename)
        columns = {"hub_ref": asdict(came_from)}
        return await self._clusters.add(imported, replace(options, columns=columns))

    # ------------------------------------------------------------- inside

    async def _described(
        self, repo_id: str, revision: str | None, filename: str | None
    ) -> Repository:
        with _readable(repo_id, filename):
            return await self._hub.describe(repo_id, revision)

    async def _content(self, pack: Repository, path: str) -> bytes:
        with _readable(pack.repo_id, path):
            return await self._hub.content(pack.repo_id, pack.sha, path, DOCUMENT_BYTES)

    async def _listed(self, pack: Repository) -> list[PackedDefinition]:
        if any(file.path == MANIFEST for file in pack.files):
            return await self._reader.run(from_manifest, await self._content(pack, MANIFEST))
        files = (file.path for file in pack.files if file.path.endswith(SUFFIX))
        return [PackedDefinition(path) for path in files][:PACK_DEFINITIONS]

    def _cached(self, key: tuple[object, ...]) -> Any:
        """The answer of a moment ago; None where there is none."""
        until, answer = self._cache.get(key, (0.0, None))
        return answer if self._seconds() < until else None

    def _kept(self, key: tuple[object, ...], answer: Known) -> Known:
        self._cache.pop(key, None)
        self._cache[key] = self._seconds() + self._settings.cluster_hub_cache_ttl_s, answer
        if len(self._cache) > PACK_ANSWERS_KEPT:
            del self._cache[next(iter(self._cache))]
        return answer


def check_filename(repo_id: str, filename: str) -> None:
    """Raises:
    Refusal: VALIDATION_ERROR for a path that is no file of a definition inside a repository.
    """
    if not filename.endswith(SUFFIX):
        raise _absent(repo_id, filename, f"a definition is a file that ends in {SUFFIX}")
    if filename.startswith(("/", "\\")) or ".." in filename or not filename.isprintable():
        raise _absent(repo_id, filename, "a file is named by its path inside the repository")


def from_manifest(text: bytes) -> list[PackedDefinition]:
    """The definitions that a manifest names. Lines that are not of its form are left out."""
    entries = (entry for entry in map(_entry, text.split(b"\n")) if entry is not None)
    return list(islice(entries, PACK_DEFINITIONS))


def _entry(line: bytes) -> PackedDefinition | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    file = said.get("file") if isinstance(said, dict) else None
    if not isinstance(file, str) or not file.endswith(SUFFIX) or len(file) > TEXT_MAXIMUM:
        return None
    count = said.get("member_count")
    is_count = type(count) is int and 0 <= count < 1 << 31
    return PackedDefinition(
        storable(file),
        _text(said.get("name")),
        count if is_count else None,
        _text(said.get("base_model")),
    )


def _text(value: object) -> str | None:
    return storable(value[:TEXT_MAXIMUM]) if isinstance(value, str) else None


@contextmanager
def _readable(repo_id: str, filename: str | None) -> Iterator[None]:
    """Turn the refusal of what nobody can read without a token into the refusal of the field."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code in ABSENT:
            raise _absent(repo_id, filename, refusal.message) from refusal
        raise


def _absent(repo_id: str, filename: str | None, reason: str) -> Refusal:
    """The refusal of a repository or a file that cannot be imported from."""
    field = "repo_id" if filename is None else "filename"
    details = {"repo_id": repo_id, "filename": filename, "reason": reason}
    return refuse_field(field, reason, **details)
