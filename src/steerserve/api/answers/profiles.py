"""What the routes of profiles and of clusters answer."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from steerserve.api.answers import Instant
from steerserve.api.answers.steering import Values
from steerserve.control.steering.clusters import HubReference, ImportedItem
from steerserve.rules.saes.provenance import ModelOrigin, SaeOrigin


class SavedProfile(TypedDict):
    """The fields that a profile and its exported document share. `steering` has the values at intensity 1. `model_id`,
    `sae_id` and `layer` say what the values were made for."""

    name: str
    description: str | None
    model_id: str | None
    sae_id: str | None
    layer: int | None
    steering: Values
    intensity: float
    created_at: Instant
    updated_at: Instant


class ProfileRecord(SavedProfile):
    """A saved profile. A cluster is a profile of the kind `cluster`."""

    id: str
    source_kind: Literal["manual", "cluster"]
    is_active: bool


class ProfileList(TypedDict):
    """A page of the saved profiles, how many there are in all, and the id of the active one."""

    profiles: list[ProfileRecord]
    total: int
    active_profile_id: str | None


class ImportedProfileRecord(ProfileRecord):
    """The profile that was imported. `warnings` say what of the document could not be used."""

    warnings: list[str]


class ProfileExport(SavedProfile):
    """The document of a profile. `sae` and `model` identify the SAE and the model on another server, where their ids
    differ; each is left out where nothing is known of it."""

    version: str
    sae: NotRequired[SaeOrigin]
    model: NotRequired[ModelOrigin]


class DeletedProfile(TypedDict):
    """The profile that was deleted, and whether it was active."""

    profile_id: str
    was_active: bool


class ActivatedProfile(TypedDict):
    """The outcome of an activation. `feature_count` counts the features that the profile steers now. `sensing_armed` is
    left out for a profile that is no cluster."""

    profile_id: str
    applied_steering: bool
    feature_count: int
    warnings: list[str]
    sensing_armed: NotRequired[bool]


class DeactivatedProfile(TypedDict):
    """The profile that was ended, and whether its values were cleared."""

    profile_id: str
    cleared_steering: bool


class ClusterSummary(TypedDict):
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
    warnings: list[str]
    hub_ref: HubReference | None
    intensity_range: tuple[float, float] | None
    dial_range: tuple[float, float]
    budget_b: float | None
    formula_id: str | None
    created_at: Instant
    updated_at: Instant


class ClusterList(TypedDict):
    """A page of the clusters, how many there are in all, and the id of the active one."""

    clusters: list[ClusterSummary]
    total: int
    active_cluster_id: str | None


class ClusterImport(TypedDict):
    """The outcome of an import, with one result for each definition of the document."""

    results: list[ImportedItem]
    imported: int
    blocked: int
    errors: int


class ActivatedCluster(TypedDict):
    """The outcome of the activation of a cluster. `sensing_armed` says whether its firings are recorded now."""

    profile_id: str
    applied_steering: bool
    feature_count: int
    sensing_armed: bool
    warnings: list[str]


class OfferedPack(TypedDict):
    """A public pack of clusters on the model hub. `last_modified` is as the hub writes it."""

    repo_id: str
    likes: int | None
    downloads: int | None
    last_modified: str | None
    tags: list[str]


ClusterDocument = dict[str, Any]
"""The document of a cluster, as it was imported, with all of its keys."""
