"""What the routes of captures answer."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from steerserve.rules.form import Form

CaptureState = Literal["reading", "stopped", "done"]
SourceKind = Literal["texts", "messages", "corpus_id", "local_path", "repo_id"]


class CaptureSource(Form, frozen=True, kw_only=True):
    """Where the texts come from: the field of the request that names them. The fields that it does not need are
    null."""

    kind: SourceKind
    corpus_id: str | None = None
    local_path: str | None = None
    repo_id: str | None = None
    revision: str | None = None
    file_path: str | None = None
    text_field: str = "text"


class CapturedSite(Form, frozen=True, kw_only=True):
    """A site at a layer. `tensor` is its name in the shards. `norm` is the mean length of the rows; it is null until
    there are rows."""

    tensor: str
    site: str
    layer: int
    heads: list[int] | None
    width: int
    module_path: str
    norm: float | None


class CaptureRecord(Form, frozen=True, kw_only=True):
    """One capture. `texts`, `tokens` and `rows` were read and written so far, with the text that was begun last. A
    capture that is `stopped` goes on when it is posted again. `job_id` is null unless a job reads it now."""

    id: str
    name: str
    state: CaptureState
    source: CaptureSource
    model: str
    model_digest: str | None
    steering_state: str | None
    texts_digest: str | None
    sites: list[CapturedSite]
    positions: object
    dtype: Literal["float32", "float16", "bfloat16"]
    max_tokens: int
    context: int
    shard_mb: int
    texts: int
    tokens: int
    rows: int
    stored_bytes: int
    job_id: str | None
    created_at: datetime
    finished_at: datetime | None


class CaptureFile(Form, frozen=True):
    """A file of a capture, and its size in bytes."""

    name: str
    bytes: int


class CaptureDetails(CaptureRecord, frozen=True, kw_only=True):
    """One capture with its files. A shard is listed once it is whole."""

    files: list[CaptureFile]


class CaptureList(Form, frozen=True):
    """All captures, oldest first, with what they take on the disk and the limit."""

    captures: list[CaptureRecord]
    stored_bytes: int
    limit_mb: int


class CapturedTexts(Form, frozen=True):
    """The capture that a job has made."""

    capture_id: str
    texts: int
    tokens: int
    rows: int
    stored_bytes: int


class DeletedCapture(Form, frozen=True):
    """The capture that was deleted."""

    capture_id: str
