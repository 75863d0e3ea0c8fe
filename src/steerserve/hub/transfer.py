"""Fetches the files of a repository into a staging folder. A file continues where an earlier attempt stopped, and is
checked when it is complete.

The bytes are fetched here because huggingface_hub no longer continues partial files: each of its downloads starts a new
file and removes it on failure. Its metadata call and its client for the chunk store are used.

Only the downloader process imports this.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
from huggingface_hub import get_hf_file_metadata
from huggingface_hub.file_download import HfFileMetadata, xet_get

from steerserve.files.folder import XET_PART, CommitFolder
from steerserve.hub.session import Session
from steerserve.hub.wire import Download, Kind, Progressed, Trouble
from steerserve.rules.models.repository import RepoFile

REPORT_SECONDS = 0.25
HTTP_MAXIMUM = 50 * 10**9
"""The most bytes in a file that the hub serves over plain HTTP."""

SLOWEST = 1024
"""Bytes per second that a transfer must reach."""

_READ_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


class ByteCounter:
    """Counts the bytes of a job that are on the disk. While the work goes on, a separate thread reports the count every
    `REPORT_SECONDS`, so the last bytes before a pause are reported too."""

    def __init__(self, present: int, send: Callable[[Progressed], None]) -> None:
        self._present = present
        self._send = send
        self._is_moving = True
        self._over = threading.Event()
        self._teller = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> ByteCounter:
        self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._teller.join()

    def add(self, count: int) -> None:
        """Count further bytes. A count of 0 only shows that the work goes on. A negative count subtracts bytes."""
        self._present += count
        self._is_moving = True

    def _tell(self) -> None:
        while not self._over.wait(REPORT_SECONDS):
            if self._is_moving:
                self._is_moving = False
                self._send(Progressed(self._present))


def fetch_all(job: Download, session: Session, send: Callable[[Progressed], None]) -> None:
    """Fetch every file that is not complete yet.

    Raises:
        Trouble
    """
    folder = CommitFolder(Path(job.folder))
    folder.staging.mkdir(parents=True, exist_ok=True)
    with ByteCounter(sum(folder.present_bytes(file) for file in job.files), send) as counter:
        for file in job.files:
            if not folder.is_fetched(file):
                _Transfer(job, file, folder, session, counter).run()


class _Transfer:
    """The transfer of one file."""

    def __init__(
        self,
        job: Download,
        file: RepoFile,
        folder: CommitFolder,
        session: Session,
        counter: ByteCounter,
    ) -> None:
        self.job, self.file, self.session, self.counter = job, file, session, counter
        self.part, self.whole = folder.part(file), folder.whole(file)
        self.begun = folder.begun(file)
        self.url = session.address(job.repo_id, file.path, job.sha, job.repo_type)
        self.size = 0

    def run(self) -> None:
        facts = get_hf_file_metadata(
            self.url, headers=self.session.headers, endpoint=self.session.endpoint, token=False
        )
        self.size = self._checked_size(facts)
        self._check_disk()
        if self._may_use_xet(facts) and self._by_xet(facts):
            self.begun.unlink(missing_ok=True)
            return
        try:
            self._by_http()
            self._check(self.part)
        except Trouble as trouble:
            if trouble.kind is Kind.DAMAGED:
                self._drop_part()
            raise
        os.replace(self.part, self.whole)

    def _checked_size(self, facts: HfFileMetadata) -> int:
        """The size of the file in bytes. The listing and the hub's facts about the file must agree in commit and
        size."""
        if facts.commit_hash not in (None, self.job.sha):
            raise Trouble(Kind.FAILED, "the hub offers a file of another commit")
        size = facts.size if self.file.size is None else self.file.size
        if size is None or size < 0:
            raise Trouble(Kind.FAILED, "the hub does not tell how large a file is")
        if facts.size not in (None, size):
            raise Trouble(Kind.DAMAGED, "the hub tells two sizes of one file")
        return size

    def _check_disk(self) -> None:
        """Check the disk before each file. A size that the listing does not have was not part of earlier checks."""
        have = self.part.stat().st_size if self.part.exists() else 0
        free = shutil.disk_usage(self.part.parent).free
        if self.size - have > free - self.job.reserve_bytes:
            raise Trouble(Kind.DISK_FULL, "the disk has no room for the next file")

    # ------------------------------------------------------------- plain HTTP

    def _by_http(self) -> None:
        if self.begun.exists():
            self._take_begun()
        have = self.part.stat().st_size if self.part.exists() else -1
        if have > self.size:
            self._drop_part()
            have = -1
        if have == self.size:
            return
        wanted = {"Range": f"bytes={have}-"} if have > 0 else {}
        with self.session.stream(self.url, wanted) as response, self.part.open("ab") as out:
            if have > 0 and not _goes_on(response, have):
                out.truncate(0)
                self.counter.add(-have)
                have = 0
            have = max(have, 0)
            pace = _Pace(self.job.pace_seconds)
            for chunk in response.iter_bytes():
                have += len(chunk)
                if have > self.size:
                    raise Trouble(Kind.DAMAGED, "a file is longer than the hub listed it")
                pace.note(len(chunk))
                out.write(chunk)
                self.counter.add(len(chunk))
        if have < self.size:
            raise Trouble(Kind.UNREACHABLE, "a file ended early")

    def _take_begun(self) -> None:
        """Begin the part of the file with what a look at the file has read."""
        if self.part.exists():
            self.begun.unlink()
        else:
            os.replace(self.begun, self.part)
            self.counter.add(self.part.stat().st_size)

    def _drop_part(self) -> None:
        if self.part.exists():
            self.counter.add(-self.part.stat().st_size)
            self.part.unlink()

    def _check(self, path: Path) -> None:
        """Compare the content with the digest that the hub listed. Reading a large file takes long, so the counter is
        told now and then that the work goes on."""
        digest = _hasher(self.file.digest, self.size)
        if digest is None:
            return
        with path.open("rb") as opened:
            while block := opened.read(_READ_BYTES):
                digest.update(block)
                self.counter.add(0)
        if digest.hexdigest() != self.file.digest:
            raise Trouble(Kind.DAMAGED, "a file has not the content that the hub listed")

    # ------------------------------------------------------------- the hub's chunk store

    def _may_use_xet(self, facts: HfFileMetadata) -> bool:
        """Whether to fetch the file from the hub's chunk store. Such a transfer cannot be continued later, so a file
        that is there in part is fetched over plain HTTP, unless it is larger than HTTP_MAXIMUM."""
        data = facts.xet_file_data
        if data is None or importlib.util.find_spec("hf_xet") is None:
            return False
        if self.size <= HTTP_MAXIMUM and (not self.job.use_xet or self.part.exists()):
            return False
        # the client of the chunk store sends the token without passing the session's guard, so the address is checked
        return self.session.is_home(data.refresh_route)

    def _by_xet(self, facts: HfFileMetadata) -> bool:
        """Fetch the file from the chunk store, and return whether that succeeded. After a failure, no part of the file
        is left."""
        place = self.whole.with_suffix(XET_PART)
        counted = _Counted(self.counter)
        headers = {k: v for k, v in self.session.headers.items() if k != "Accept-Encoding"}
        try:
            xet_get(
                incomplete_path=place,
                xet_file_data=facts.xet_file_data,  # type: ignore[arg-type]
                headers=headers,
                expected_size=self.size,
                displayed_filename=place.name,
                tqdm_class=counted,  # type: ignore[arg-type]
            )
            if place.stat().st_size != self.size:
                raise Trouble(Kind.DAMAGED, "a file ended early")
            self._check(place)
        except Exception:
            # after any failure of the chunk store, the file is fetched over plain HTTP
            place.unlink(missing_ok=True)
            self.counter.add(-counted.bytes)
            return False
        self.counter.add(self.size - counted.bytes)
        os.replace(place, self.whole)
        return True


class _Pace:
    """Ends a transfer that is so slow that it would hold its place for days."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = time.monotonic()
        self._count = 0

    def note(self, count: int) -> None:
        """Note bytes that arrived.

        Raises:
            Trouble: UNREACHABLE, if fewer than `SLOWEST` bytes per second have arrived since the last look.
        """
        self._count += count
        passed = time.monotonic() - self._since
        if passed < self._seconds:
            return
        if self._count < SLOWEST * passed:
            raise Trouble(Kind.UNREACHABLE, "the hub sends too slowly")
        self._since, self._count = time.monotonic(), 0


