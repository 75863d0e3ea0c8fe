"""The messages between the service and a downloader process. The service sends one JSON line; the process answers with
JSON lines."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from steerserve.hub.described import Repository
from steerserve.nouns.clusters.rules import OfferedPack
from steerserve.rules.models.repository import RepoFile, RepoType


class Kind(StrEnum):
    """The kinds of failures. Each kind is treated differently."""

    NO_REPO = "no_repo"
    NO_REVISION = "no_revision"
    NO_FILE = "no_file"
    GATED = "gated"
    BAD_TOKEN = "bad_token"  # noqa: S105  (the name of a failure)
    NO_ACCESS = "no_access"
    UNREACHABLE = "unreachable"
    """A failure of transport: connections, timeouts, and the statuses 408, 429 and 5xx. Another attempt may succeed."""
    DAMAGED = "damaged"
    """The bytes are not those that the hub listed. Another attempt may succeed."""
    DISK_FULL = "disk_full"
    FAILED = "failed"


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    repo_id: str
    revision: str | None
    repo_type: RepoType = "model"


class Headers(msgspec.Struct, frozen=True, tag="headers"):
    """Asks for the header of one safetensors file."""

    repo_id: str
    sha: str
    file: RepoFile


class SearchRepositories(msgspec.Struct, frozen=True, tag="search"):
    """Asks for public repositories that match a text and have all `tags`."""

    query: str
    tags: list[str]
    limit: int


class ReadContent(msgspec.Struct, frozen=True, tag="read"):
    """Asks for the content of one file of a commit, or of a revision of a repository of data sets."""

    repo_id: str
    sha: str
    path: str
    max_bytes: int
    repo_type: RepoType = "model"


class Download(msgspec.Struct, frozen=True, tag="download"):
    """Asks for a download. `use_xet` allows the hub's chunk store, if the hub offers it. In each `pace_seconds` enough
    bytes must arrive. `reserve_bytes` of the disk stay free."""

    repo_id: str
    sha: str
    files: list[RepoFile]
    folder: str
    use_xet: bool
    pace_seconds: float = 60.0
    reserve_bytes: int = 0
    repo_type: RepoType = "model"


class DownloaderTask(msgspec.Struct, frozen=True):
    """The one line that a downloader process reads. Its `repr` leaves out the token."""

    endpoint: str
    token: str | None
    job: Describe | Headers | SearchRepositories | ReadContent | Download

    def __repr__(self) -> str:
        return f"DownloaderTask({self.job!r})"


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The process has imported what it needs, and starts its job."""


class HeaderRead(msgspec.Struct, frozen=True, tag="header_read"):
    """The name, dtype (as safetensors writes it), shape and size in bytes of each tensor of the file. `begun` are the
    bytes that were read: the beginning of the file."""

    tensors: list[tuple[str, str, list[int], int]]
    begun: bytes


class Found(msgspec.Struct, frozen=True, tag="found"):
    """The answer to a search."""

    repositories: list[OfferedPack]


class ContentPart(msgspec.Struct, frozen=True, tag="content_part"):
    """The next bytes of the file. More follow."""

    content: bytes


class ContentRead(msgspec.Struct, frozen=True, tag="content_read"):
    """The last bytes of the file."""

    content: bytes


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """The bytes of the job that are on the disk, including those of earlier attempts."""

    present_bytes: int


class DownloadDone(msgspec.Struct, frozen=True, tag="done"):
    """Every file is complete."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The job failed. `reason` is one short sentence for people, without addresses. `wait_seconds` is how long the hub
    asks to wait. `cause` is the class of the library's error, for the log."""

    kind: Kind
    reason: str
    wait_seconds: float | None = None
    cause: str | None = None


Answer = Repository | HeaderRead | Found | ContentRead
Event = Begun | Answer | ContentPart | Progressed | DownloadDone | Failed


class Trouble(Exception):
    """A failure of the downloader, raised before it is turned into a refusal. The fields are those of `Failed`."""

    def __init__(
        self,
        kind: Kind,
        reason: str,
        wait_seconds: float | None = None,
        cause: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.wait_seconds = wait_seconds
        self.cause = cause

    @property
    def is_transport(self) -> bool:
        """Whether the failure is one of transport, so that another attempt may succeed."""
        return self.kind in (Kind.UNREACHABLE, Kind.DAMAGED)
