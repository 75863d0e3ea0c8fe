"""Searches a hub, and reads a file of a repository. Only the downloader process imports this."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlencode

from steerserve.errors import Refusal
from steerserve.hub.described import count_of, texts_of
from steerserve.hub.session import Session
from steerserve.hub.wire import (
    ContentPart,
    ContentRead,
    Found,
    Kind,
    ReadContent,
    SearchRepositories,
    Trouble,
)
from steerserve.nouns.clusters.rules import OfferedPack
from steerserve.rules.models.repository import check_repo_id

ANSWER_BYTES = 8 << 20
PART_BYTES = 1 << 20
"""The bytes of a file from which on they are sent, so that no line is too long for its reader."""
_FACTS = ("likes", "downloads", "lastModified", "tags")
_TIME = re.compile(r"[0-9T:.Z+-]{10,40}")


def search(job: SearchRepositories, session: Session) -> Found:
    """The repositories that match. An entry without a usable name is left out, and a value of the wrong type becomes
    None.

    Raises:
        Trouble
    """
    asked = [("search", job.query)] if job.query else []
    asked += [("filter", tag) for tag in job.tags] + [("limit", str(job.limit))]
    asked += [("expand[]", fact) for fact in _FACTS]
    url = f"{session.endpoint}/api/models?{urlencode(asked)}"
    listed, _ = session.json(url, ANSWER_BYTES)
    if not isinstance(listed, list):
        raise Trouble(Kind.FAILED, "the hub's answer is not of the form that hubs give")
    repositories = (_repository(entry) for entry in listed[: job.limit])
    return Found([repository for repository in repositories if repository is not None])


def content(job: ReadContent, session: Session, tell: Callable[[ContentPart], None]) -> ContentRead:
    """The last bytes of a file. `tell` gets those before them, part by part.

    Raises:
        Trouble: FAILED also for a file that is too large.
    """
    url = session.address(job.repo_id, job.path, job.sha, job.repo_type)
    told, body = 0, bytearray()
    with session.stream(url) as response:
        for chunk in response.iter_bytes():
            body += chunk
            if told + len(body) > job.max_bytes:
                raise Trouble(Kind.FAILED, f"the file has more than {job.max_bytes} bytes")
            if len(body) >= PART_BYTES:
                tell(ContentPart(bytes(body)))
                told += len(body)
                body.clear()
    return ContentRead(bytes(body))


def _repository(entry: object) -> OfferedPack | None:
    name = entry.get("id") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(name, str):
        return None
    try:
        check_repo_id(name)
    except Refusal:
        return None
    modified = entry.get("lastModified")
    is_time = isinstance(modified, str) and _TIME.fullmatch(modified)
    return OfferedPack(
        name,
        count_of(entry.get("likes")),
        count_of(entry.get("downloads")),
        modified if is_time else None,
        texts_of(entry.get("tags")),
    )
