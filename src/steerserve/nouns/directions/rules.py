"""Stored vectors and probes: their records, as the database keeps them and the routes answer them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from steerserve.rules.form import Form
from steerserve.rules.steering.levers import Measured
from steerserve.rules.steering.probe import ProbeLayer
from steerserve.rules.steering.vector import LayerNorm, Operation

SourceKind = Literal["local", "huggingface", "upload", "inline", "trained"]


class VectorSource(Form, frozen=True, kw_only=True):
    """Where a vector or a probe came from. `keys` are the tensors or fields of the file that became directions, in the
    order of the file."""

    kind: SourceKind
    format: str
    file: str | None = None
    local_path: str | None = None
    repository_id: str | None = None
    revision: str | None = None
    keys: tuple[str, ...] = ()


class TextIndex(Form, frozen=True):
    """The position of a text that is read; a negative one counts from the end."""

    index: int


ReadPosition = Literal["last", "mean", "mean_completion"] | TextIndex


class TrainedLayer(Form, frozen=True, kw_only=True):
    """How well the direction of one layer tells held-out positives from held-out negatives.

    `auc_held_out` is the probability that a positive has the larger projection, with its 95 % interval; null where a
    group has too few held-out texts. `auc_shuffled` is the mean over several directions trained on shuffled labels, and
    `auc_shuffled_most` the largest of them, null in older records, where one was trained. `auc_random` is the mean over
    random directions that point to the positives. `separation` is the difference of the means of the held-out
    projections in units of their pooled standard deviation. `norm` is the length of the direction, and
    `norm_over_residual` the same over the mean length of what was read. `split_cosine` is the cosine between the
    directions of two halves of the training texts."""

    layer: int
    auc_held_out: float | None
    auc_low: float | None
    auc_high: float | None
    separation: float | None
    norm: float
    norm_over_residual: float
    split_cosine: float | None
    auc_shuffled: float | None
    auc_random: float | None
    auc_shuffled_most: float | None = None


class FeatureNeighbour(Form, frozen=True):
    """A feature of an attached SAE whose decoder row is near the direction of the best layer."""

    sae_id: str
    index: int
    cosine: float


class Training(Form, frozen=True, kw_only=True):
    """How a vector or a probe was trained. `pairs` is null where the texts were no pairs. `held_out` counts texts.
    `best_layer` has the largest held-out AUC, and of equal ones the largest separation; without held-out texts it is
    the layer with the largest `split_cosine`. An earlier version left it null there. Edits of the vector that name no
    layers act at it where no measurement found a better place. `equal_layers` are those whose AUC is not below the
    interval of that of `best_layer`, which is among them."""

    method: Literal["mean_difference", "pca", "logistic"]
    read: ReadPosition
    site: str
    special_tokens: bool
    pairs: int | None
    positives: int
    negatives: int
    held_out: int
    holdout: float
    seed: int
    layers: list[TrainedLayer]
    best_layer: int | None
    equal_layers: Sequence[int] = ()
    neighbours: list[FeatureNeighbour]


class VectorRecord(Form, frozen=True, kw_only=True):
    """A stored vector. `layers` says where it has directions, and how long each is. `operation` is `project` for a
    vector that is projected out and never added. `suggested_value` is the strength that the file recommends.
    `layer_convention` and `layer_offset` were used to read the numbers of its layers. `training` is null for a vector
    that was not trained here. `measured` says what the vector does when it is added at one layer; null where that is
    not known, and `not_measured` says why."""

    id: str
    name: str
    content_digest: str
    model_hint: str | None
    width: int
    layers: Sequence[LayerNorm]
    operation: Operation
    suggested_value: float | None
    source: VectorSource
    layer_convention: str
    layer_offset: int
    warnings: Sequence[str]
    training: Training | None
    measured: Measured | None
    not_measured: str | None
    created_at: datetime

    @property
    def default_layers(self) -> tuple[int, ...] | None:
        """The layers at which an edit acts that names none: the best one of a trained vector, and None, which means
        all, of another."""
        if self.training is None:
            return None
        if self.measured is not None and self.measured.best is not None:
            return (self.measured.best.layer,)
        return None if self.training.best_layer is None else (self.training.best_layer,)


class ProbeRecord(Form, frozen=True, kw_only=True):
    """A stored probe. `layers` says where it reads, how long its weights are there, and its biases.
    `layer_convention` and `layer_offset` were used to read the numbers of its layers. `training` is null for a probe of
    another tool."""

    id: str
    name: str
    content_digest: str
    model_hint: str | None
    width: int
    layers: Sequence[ProbeLayer]
    source: VectorSource
    layer_convention: str
    layer_offset: int
    warnings: Sequence[str]
    training: Training | None
    created_at: datetime
