"""The files of a checkpoint on this machine, and the cache folders in which downloads are on other nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steerserve.rules.models.fetching import (
    CACHES,
    FetchTask,
    PresentFile,
    Revision,
    moved,
    revision_of,
)
from steerserve.settings import Settings

LOCAL_FILES = 1000
"""The most files of a folder that is no download for which a node looks."""


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """The files that a checkpoint has below a folder of this machine. `revision` is None for files that are no download
    of the hub."""

    folder: str
    files: tuple[PresentFile, ...]
    revision: Revision | None


def caches(settings: Settings) -> dict[str, str]:
    """The cache folders of the service, as written and with links resolved, each with the variable that names it."""
    places: dict[str, str] = {}
    for variable in CACHES:
        folder: Path = getattr(settings, variable.lower())
        places |= {str(folder): variable, str(folder.resolve()): variable}
    return places


def is_download(path: str, ours: Mapping[str, str]) -> bool:
    """Whether a folder or file of the service is a download of the hub, which nodes can fetch. `ours` are the cache
    folders of the service."""
    return revision_of(path, list(ours)) is not None


def own_caches() -> dict[str, str]:
    """The cache folders that the environment of this node names, by their variables."""
    return {name: os.environ[name] for name in CACHES if os.path.isabs(os.environ.get(name, ""))}


def folders_there(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """The cache folders of the service, each with the folder in its place on a node. `theirs` are the folders that the
    environment of the node names."""
    return {folder: theirs.get(variable, folder) for folder, variable in ours.items()}


def on_this_node(path: str, ours: Mapping[str, str]) -> str:
    """The path on this node of a file or folder of the service, whose cache folders are `ours`."""
    return moved(path, folders_there(ours, own_caches()))


def wanted(path: str, folders: Sequence[str]) -> WantedFiles:
    """The files that an engine needs of the checkpoint at `path`, a folder or a file of this machine. `folders` are the
    cache folders. Hidden files do not count.

    A file of a repository may need files beside it, so all files of its folder are wanted.
    """
    place = Path(path)
    revision = revision_of(path, folders)
    if revision is None and not place.is_dir():
        return WantedFiles(str(place.parent), tuple(_sized(place, place.parent)), None)
    folder = Path(revision.folder) if revision is not None else place
    below = place if place.is_dir() else place.parent
    files = sorted(visible_files(below, folder), key=lambda file: file.path)
    # a download has no more files than its listing; another folder may hold anything beside the checkpoint
    return WantedFiles(
        str(folder), tuple(files if revision is not None else files[:LOCAL_FILES]), revision
    )


def fetch_task(wanted: WantedFiles, folders: Mapping[str, str], settings: Settings) -> FetchTask:
    """The task of a node that fetches these files. `folders` has its cache folders in the places of our own."""
    revision = wanted.revision
    assert revision is not None
    token = settings.hub_token
    return FetchTask(
        revision.repo_id,
        revision.sha,
        folders[revision.cache],
        wanted.files,
        settings.hf_endpoint,
        None if token is None else token.get_secret_value(),
        settings.download_attempts,
        settings.download_stall_timeout,
        settings.disk_reserve_mb,
    )


def visible_files(place: Path, folder: Path) -> Iterator[PresentFile]:
    """The files below a place in the folder, without hidden ones. Links are followed, because a shared folder may hold
    links into a cache."""
    for inside, below, names in os.walk(place):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield from _sized(Path(inside, name), folder)


def _sized(file: Path, folder: Path) -> Iterator[PresentFile]:
    with suppress(OSError):
        yield PresentFile(file.relative_to(folder).as_posix(), file.stat().st_size)
