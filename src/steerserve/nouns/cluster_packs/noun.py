"""Hands the packs of clusters on the hub to the service. The routes of clusters answer for them."""

from __future__ import annotations

from steerserve.nouns.cluster_packs.owner import ClusterPacks
from steerserve.nouns.noun import Noun

CLUSTER_PACKS = Noun(
    name="cluster_packs",
    owner=lambda world: ClusterPacks(
        world.settings,
        world.cluster_hub,
        world.clusters,
        world.reader,
        world.seconds,
    ),
)
