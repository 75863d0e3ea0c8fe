"""What the routes of vectors answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from steerserve.rules.form import Form
from steerserve.rules.steering.vector import LayerNorm

SourceKind = Literal["local", "huggingface", "upload", "inline", "trained"]


class VectorSource(Form, frozen=True, kw_only=True):
    """Where a vector came from. `keys` are the tensors or fields of the file that became directions, in the order of
    the file."""

    kind: SourceKind
    format: str
    file: str | None = None
    local_path: str | None = None
    repository_id: str | None = None
    revision: str | None = None
    keys: Sequence[str] = ()


class VectorRecord(Form, frozen=True, kw_only=True):
    """A stored vector. `layers` says where it has directions, and how long each is. `operation` is `project` for a
    vector that is projected out and never added. `suggested_value` is the strength that the file recommends.
    `layer_convention` and `layer_offset` were used to read the numbers of its layers. `training` is null for a vector
    that was not trained here."""

    id: str
    name: str
    content_digest: str
    model_hint: str | None
    width: int
    layers: Sequence[LayerNorm]
    operation: Literal["add", "project"]
    suggested_value: float | None
    source: VectorSource
    layer_convention: str
    layer_offset: int
    warnings: Sequence[str]
    training: dict[str, Any] | None
    created_at: datetime


class VectorList(Form, frozen=True):
    """A page of the vectors, and how many there are in all."""

    vectors: list[VectorRecord]
    total: int


class StoredDirection(Form, frozen=True):
    """One direction. `data` is base64 of its numbers as float32, little-endian."""

    layer: int
    site: str
    dtype: Literal["float32"]
    shape: list[int]
    data: str


class VectorDocument(Form, frozen=True, kw_only=True):
    """A vector as a JSON document, which can be imported again as a file."""

    kind: Literal["steerserve.vector"]
    version: int
    name: str
    operation: Literal["project"] | UnsetType = UNSET
    suggested_value: float | UnsetType = UNSET
    model_hint: str | UnsetType = UNSET
    directions: list[StoredDirection]


class DeletedVector(Form, frozen=True):
    """The vector that was deleted."""

    vector_id: str


class NearFeature(Form, frozen=True, kw_only=True):
    """A feature whose decoder row lies near a direction of the vector: that of `layer` and `site`. `sae_layer` and
    `sae_site` say where the SAE is attached, which may be elsewhere."""

    layer: int
    site: str
    sae_id: str
    sae_layer: int
    sae_site: str
    feature_idx: int
    label: str | None
    cosine: float


class NearVector(Form, frozen=True, kw_only=True):
    """Another vector, and the cosine at the layer where the two are nearest. Only directions at one layer and site are
    compared."""

    vector_id: str
    name: str
    layer: int
    site: str
    cosine: float


class VectorNeighbours(Form, frozen=True):
    """The nearest features of the attached SAEs, and the nearest other vectors, the largest cosine first."""

    vector_id: str
    features: list[NearFeature]
    vectors: list[NearVector]
