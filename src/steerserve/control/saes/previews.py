"""Previews the SAEs that a repository of the hub offers, before anything is downloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from steerserve.control.saes.downloads import SaeDownloads
from steerserve.errors import Refusal
from steerserve.hub.client import FileHeader
from steerserve.hub.described import Repository
from steerserve.rules.models.precision import StoredTensor
from steerserve.rules.models.repository import RepoFile
from steerserve.rules.saes import shapes as sae_shapes
from steerserve.rules.saes import units as sae_units
from steerserve.rules.saes.shapes import Width
from steerserve.rules.saes.units import Unit

WHOLE_ONLY = "this format tells its tensors only when it is downloaded; the sizes are the hub's"


@dataclass(frozen=True, slots=True)
class SaeQuery:
    """Asks for a page of a repository's SAEs; `limit` None means all of them. If `file_path` is given, it asks for that
    one SAE and its tensors. The token is used for this preview and not kept."""

    repo_id: str
    revision: str | None = None
    file_path: str | None = None
    layer: int | None = None
    width: str | None = None
    site: str | None = None
    query: str | None = None
    limit: int | None = None
    offset: int = 0
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UnitHeader:
    """The facts from the header of one unit. `tensors` is None if the unit's format has no header that can be read
    before the download. `width` is None if the tensors are not those of an SAE. `note` gives the reason."""

    tensors: tuple[StoredTensor, ...] | None
    width: Width | None
    note: str | None


@dataclass(frozen=True, slots=True)
class SaePreview:
    """`total_units` counts the units of the repository, `matched` those that fit the query, and `page` has the page
    that was asked for. `others` are the files that belong to no SAE. `header` is set if `file_path` named a unit."""

    repository: Repository
    page: tuple[Unit, ...]
    matched: int
    total_units: int
    others: tuple[RepoFile, ...]
    header: UnitHeader | None = None

    @property
    def model_name(self) -> str | None:
        """The model that the SAEs were trained on, as the repository names it."""
        return sae_units.model_of(self.repository.tags, self.repository.config)


async def preview_saes(downloads: SaeDownloads, query: SaeQuery) -> SaePreview:
    """The preview of a repository.

    Raises:
        Refusal: what `SaeDownloads.describe` raises; VALIDATION_ERROR for a `file_path` that names no SAE.
    """
    listed, listing = await downloads.describe(query.repo_id, query.revision, query.token)
    total, others = len(listing.units), listing.others
    if query.file_path is not None:
        unit = await asyncio.to_thread(listing.find, query.file_path)
        header = await downloads.header(listed.repo_id, listed.sha, unit, query.token)
        return SaePreview(listed, (unit,), 1, total, others, _header(header))
    matched = await asyncio.to_thread(_matching, listing.units, query)
    end = None if query.limit is None else query.offset + query.limit
    return SaePreview(listed, matched[query.offset : end], len(matched), total, others)


def _matching(units: Sequence[Unit], query: SaeQuery) -> tuple[Unit, ...]:
    return tuple(
        sae_units.select(
            units, layer=query.layer, width=query.width, site=query.site, query=query.query
        )
    )


def _header(header: FileHeader | None) -> UnitHeader:
    if header is None:
        return UnitHeader(None, None, WHOLE_ONLY)
    try:
        return UnitHeader(header.tensors, sae_shapes.width_of(header.tensors), None)
    except Refusal as refusal:
        return UnitHeader(header.tensors, None, refusal.message)
