"""The downloader: one process, forked by `forking.py`, for one question or one download.

It reads one JSON line (`wire.DownloaderTask`) from its link, writes JSON lines, and ends when the service closes the
link, so no downloader is left when the service is killed. Only the fork server and the downloaders import
huggingface_hub and its HTTP client.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import threading
from typing import Any, BinaryIO, Never
from urllib.parse import quote

import msgspec
from huggingface_hub import get_hf_file_metadata

from steerserve.errors import Refusal
from steerserve.hub.described import TEXTS_MAXIMUM, Repository, count_of, text_of, texts_of
from steerserve.hub.finding import content, search
from steerserve.hub.header import fetch_header
from steerserve.hub.session import Session, troubles
from steerserve.hub.transfer import fetch_all
from steerserve.hub.wire import (
    Answer,
    Begun,
    Describe,
    Download,
    DownloadDone,
    DownloaderTask,
    Event,
    Failed,
    Headers,
    Kind,
    ReadContent,
    SearchRepositories,
    Trouble,
)
from steerserve.rules.models.repository import RepoFile, RepoType, check_repo_id

INFO_BYTES = 16 << 20
LISTING_BYTES = 32 << 20
LISTED_FILES = 20_000
LISTED_CHARACTERS = 4 << 20
"""The most characters in all paths of a listing."""

LISTING_PAGES = 1000
CONFIG_BYTES = 1 << 20
DESCRIBE_MEMORY = 1 << 30
"""The largest address space, in bytes, of a process that answers a question."""

READ_SECONDS = 15.0


def describe(job: Describe, session: Session) -> Repository:
    """The hub's description of a repository at one commit. A value of the wrong type becomes None. A malformed listing
    is refused.

    Raises:
        Trouble
    """
    info = _info(job, session)
    sha = info.get("sha")
    if not isinstance(sha, str) or not re.fullmatch(r"[0-9a-f]{40,64}", sha):
        raise Trouble(Kind.FAILED, "the hub names no commit of the repository")
    repo_id = _name(info.get("id"), job.repo_id)
    kind = job.repo_type
    files = _listing(repo_id, sha, kind, session)
    is_gated = info.get("gated") not in (None, False)
    config = next((file for file in files if file.path == "config.json"), None)
    if is_gated and files:
        _check_access(repo_id, sha, config or files[0], kind, session)
    card, weights, gguf = (_object(info.get(name)) for name in ("cardData", "safetensors", "gguf"))
    counts = list(_object(weights.get("parameters")).items())[:TEXTS_MAXIMUM]
    dtypes = {name: n for k, n in counts if (name := text_of(k)) and count_of(n)}
    return Repository(
        repo_id=repo_id,
        sha=sha,
        is_gated=is_gated,
        is_private=info.get("private") is True,
        files=tuple(files),
        config=_config(repo_id, sha, config, kind, session),
        downloads=count_of(info.get("downloads")),
        likes=count_of(info.get("likes")),
        tags=tuple(texts_of(info.get("tags"))),
        pipeline_tag=text_of(info.get("pipeline_tag")),
        license=text_of(card.get("license")),
        language=text_of(card.get("language")) or ", ".join(texts_of(card.get("language"))) or None,
        parameters=count_of(weights.get("total")),
        parameters_by_dtype=dtypes,
        gguf_architecture=text_of(gguf.get("architecture")),
        gguf_context_length=count_of(gguf.get("context_length")),
        gguf_parameters=count_of(gguf.get("total")),
    )


def _info(job: Describe, session: Session) -> dict[str, object]:
    url = f"{session.endpoint}/api/{job.repo_type}s/{job.repo_id}"
    if job.revision is not None:
        url += f"/revision/{quote(job.revision, safe='')}"
    info, _ = session.json(url, INFO_BYTES)
    if not isinstance(info, dict):
        raise Trouble(Kind.FAILED, "the hub's answer is not of the form that hubs give")
    return info


def _name(named: object, asked: str) -> str:
    """The name of the repository as the hub writes it. For a repository that was renamed, this is the new name."""
    with contextlib.suppress(Refusal):
        return check_repo_id(named) if isinstance(named, str) else asked
    return asked


def _listing(repo_id: str, sha: str, kind: RepoType, session: Session) -> list[RepoFile]:
    """All files of a commit, in all folders. The listing is fetched page by page."""
    url: str | None = f"{session.endpoint}/api/{kind}s/{repo_id}/tree/{sha}?recursive=true"
    files: list[RepoFile] = []
    for _ in range(LISTING_PAGES):
        if url is None:
            return files
        if not session.is_home(url):
            raise Trouble(Kind.FAILED, "the hub's listing goes on elsewhere")
        page, url = session.json(url, LISTING_BYTES)
        if not isinstance(page, list):
            raise Trouble(Kind.FAILED, "the hub's listing is malformed")
        files += (_listed(entry) for entry in page if not _is_folder(entry))
        if len(files) > LISTED_FILES:
            raise Trouble(Kind.FAILED, f"the repository has more than {LISTED_FILES} files")
        if sum(len(file.path) for file in files) > LISTED_CHARACTERS:
            raise Trouble(Kind.FAILED, "the paths of the repository's files are too long")
    raise Trouble(Kind.FAILED, f"the hub's listing has more than {LISTING_PAGES} pages")


def _is_folder(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("type") == "directory"


def _listed(entry: object) -> RepoFile:
    """One file of a listing. Its digest is the SHA-256 of the content if the file is stored outside git, else the id of
    its git blob."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise Trouble(Kind.FAILED, "the hub's listing is malformed")
    lfs = _object(entry.get("lfs"))
    size, digest = lfs.get("size", entry.get("size")), lfs.get("oid", entry.get("oid"))
    if (size is not None and type(size) is not int) or not _is_encodable(entry["path"]):
        raise Trouble(Kind.FAILED, "the hub's listing is malformed")
    is_digest = isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", digest)
    return RepoFile(entry["path"], size, digest if is_digest else None)


