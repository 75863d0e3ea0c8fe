"""The origin of an SAE and of a model: facts that identify them on any server, whatever their ids there.

By these facts an exported profile finds its SAE on another server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steerserve.rules.text import line_fault

LONGEST = 500
"""The most characters of a text that is read from a document."""


@dataclass(frozen=True, slots=True)
class SaeOrigin:
    """The repository, commit and file of an SAE of the hub, or the SHA-256 of an SAE that was registered from disk."""

    repository_id: str | None = None
    revision: str | None = None
    file_path: str | None = None
    content_digest: str | None = None

    def is_same(self, other: SaeOrigin) -> bool:
        """Whether both are known to be one SAE: the same content, or the same file of the same commit."""
        if self.content_digest is not None and self.content_digest == other.content_digest:
            return True
        place = (self.repository_id, self.revision, self.file_path)
        is_known = self.repository_id is not None and self.revision is not None
        return is_known and place == (other.repository_id, other.revision, other.file_path)


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """The name and the repository of a model."""

    name: str | None = None
    repo_id: str | None = None

    def is_called(self, name: str, repo_id: str | None) -> bool:
        """Whether a model with this name and repository is the model of this origin."""
        return name == self.name or (repo_id is not None and repo_id == self.repo_id)


@dataclass(frozen=True, slots=True)
class Origin:
    """The SAE and the model that a profile was made for; each is None where nothing is known of it."""

    sae: SaeOrigin | None = None
    model: ModelOrigin | None = None


def read(document: Mapping[str, object]) -> Origin | None:
    """The origin of the SAE and the model in a document. Values that are too long, or not printable text, are left out.
    None where no value is left."""
    sae = SaeOrigin(**_texts(document, "sae", SaeOrigin.__slots__))
    model = ModelOrigin(**_texts(document, "model", ModelOrigin.__slots__))
    origin = Origin(sae if sae != SaeOrigin() else None, model if model != ModelOrigin() else None)
    return origin if origin != Origin() else None


def _texts(document: Mapping[str, object], part: str, names: tuple[str, ...]) -> dict[str, str]:
    said = document.get(part)
    values = {name: said.get(name) for name in names} if isinstance(said, Mapping) else {}
    return {name: text for name, text in values.items() if isinstance(text, str) and _is_text(text)}


def _is_text(text: str) -> bool:
    return 0 < len(text) <= LONGEST and line_fault(text) is None
