"""What the routes of profiles answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.control.steering.views import Values
from steerserve.rules.form import Form
from steerserve.rules.saes.provenance import ModelOrigin, SaeOrigin


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


@dataclass(frozen=True, slots=True)
class ServingProfile:
    """The active profile as health shows it. `sensing_enabled` says whether an operator wants it to be sensed."""

    id: str
    name: str
    source_kind: str
    intensity: float
    sensing_enabled: bool = False