class _Counted:
    """Replaces the progress bar of huggingface_hub, and passes the bytes on the disk to the counter. Because this class
    has the method `update_transfer`, huggingface_hub makes only one bar for the bytes on the disk and the bytes
    received; the received bytes are not counted.
    """

    def __init__(self, counter: ByteCounter) -> None:
        self._counter = counter
        self.bytes = 0
        self.total: int | None = None

    def __call__(self, **_: object) -> _Counted:
        return self

    def update(self, count: float) -> None:
        self.bytes += int(count)
        self._counter.add(int(count))

    def update_transfer(self, _count: float) -> None:
        self._counter.add(0)

    def set_postfix_str(self, _text: str, **_: object) -> None:
        """Nothing is drawn."""

    set_transfer_postfix_str = set_postfix_str

    def close(self) -> None:
        """Nothing is drawn."""


def _goes_on(response: httpx2.Response, have: int) -> bool:
    """Whether an answer is a part of the file that begins at byte `have`."""
    ranged = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    is_plain = response.headers.get("Content-Encoding", "identity") == "identity"
    return (
        response.status_code == 206 and is_plain and ranged is not None and int(ranged[1]) == have
    )


def _hasher(digest: str | None, size: int) -> hashlib._Hash | None:
    """The hash function for a digest: SHA-256 of the content, or SHA-1 of the git blob. None for a digest of another
    form."""
    if digest is None or not re.fullmatch(r"[0-9a-f]+", digest):
        return None
    if len(digest) == 64:
        return hashlib.sha256()
    if len(digest) == 40:
        return hashlib.sha1(b"blob %d\x00" % size, usedforsecurity=False)
    return None
