"""Hands the clusters to the service. They are rows of the profiles."""

from __future__ import annotations

from steerserve.database.tables import profiles
from steerserve.nouns.cluster_packs.noun import CLUSTER_PACKS
from steerserve.nouns.clusters.owner import Clusters
from steerserve.nouns.clusters.routes import router
from steerserve.nouns.noun import Noun

CLUSTERS = Noun(
    name="clusters",
    owner=lambda world: Clusters(
        world.profile_store,
        world.serving,
        world.conductor,
        world.catalog,
        world.edit_parts,
        world.reader,
    ),
    routes=lambda owner, world: router(owner, world.owner(CLUSTER_PACKS), world.serving),
    documents={"clusters": profiles},
    changes={
        ("POST", "/api/clusters/import"): "cluster_import",
        ("POST", "/api/clusters/hub/import"): "cluster_import",
        ("PUT", "/api/clusters/active/intensity"): "cluster_dial",
        ("PUT", "/api/clusters/{cluster_id}/intensity"): "cluster_dial",
        ("POST", "/api/clusters/{cluster_id}/activate"): "cluster_activate",
        ("POST", "/api/clusters/{cluster_id}/deactivate"): "cluster_deactivate",
        ("DELETE", "/api/clusters/{cluster_id}"): "cluster_delete",
    },
)
