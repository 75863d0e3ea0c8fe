"""Which SAEs a repository of the hub offers, before anything is downloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from steerserve.control.library.sae_downloads import SaeDownloads
from steerserve.errors import Refusal
from steerserve.rules import sae_shapes, sae_units
from steerserve.rules.precision import StoredTensor
from steerserve.rules.sae_units import Unit

OTHERS = 200
"""Files named that belong to no SAE."""

_WHOLE_ONLY = "this format tells its tensors only when it is downloaded; the sizes are the hub's"


@dataclass(frozen=True, slots=True)
class SaeQuery:
    """A page of a repository's SAEs; with `file_path` the one that it names, with its tensors. The token is used and
    dropped."""

    repo_id: str
    revision: str | None
    file_path: str | None
    layer: int | None
    width: str | None
    site: str | None
    query: str | None
    limit: int
    offset: int
    token: str | None = field(default=None, repr=False)


async def of(downloads: SaeDownloads, asked: SaeQuery) -> dict[str, Any]:
    """The preview.

    Raises:
        Refusal: what `SaeDownloads.describe` raises; VALIDATION_ERROR for a `file_path` that names no SAE.
    """
    found, listing = await downloads.describe(asked.repo_id, asked.revision, asked.token)
    if asked.file_path is not None:
        unit = await asyncio.to_thread(listing.find, asked.file_path)
        tensors = await downloads.header(found.repo_id, found.sha, unit, asked.token)
        matched, page = 1, [_entry(unit) | _inside(tensors)]
    else:
        matched, page = await asyncio.to_thread(_page, listing.units, asked)
    return {
        "repository_id": found.repo_id,
        "revision": found.sha,
        "model_id": sae_units.model_of(found.tags, found.config),
        "files": page,
        "total_files": len(found.files),
        "total_units": len(listing.units),
        "matched": matched,
        "total_bytes": sum(file.size or 0 for file in found.files),
        "limit": asked.limit,
        "offset": asked.offset,
        "other_files": [
            {"path": file.path, "size_bytes": file.size} for file in listing.others[:OTHERS]
        ],
        "total_other_files": len(listing.others),
    }


def _page(units: Sequence[Unit], asked: SaeQuery) -> tuple[int, list[dict[str, Any]]]:
    """How many fit what is asked, and the entries of those on the page."""
    fitting = sae_units.select(
        units, layer=asked.layer, width=asked.width, site=asked.site, query=asked.query
    )
    page = fitting[asked.offset : asked.offset + asked.limit]
    return len(fitting), [_entry(unit) for unit in page]


def _entry(unit: Unit) -> dict[str, Any]:
    named = unit.hints
    return {
        "path": unit.path,
        "size_bytes": unit.size_bytes,
        "file_count": len(unit.files),
        "layer": named.layer,
        "width": named.width,
        "l0": named.l0,
        "site": named.site,
        "format": unit.format,
        "is_loadable": unit.reason is None,
        "reason": unit.reason,
    }


def _inside(tensors: Sequence[StoredTensor] | None) -> dict[str, Any]:
    """What the headers of one unit tell."""
    if tensors is None:
        return {"d_in": None, "d_sae": None, "dtype": None, "tensors": None, "note": _WHOLE_ONLY}
    listed = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in tensors]
    try:
        width = sae_shapes.width_of(tensors)
    except Refusal as refusal:
        none = {"d_in": None, "d_sae": None, "dtype": None}
        return none | {"tensors": listed, "note": refusal.message}
    shape = {"d_in": width.d_in, "d_sae": width.d_sae, "dtype": width.dtype}
    return shape | {"tensors": listed, "note": None}
