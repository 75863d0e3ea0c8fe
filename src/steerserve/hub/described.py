"""The hub's description of a repository, checked."""

from __future__ import annotations

from dataclasses import dataclass

from steerserve.hub.wire import Described
from steerserve.rules.models.repository import RepoFile, check_paths

ARCHITECTURES = 8
TEXT_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class Repository:
    """The hub's description of a repository at one commit (`sha`). `config` is the content of config.json.
    `parameters_by_dtype` counts the elements in the safetensors files. Unknown values are None."""

    repo_id: str
    sha: str
    revision: str | None
    is_gated: bool
    is_private: bool
    files: tuple[RepoFile, ...]
    config: dict[str, object] | None
    downloads: int | None
    likes: int | None
    tags: tuple[str, ...]
    pipeline_tag: str | None
    license: str | None
    language: str | None
    parameters: int | None
    parameters_by_dtype: dict[str, int]
    gguf_architecture: str | None
    gguf_context_length: int | None
    gguf_parameters: int | None

    @property
    def architectures(self) -> tuple[str, ...]:
        listed = (self.config or {}).get("architectures")
        named = map(_text, listed[:ARCHITECTURES]) if isinstance(listed, list) else ()
        return tuple(name for name in named if name)

    @property
    def model_type(self) -> str | None:
        return _text((self.config or {}).get("model_type"))

    @property
    def requires_trust_remote_code(self) -> bool:
        return bool((self.config or {}).get("auto_map"))


def repository(described: Described, revision: str | None) -> Repository:
    """Raises:
    Refusal: DOWNLOAD_FAILED for a hostile listing.
    """
    files = tuple(RepoFile(file.path, file.size, file.digest) for file in described.files)
    check_paths(files)
    facts = {
        name: getattr(described, name)
        for name in described.__struct_fields__
        if name not in ("files", "tags")
    }
    return Repository(revision=revision, files=files, tags=tuple(described.tags), **facts)


def _text(value: object) -> str | None:
    """The first printable characters of a text; None if it has none."""
    shown = value[:TEXT_CHARACTERS] if isinstance(value, str) else ""
    return "".join(c for c in shown if c.isprintable()) or None
