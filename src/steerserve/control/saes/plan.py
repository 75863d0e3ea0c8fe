"""Decides what a request for SAEs of the hub means: which units of the repository, which record, and which folder."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steerserve import messages as m
from steerserve.control.saes.records import REPOSITORY, hub_name, sae_id_of
from steerserve.database.catalog import SaeRow
from steerserve.errors import Refusal
from steerserve.files.folder import folder_of
from steerserve.hub.described import Repository
from steerserve.hub.job import Job
from steerserve.rules.saes.shapes import Width
from steerserve.rules.saes.units import TOP, Unit, UnitListing

BEGUN: dict[str, Any] = {"status": "downloading", "error_message": None, "error_code": None}
"""The values of the record of a download that begins."""


@dataclass(frozen=True, slots=True)
class SaeRequest:
    """A client's request for an SAE of the hub. `file_path` None means all SAEs of the repository. The token is used
    for this request and not kept. Two requests are equal if they ask for the same."""

    repo_id: str
    revision: str | None = None
    file_path: str | None = None
    token: str | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at the hub found for a request: the plan, and the width of its only unit, where the header of a file
    tells it."""

    plan: SaePlan
    width: Width | None


@dataclass(frozen=True, slots=True)
class SaePlan:
    """The units that belong to one record. `path` is the path of the only unit, and None for a record of several
    units."""

    path: str | None
    units: tuple[Unit, ...]
    job: Job


def make_plan(
    listed: Repository, listing: UnitListing, request: SaeRequest, cache: Path
) -> SaePlan:
    """The plan of a request, once the hub has listed the repository.

    Raises:
        Refusal: VALIDATION_ERROR for a path that names no SAE, SAE_INCOMPATIBLE for an SAE that can never be attached.
    """
    units, path = choose(listing, request.file_path)
    files = {file.path: file for unit in units for file in unit.files}
    folder = folder_of(cache, listed.repo_id, listed.sha)
    job = Job(listed.repo_id, listed.sha, tuple(files.values()), folder, request.token)
    return SaePlan(path, units, job)


def choose(listing: UnitListing, file_path: str | None) -> tuple[tuple[Unit, ...], str | None]:
    """The units to fetch, and the path of the unit if there is only one. In a repository with one SAE no path need be
    named.

    Raises:
        Refusal: VALIDATION_ERROR for a path that names no SAE, SAE_INCOMPATIBLE for an SAE that can never be attached.
    """
    if file_path is not None:
        unit = listing.find(file_path)
        if unit.reason is not None:
            raise Refusal("SAE_INCOMPATIBLE", f"{unit.path} is {unit.reason}", path=unit.path)
        return (unit,), unit.path
    loadable = listing.loadable
    if not loadable:
        reasons = sorted({unit.reason for unit in listing.units if unit.reason})
        why = f"only {'; '.join(reasons)}" if reasons else "no files of an SAE"
        raise Refusal("SAE_INCOMPATIBLE", f"the repository has {why}", units=len(listing.units))
    return loadable, loadable[0].path if len(loadable) == 1 else None


def id_of(repo_id: str, sha: str, path: str | None) -> str:
    """The id of an SAE of the hub. The same repository, commit and path have the same id on every machine."""
    return sae_id_of("/".join(part for part in (f"{repo_id}@{sha}", path) if part))


def new_look_id() -> str:
    """An id for an SAE whose commit is not known yet. It becomes the SAE's own id, so it derives from nothing that can
    change."""
    return f"sae_{secrets.token_hex(6)}"


def is_look(row: SaeRow) -> bool:
    """Whether the hub has not said yet what the request of a record means."""
    return row.repository_id is not None and row.format == ""


def look_values(request: SaeRequest) -> dict[str, Any]:
    """The values of the record of a request while its repository is being looked at."""
    return {
        "repository_id": request.repo_id,
        "revision": request.revision,
        "file_path": request.file_path,
        "name": hub_name(request.repo_id.rpartition("/")[2], request.file_path)[:255],
        "format": "",
        "architecture": "",
        "dtype": "",
        **BEGUN,
    }


def place_of(plan: SaePlan, unit: Unit) -> Path:
    """The path of a unit on this machine. The unit's path in the repository was checked together with the listing."""
    return plan.job.folder if unit.path == TOP else plan.job.folder / unit.path


def source_of(plan: SaePlan, unit: Unit) -> m.SaeSource:
    """The source from which an engine reads a fetched unit."""
    return m.SaeSource(str(place_of(plan, unit)), hub_name(plan.job.repo_id, unit.path))


def values_of(plan: SaePlan, width: Width | None) -> dict[str, Any]:
    """The values of an SAE's record before the SAE is read. Facts that only the files can tell are empty."""
    unit = plan.units[0] if plan.path is not None else None
    named = unit.hints if unit else None
    return {
        "repository_id": plan.job.repo_id,
        "revision": plan.job.sha,
        "file_path": plan.path,
        "local_path": None,
        "name": hub_name(plan.job.repo_id.rpartition("/")[2], plan.path)[:255],
        "format": unit.format if unit else REPOSITORY,
        "architecture": "",
        "d_in": width.d_in if width else None,
        "d_sae": width.d_sae if width else None,
        "dtype": width.dtype if width else "",
        "hook_name": None,
        "site": named.site if named else None,
        "trained_on": None,
        "trained_layer": named.layer if named else None,
        "average_l0": named.l0 if named and isinstance(named.l0, int) else None,
        "file_size_bytes": sum(u.size_bytes for u in plan.units),
        "claims": None,
        **BEGUN,
    }
