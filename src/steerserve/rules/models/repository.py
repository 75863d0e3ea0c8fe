"""Repositories of a model hub: checks their names and listings, and selects the files that a checkpoint needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from steerserve.errors import Refusal
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.text import name_fault

RepoType = Literal["model", "dataset", "space"]
"""The kinds of repositories of a hub. Each kind has names of its own."""

REPO_ID_MAXIMUM = 255
REVISION_MAXIMUM = 100
PATH_BYTES = 1000
SEGMENT_BYTES = 255
FOLDERS_DEEP = 32
SIZE_LIMIT = 1 << 63
_SHOWN = 80

_REPO_ID = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_-]*/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REVISION = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

_SETTINGS = re.compile(
    r"(?:config|generation_config|(?:.*_)?tokenizer(?:_config)?|tekken|vocab|special_tokens_map|added_tokens"
    r"|(?:pre)?processor_config|chat_template|quantize_config|quantization_config|hf_quant_config)\.json"
    r"|(?:vocab|merges)\.(?:txt|bpe)|[^/]+\.model|[^/]+\.tiktoken"
    r"|(?:additional_chat_templates/)?[^/]+\.jinja"
)
_SAFE = re.compile(r"model(?:-\d+-of-\d+)?\.safetensors")
_SAFE_INDEX = "model.safetensors.index.json"
_PICKLED = re.compile(r"pytorch_model(?:-\d+-of-\d+)?\.bin")
_PICKLED_INDEX = "pytorch_model.bin.index.json"
_CODE = re.compile(r"[^/]+\.py")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository: its path, its size in bytes, and the digest of its content if the hub lists one. A digest
    of 64 hex digits is a SHA-256; one of 40 is the SHA-1 of a git blob."""

    path: str
    size: int | None
    digest: str | None = None


def check_repo_id(repo_id: str, param: str = "repo_id") -> str:
    """Check that a name is `owner/name`, or only `name`, which the oldest models have.

    Raises:
        Refusal: VALIDATION_ERROR naming `param`.
    """
    is_odd = any(part in repo_id for part in ("..", "--")) or repo_id.endswith((".git", ".", "-"))
    if len(repo_id) > REPO_ID_MAXIMUM or is_odd or not _REPO_ID.fullmatch(repo_id):
        why = f"{param} must look like owner/name, as the hub writes it"
        raise refuse_value(["body", param], why, param=param)
    return repo_id


def check_revision(revision: str) -> str:
    """Check that a revision may be a branch, a tag or a commit.

    Raises:
        Refusal: VALIDATION_ERROR naming `revision`.
    """
    is_odd = any(part in revision for part in ("..", "//")) or revision.endswith("/")
    if len(revision) > REVISION_MAXIMUM or is_odd or not _REVISION.fullmatch(revision):
        why = "revision must be a branch, a tag or a commit of the repository"
        raise refuse_value(["body", "revision"], why, param="revision")
    return revision


def is_commit(sha: str) -> bool:
    return _COMMIT.fullmatch(sha) is not None


def check_paths(files: Iterable[RepoFile]) -> None:
    """Refuse a listing with a path that is not a plain file inside the repository.

    Raises:
        Refusal: DOWNLOAD_FAILED naming the path.
    """
    paths: set[str] = set()
    folders: set[str] = set()
    for file in files:
        why = _fault(file)
        if not why and file.path in paths:
            why = "is listed twice"
        if why:
            raise _hostile(file.path, why)
        paths.add(file.path)
        folder = file.path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    for path in sorted(paths & folders):
        raise _hostile(path, "is listed as a file and as a folder")


def has_weights(files: Sequence[RepoFile]) -> bool:
    """Whether the repository holds a checkpoint."""
    return any(_SAFE.fullmatch(file.path) or _PICKLED.fullmatch(file.path) for file in files)


def checkpoint_files(files: Sequence[RepoFile], *, trust_remote_code: bool) -> tuple[RepoFile, ...]:
    """The files that are needed to load a checkpoint, in the listing's order. Weights are taken in one format,
    safetensors if there are any, else pickles. Python files are only taken if the operator trusts the repository's
    code.

    Raises:
        Refusal: DOWNLOAD_FAILED when the repository has no weights.
    """
    safe = any(_SAFE.fullmatch(file.path) for file in files)
    weights, index = (_SAFE, _SAFE_INDEX) if safe else (_PICKLED, _PICKLED_INDEX)
    if not any(weights.fullmatch(file.path) for file in files):
        raise _no_weights(files)
    wanted: list[Callable[[str], object]] = [weights.fullmatch, _SETTINGS.fullmatch, index.__eq__]
    if trust_remote_code:
        wanted.append(_CODE.fullmatch)
    return tuple(file for file in files if any(wants(file.path) for wants in wanted))


def _no_weights(files: Iterable[RepoFile]) -> Refusal:
    if any(file.path.endswith(".gguf") for file in files):
        return Refusal(
            "DOWNLOAD_FAILED",
            "the repository has no checkpoint weights, but GGUF files: name one of its labels in gguf_label",
        )
    return Refusal("DOWNLOAD_FAILED", "the repository has no weights that can be loaded")


def _fault(file: RepoFile) -> str | None:
    """What is wrong with one entry of a listing; None if nothing is."""
    path = file.path
    if name_fault(path) is not None:
        return "has characters that no file name should have"
    if not path or len(path.encode()) > PATH_BYTES:
        return "is empty or too long"
    if "\\" in path:
        return "has a backslash"
    segments = path.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        return "leads elsewhere"
    if len(segments) > FOLDERS_DEEP:
        return "lies in too many folders"
    if any(len(segment.encode()) > SEGMENT_BYTES for segment in segments):
        return "has too long a name"
    if file.size is not None and not 0 <= file.size < SIZE_LIMIT:
        return "has an impossible size"
    return None


def _hostile(path: str, why: str) -> Refusal:
    shown = ascii(path[:_SHOWN])
    return Refusal("DOWNLOAD_FAILED", f"the repository's listing is refused: {shown} {why}")
