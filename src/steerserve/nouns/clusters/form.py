"""What the routes of clusters answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from steerserve.rules.form import Form


@dataclass(frozen=True, slots=True)
class HubReference:
    """The file of the hub that a document came from."""

    repo_id: str
    revision: str | None
    path: str


@dataclass(frozen=True, slots=True)
class ImportedItem:
    """The outcome of one definition. `imported_unbound` means that the cluster is saved and bound to no SAE."""

    name: str
    status: Literal["imported", "imported_unbound", "error"]
    profile_id: str | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class IntensityReport:
    """The new intensity of a cluster. `reapplied` says whether the live values have it."""

    profile_id: str
    intensity: float
    reapplied: bool


class ClusterSummary(Form, frozen=True, kw_only=True):
    """A cluster. `members` has the first 20 of its `member_count` features as index, label, and value at intensity 1.
    `bound` says whether it is bound to a registered SAE. `intensity_range` is the range of the dial that the document
    declares, from the lowest to the highest. `dial_range` is the range that the dial has: the declared one, or the
    configured one."""

    id: str
    name: str
    description: str | None
    model_id: str | None
    sae_id: str | None
    layer: int | None
    is_active: bool
    intensity: float
    sensing_enabled: bool
    member_count: int
    members: list[tuple[int, str | None, float]]
    display_token: str | None
    bound: bool
    warnings: Sequence[str]
    hub_ref: HubReference | None
    intensity_range: tuple[float, float] | None
    dial_range: tuple[float, float]
    budget_b: float | None
    formula_id: str | None
    created_at: datetime
    updated_at: datetime


class ClusterList(Form, frozen=True):
    """A page of the clusters, how many there are in all, and the id of the active one."""

    clusters: list[ClusterSummary]
    total: int
    active_cluster_id: str | None


class ClusterImport(Form, frozen=True):
    """The outcome of an import, with one result for each definition of the document."""

    results: Sequence[ImportedItem]
    imported: int
    blocked: int
    errors: int


class ActivatedCluster(Form, frozen=True, kw_only=True):
    """The outcome of the activation of a cluster. `sensing_armed` says whether its firings are recorded now."""

    profile_id: str
    applied_steering: bool
    feature_count: int
    sensing_armed: bool
    warnings: Sequence[str]
