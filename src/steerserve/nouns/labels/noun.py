"""Hands the labels of features to the service. The routes of features answer for them."""

from __future__ import annotations

from steerserve.database.tables import feature_labels
from steerserve.nouns.labels.store import Labels
from steerserve.nouns.noun import Noun

LABELS = Noun(
    name="labels",
    owner=lambda world: Labels(world.database, world.room),
    tables=(feature_labels,),
)
