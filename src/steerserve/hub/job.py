"""A download as a value: which files of one commit go where, how far they are, and whether they fit on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steerserve.files.folder import CommitFolder, free_bytes, missing_bytes
from steerserve.rules.repository import RepoFile


@dataclass(frozen=True, slots=True)
class Job:
    """Files of one commit, and the folder they go to (see `files.folder.folder_of`)."""

    repo_id: str
    sha: str
    files: tuple[RepoFile, ...]
    folder: Path
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a download is. Bytes that were there before it began count as downloaded. `percent` is 100 only at the
    end; `speed_bps` (bytes a second) is None while nothing flows."""

    downloaded_bytes: int
    total_bytes: int
    percent: int
    speed_bps: float | None = None


def disk_room(job: Job, others: Sequence[Job]) -> tuple[int, int, int]:
    """Bytes that the job still fetches, bytes that are free, and bytes that the other jobs still fetch. A file that
    several jobs fetch, this one among them, counts once."""
    promised = {
        CommitFolder(other.folder).final(file): missing_bytes(other.folder, [file])
        for other in others
        for file in other.files
    }
    own = {CommitFolder(job.folder).final(file) for file in job.files}
    beside = sum(size for path, size in promised.items() if path not in own)
    return missing_bytes(job.folder, job.files), free_bytes(job.folder), beside


def percent_of(present: int, total: int) -> int:
    """At most 99, because 100 is shown at the end only."""
    return min(99, 100 * present // total) if total else 0
