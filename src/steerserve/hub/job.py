"""A download as a value: the files of one commit and their folder, the progress, and whether the files fit on the
disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steerserve.files.folder import CommitFolder, free_bytes, missing_bytes
from steerserve.rules.models.repository import RepoFile, RepoType


@dataclass(frozen=True, slots=True)
class Job:
    """Files of one commit, and the folder where they are stored (see `files.folder.folder_of`). `begun` has the
    beginnings of files that were read before, by their paths."""

    repo_id: str
    sha: str
    files: tuple[RepoFile, ...]
    folder: Path
    token: str | None = field(default=None, repr=False)
    begun: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    repo_type: RepoType = "model"


def disk_room(job: Job, others: Sequence[Job]) -> tuple[int, int, int]:
    """Three numbers: the bytes that the job still has to fetch, the free bytes, and the bytes that the other jobs still
    have to fetch. A file that several jobs fetch counts once."""
    promised = {
        CommitFolder(other.folder).final(file): missing_bytes(other.folder, [file])
        for other in others
        for file in other.files
    }
    own = {CommitFolder(job.folder).final(file) for file in job.files}
    beside = sum(size for path, size in promised.items() if path not in own)
    return missing_bytes(job.folder, job.files), free_bytes(job.folder), beside


def percent_of(present: int, total: int) -> int:
    """The percentage of `total`, at most 99, because 100 is only shown at the end."""
    return min(99, 100 * present // total) if total else 0
