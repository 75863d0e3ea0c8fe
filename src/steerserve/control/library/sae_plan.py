"""What a request for SAEs of the hub means: which of a repository's units, under which record, to which place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steerserve.control.library.saes import REPOSITORY, hub_name, sae_id_of
from steerserve.engine.wire import messages as m
from steerserve.errors import Refusal
from steerserve.hub.downloads import Job
from steerserve.rules.sae_shapes import Width
from steerserve.rules.sae_units import TOP, Unit, UnitListing


@dataclass(frozen=True, slots=True)
class SaePlan:
    """The units that one record stands for; `path` is that of the only one, None for a record of several."""

    sae_id: str
    path: str | None
    units: tuple[Unit, ...]
    job: Job


def choose(listing: UnitListing, file_path: str | None) -> tuple[tuple[Unit, ...], str | None]:
    """The units that a request means, and the path of the only one: a repository with one SAE is that SAE.

    Raises:
        Refusal: VALIDATION_ERROR for a path that is none, SAE_INCOMPATIBLE for what can never be attached.
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
    return sae_id_of("/".join(part for part in (f"{repo_id}@{sha}", path) if part))


def place_of(plan: SaePlan, unit: Unit) -> Path:
    """Where a unit lies; its path has been checked with the listing."""
    return plan.job.folder if unit.path == TOP else plan.job.folder / unit.path


def source_of(plan: SaePlan, unit: Unit) -> m.SaeSource:
    return m.SaeSource(str(place_of(plan, unit)), hub_name(plan.job.repo_id, unit.path))


def values_of(plan: SaePlan, width: Width | None) -> dict[str, Any]:
    """What is known of an SAE before it is read; what only its files tell is empty."""
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
        "status": "downloading",
        "error_message": None,
    }
