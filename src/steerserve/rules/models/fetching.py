"""Files of checkpoints on other nodes: where they are there, and whether a node may fetch the files that it lacks.

A folder of a finished download is `<cache>/<owner>--<name>/<commit>` (`files/folder.py`). Its path says which files of
the hub it holds, so a node can fetch the same files. No other folder can be fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from steerserve.errors import Refusal
from steerserve.rules.models.repository import RepoFile, check_repo_id, is_commit

CACHES = ("MODEL_CACHE_DIR", "SAE_CACHE_DIR")
"""The variables of a node's environment that name its cache folders. A node without them uses the folders of the
service."""


@dataclass(frozen=True, slots=True)
class PresentFile:
    """A file of a checkpoint on the machine of the service: its path below the folder, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Revision:
    """The files of one commit of a repository of the hub. `cache` is the cache folder, and `folder` the folder of the
    commit in it."""

    repo_id: str
    sha: str
    cache: str
    folder: str


@dataclass(frozen=True, slots=True)
class FetchTask:
    """What a node is told so that it fetches files of one commit of the hub into its cache folder `cache`. A task
    without files only asks whether the hub can be reached. The other fields are settings of the service. The `repr`
    leaves out the token."""

    repo_id: str
    sha: str
    cache: str
    files: tuple[PresentFile, ...]
    endpoint: str
    token: str | None = field(repr=False)
    attempts: int
    stall_seconds: float
    reserve_mb: int


@dataclass(frozen=True, slots=True)
class FetchSign:
    """A sign of a fetch. `percent` is 100 only at its end. `code` and `message` say why the fetch has failed, None and
    empty otherwise; `details` are those of the refusal."""

    percent: float
    code: str | None = None
    message: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Presence(StrEnum):
    """What to do about the files of a checkpoint on a node."""

    THERE = "there"
    FETCH = "fetch"
    """The node fetches them from the hub."""
    LACKING = "lacking"
    """The node lacks them, and nobody can fetch them: the hub does not have them."""


def presence(lacking: Sequence[str], revision: Revision | None) -> Presence:
    """What to do about a checkpoint on a node that lacks these files of it. `revision` is None for a checkpoint that is
    no download of the hub."""
    if not lacking:
        return Presence.THERE
    return Presence.LACKING if revision is None else Presence.FETCH


def lacking(ours: Sequence[PresentFile], theirs: Mapping[str, int]) -> list[str]:
    """The paths of the files that a node lacks or has with another size. `theirs` has the sizes of its files. Other
    files of the node do not count: they belong to other checkpoints of the same commit."""
    return [file.path for file in ours if theirs.get(file.path) != file.size]


def revision_of(path: str, caches: Sequence[str]) -> Revision | None:
    """The commit of the hub to which a folder or file in one of the cache folders belongs; None for any other path."""
    for cache in sorted(caches, key=len, reverse=True):
        parts = path.removeprefix(cache.rstrip("/") + "/").split("/")
        if not path.startswith(cache.rstrip("/") + "/") or len(parts) < 2:
            continue
        repo_id = parts[0].replace("--", "/", 1)
        try:
            check_repo_id(repo_id)
        except Refusal:
            continue
        if is_commit(parts[1]):
            return Revision(repo_id, parts[1], cache, "/".join([cache.rstrip("/"), *parts[:2]]))
    return None


def moved(path: str, caches: Mapping[str, str]) -> str:
    """The path of a file or folder on a node. `caches` has the cache folders of the service, each with the folder that
    has its place on the node. A path in none of them is the same there."""
    for ours, theirs in sorted(caches.items(), key=lambda pair: len(pair[0]), reverse=True):
        if path == ours or path.startswith(ours.rstrip("/") + "/"):
            return theirs.rstrip("/") + path[len(ours.rstrip("/")) :]
    return path


def listed_files(
    wanted: Sequence[PresentFile], listing: Sequence[RepoFile]
) -> tuple[RepoFile, ...]:
    """The wanted files as the hub lists them, with their digests.

    Raises:
        Refusal: DOWNLOAD_FAILED where the hub's commit does not have a file, or has it with another size.
    """
    by_path = {file.path: file for file in listing}
    files = []
    for one in wanted:
        file = by_path.get(one.path)
        if file is None:
            why = "which this service has, is not among the files of the commit on the hub"
            raise Refusal("DOWNLOAD_FAILED", f"the file {one.path!a}, {why}")
        if file.size not in (None, one.size):
            why = f"has {one.size} bytes here and {file.size} on the hub"
            raise Refusal("DOWNLOAD_FAILED", f"the file {one.path!a} {why}")
        files.append(RepoFile(file.path, one.size, file.digest))
    return tuple(files)
