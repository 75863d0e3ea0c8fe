"""What the routes of vectors and probes answer beside the records (`nouns/directions/rules.py`)."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.control.saes.example_views import FeatureExample
from steerserve.nouns.directions.rules import ProbeRecord, Training, VectorRecord
from steerserve.rules.form import Form


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
    training: Training | UnsetType = UNSET
    directions: list[StoredDirection]


class ProbeWeights(ProbeRecord, frozen=True, kw_only=True):
    """A stored probe with its weights, in the order of its layers. Its score at a layer is x · weights + bias."""

    weights: list[StoredDirection]


class ProbeList(Form, frozen=True):
    """A page of the probes, and how many there are in all."""

    probes: list[ProbeRecord]
    total: int


class DeletedProbe(Form, frozen=True):
    """The probe that was deleted."""

    probe_id: str


class DeletedVector(Form, frozen=True):
    """The vector that was deleted."""

    vector_id: str


class NearFeature(Form, frozen=True, kw_only=True):
    """A feature whose decoder row lies near a direction of the vector: that of `layer` and `site`. `sae_layer` and
    `sae_site` say where the SAE is attached, which may be elsewhere. `example` is the strongest one in the newest
    corpus, where examples are asked for; null where there is none."""

    layer: int
    site: str
    sae_id: str
    sae_layer: int
    sae_site: str
    feature_idx: int
    label: str | None
    cosine: float
    example: FeatureExample | UnsetType | None = UNSET


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
