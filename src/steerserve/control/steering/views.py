"""What the routes of steering, of profiles and of clusters answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.rules.form import Form
from steerserve.rules.saes.provenance import ModelOrigin, SaeOrigin


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


Values = dict[str, float]
"""Feature index, as a text -> value."""


class SteeringState(Form, frozen=True):
    """The live values of one SAE. `enabled` is the one switch of steering. `others` has the values of the other SAEs by
    `<sae_id>@<layer>`, and is left out where no other SAE has values. After values were deleted, `warnings` say which
    edits still steer their features; it is left out where none do."""

    enabled: bool
    values: Values
    others: dict[str, Values] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class LiveInterventions(Form, frozen=True):
    """The live interventions: the edits as they were sent, and the epoch of the live steering. `enabled` is the one
    switch of steering."""

    edits: list[dict[str, object]]
    mode: Literal["add", "replace"]
    preserve_norm: bool
    enabled: bool
    epoch: int


class ProfileRecord(Form, frozen=True, kw_only=True):
    """A saved profile. A cluster is a profile of the kind `cluster`. `warnings` say which values are clamped where the
    profile is applied, and for a cluster what its own list says."""

    id: str
    name: str
    description: str | None
    # what the values were made for
    model_id: str | None
    sae_id: str | None
    layer: int | None
    # the values at intensity 1
    steering: Values
    intensity: float
    source_kind: Literal["manual", "cluster"]
    is_active: bool
    created_at: datetime
    updated_at: datetime
    edits: list[dict[str, object]] | UnsetType = UNSET
    warnings: Sequence[str]


class ProfileList(Form, frozen=True):
    """A page of the saved profiles, how many there are in all, and the id of the active one."""

    profiles: list[ProfileRecord]
    total: int
    active_profile_id: str | None


class ImportedProfileRecord(ProfileRecord, frozen=True, kw_only=True):
    """The profile that was imported. Its `warnings` also say what of the document could not be used."""


class ProfileExport(Form, frozen=True, kw_only=True):
    """The document of a profile. `sae` and `model` identify the SAE and the model on another server, where their ids
    differ; each is left out where nothing is known of it."""

    version: str
    name: str
    description: str | None
    model_id: str | None
    sae_id: str | None
    layer: int | None
    steering: Values
    intensity: float
    created_at: datetime
    updated_at: datetime
    sae: SaeOrigin | UnsetType = UNSET
    model: ModelOrigin | UnsetType = UNSET
    edits: list[dict[str, object]] | UnsetType = UNSET


class DeletedProfile(Form, frozen=True):
    """The profile that was deleted, and whether it was active."""

    profile_id: str
    was_active: bool


class ActivatedProfile(Form, frozen=True, kw_only=True):
    """The outcome of an activation. `feature_count` counts the features that the profile steers now. `sensing_armed` is
    left out for a profile that is no cluster."""

    profile_id: str
    applied_steering: bool
    feature_count: int
    warnings: Sequence[str]
    sensing_armed: bool | UnsetType = UNSET


class DeactivatedProfile(Form, frozen=True):
    """The profile that was ended, and whether its values were cleared."""

    profile_id: str
    cleared_steering: bool


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


@dataclass(frozen=True, slots=True)
class PackedDefinition:
    """One definition of a pack. Facts that the pack does not tell are None."""

    file: str
    name: str | None = None
    member_count: int | None = None
    base_model: str | None = None


@dataclass(frozen=True, slots=True)
class ServingProfile:
    """The active profile as health shows it. `sensing_enabled` says whether an operator wants it to be sensed."""

    id: str
    name: str
    source_kind: str
    intensity: float
    sensing_enabled: bool = False