def _is_encodable(path: str) -> bool:
    try:
        return bool(path.encode())
    except UnicodeEncodeError:
        return False


def _check_access(repo_id: str, sha: str, file: RepoFile, kind: RepoType, session: Session) -> None:
    """Check that the token has access to a gated repository. The facts of such a repository are public, so one of its
    files is requested."""
    url = session.address(repo_id, file.path, sha, kind)
    get_hf_file_metadata(url, headers=session.headers, endpoint=session.endpoint, token=False)


def _config(
    repo_id: str, sha: str, file: RepoFile | None, kind: RepoType, session: Session
) -> dict[str, object] | None:
    """The content of config.json. None if there is no such file, if it is too large, or if it is not a JSON object."""
    if file is None or (file.size or 0) > CONFIG_BYTES:
        return None
    url = session.address(repo_id, file.path, sha, kind)
    body = bytearray()
    with session.stream(url) as response:
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > CONFIG_BYTES:
                return None
    try:
        config = json.loads(body)
        msgspec.json.encode(config)
    except (ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# ------------------------------------------------------------------ the process


def main(link: socket.socket) -> Never:
    """Read one task, write its events, and exit."""
    try:
        source, out = link.makefile("rb"), link.makefile("wb")
        ask = msgspec.json.decode(source.readline(), type=DownloaderTask)
        threading.Thread(target=_end_with, args=(source,), daemon=True).start()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not isinstance(ask.job, Download):
            # the memory is bounded, because a small compressed answer may unpack to a huge one
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_AS, (DESCRIBE_MEMORY, DESCRIBE_MEMORY))
        _send(out, Begun())
        _send(out, _run(ask, out))
    finally:
        # exit at once, because threads of libraries could keep the process running
        os._exit(0)


def _run(ask: DownloaderTask, out: BinaryIO) -> Event:
    """Do the task, and return the last event."""
    try:
        with troubles(ask.token is not None):
            if not isinstance(ask.job, Download):
                session = Session(ask.endpoint, ask.token, READ_SECONDS)
                return _answer(ask.job, session, out)
            # a download has no timeout here: the service sees its progress, and ends it when it makes none
            session = Session(ask.endpoint, ask.token, None)
            fetch_all(ask.job, session, lambda event: _send(out, event))
            return DownloadDone()
    except Trouble as trouble:
        return Failed(trouble.kind, trouble.reason, trouble.wait_seconds, trouble.cause)
    except Exception as error:
        # border of the process: only the type is reported, because the text of an error may hold secrets
        return Failed(Kind.FAILED, "an error inside the service", cause=type(error).__name__)


def _answer(
    job: Describe | Headers | SearchRepositories | ReadContent, session: Session, out: BinaryIO
) -> Answer:
    """The answer to a question.

    Raises:
        Trouble
    """
    match job:
        case Describe():
            return describe(job, session)
        case Headers():
            return fetch_header(job, session)
        case SearchRepositories():
            return search(job, session)
        case ReadContent():
            return content(job, session, lambda part: _send(out, part))


def _send(out: BinaryIO, event: Event) -> None:
    out.write(msgspec.json.encode(event) + b"\n")
    out.flush()


def _end_with(source: BinaryIO) -> None:
    """End the process when its link closes."""
    with contextlib.suppress(OSError):
        while source.read(1):
            pass
    os._exit(0)
