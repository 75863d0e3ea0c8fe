"""The hub's description of a repository, checked."""

from __future__ import annotations

import msgspec

from steerserve.rules.models.repository import RepoFile, check_paths

ARCHITECTURES = 8
"""The most names of architectures that are kept of a configuration."""
NAME_CHARACTERS = 255
"""The most characters of the name of an architecture."""
TEXT_CHARACTERS = 200
"""The most characters of any other text that is kept."""
TEXTS_MAXIMUM = 200
"""The most texts of a list, and the most counts, that are kept."""


class Repository(msgspec.Struct, frozen=True, kw_only=True, tag="described"):
    """The hub's description of a repository at one commit (`sha`). `config` is the content of config.json.
    `parameters_by_dtype` counts the elements in the safetensors files. Unknown values are None. `revision` is what was
    asked for."""

    repo_id: str
    sha: str
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
    revision: str | None = None

    @property
    def architectures(self) -> tuple[str, ...]:
        listed = (self.config or {}).get("architectures")
        named = listed[:ARCHITECTURES] if isinstance(listed, list) else ()
        return tuple(name for one in named if (name := text_of(one, NAME_CHARACTERS)))

    @property
    def model_type(self) -> str | None:
        return text_of((self.config or {}).get("model_type"), NAME_CHARACTERS)

    @property
    def requires_trust_remote_code(self) -> bool:
        return bool((self.config or {}).get("auto_map"))


def checked(described: Repository, revision: str | None) -> Repository:
    """What the hub said about the revision that was asked for.

    Raises:
        Refusal: DOWNLOAD_FAILED for a hostile listing.
    """
    check_paths(described.files)
    return msgspec.structs.replace(described, revision=revision)


def count_of(value: object) -> int | None:
    """A count that the hub says; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def text_of(value: object, most: int = TEXT_CHARACTERS) -> str | None:
    """The first printable characters of a text; None if it has none."""
    shown = value[:most] if isinstance(value, str) else ""
    return "".join(c for c in shown if c.isprintable()) or None


def texts_of(value: object) -> list[str]:
    """The texts of a list that have printable characters."""
    listed = value[:TEXTS_MAXIMUM] if isinstance(value, list) else []
    return [text for text in map(text_of, listed) if text]
