"""Turns the claims of an SAE checkpoint into the values of a record, and a record into the source that an engine
reads."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from steerserve import messages as m
from steerserve.database.catalog import SaeRow
from steerserve.rules.saes.provenance import SaeOrigin
from steerserve.rules.saes.units import TOP

REPOSITORY = "repository"
"""The format of a record that stands for several SAEs, each with a record of its own."""


def sae_id_of(source: str) -> str:
    """The id of an SAE of the hub. The same source always gets the same id."""
    return "sae_" + hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


def content_id_of(digest: str) -> str:
    """The id of an SAE of this machine. Equal content has the same id in every folder and on every machine."""
    return f"sae_{digest[:12]}"


def hub_name(repository_id: str, file_path: str | None) -> str:
    """The path of an SAE with the name of its repository before it: `owner/name/path/in/repository`."""
    return "/".join(part for part in (repository_id, file_path) if part and part != TOP)


def source_of(row: SaeRow, overrides: m.Overrides | None = None) -> m.SaeSource:
    """Where an engine finds a registered SAE."""
    path = row.local_path or ""
    name = hub_name(row.repository_id, row.file_path) if row.repository_id else path
    return m.SaeSource(path, name, overrides or m.Overrides())


def origin_of(row: SaeRow) -> SaeOrigin:
    """What identifies a registered SAE whatever its id."""
    return SaeOrigin(row.repository_id, row.revision, row.file_path, row.content_digest)


def claimed(claims: m.Claims) -> dict[str, Any]:
    """The claims of a checkpoint as values of a record."""
    return {
        "format": claims.format,
        "architecture": claims.architecture,
        "d_in": claims.d_in,
        "d_sae": claims.d_sae,
        "dtype": claims.dtype,
        "hook_name": _short(claims.hook_name),
        "site": claims.site,
        "trained_on": _short(claims.model_name),
        "trained_layer": claims.layer,
        "average_l0": claims.l0,
        "file_size_bytes": claims.size_bytes,
        "claims": {
            name: msgspec.to_builtins(getattr(claims, name)) for name in claims.__struct_fields__
        },
    }


def claims_of(row: SaeRow) -> m.Claims | None:
    """The claims of the checkpoint, as read when the SAE was registered; None if nothing has read the checkpoint."""
    if row.claims is None:
        return None
    known = m.Claims.__struct_fields__
    return m.Claims(**{name: value for name, value in row.claims.items() if name in known})


def _short(text: str | None) -> str | None:
    """The beginning of a checkpoint's text, as long as a column can hold."""
    return text[:255] if text is not None else None
