"""/api/clusters: steering documents of a studio. One of them serves at a time, behind one dial for its intensity."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from msgspec import structs
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from steerserve.api.answers import Answer, RefusedAnswer
from steerserve.api.envelope import (
    PageLimit,
    PageOffset,
    RequestBody,
    import_body,
    stored,
    success,
)
from steerserve.control.metrics import note_object
from steerserve.control.steering.serving import Serving
from steerserve.nouns.cluster_packs.form import PackedDefinition
from steerserve.nouns.cluster_packs.owner import ClusterPacks
from steerserve.nouns.clusters import rules
from steerserve.nouns.clusters.form import (
    ActivatedCluster,
    ClusterImport,
    ClusterList,
    ClusterSummary,
    ImportedItem,
    IntensityReport,
)
from steerserve.nouns.clusters.owner import Clusters, ImportOptions, OnConflict
from steerserve.nouns.clusters.rules import OfferedPack
from steerserve.nouns.profiles.form import DeactivatedProfile, DeletedProfile
from steerserve.rules.bounds import BUNDLE_DEFINITIONS, PAGE_ROWS
from steerserve.rules.steering.intensity import INTENSITY_MAXIMUM, Range, find_limits

MEMBERS_SHOWN = 20
ClusterDocument = dict[str, Any]
"""The document of a cluster, as it was imported, with all of its keys."""


class ClusterIntensity(RequestBody):
    """The intensity of a cluster. With `reapply: false` it is saved, and the live values stay as they are."""

    intensity: Annotated[float, Field(ge=0.0, le=INTENSITY_MAXIMUM)]
    reapply: bool = True


class HubImport(RequestBody):
    """One file of a repository of the hub. It is fetched without a token."""

    repo_id: Annotated[str, Field(min_length=3, max_length=200)]
    filename: Annotated[str, Field(min_length=1, max_length=300)]
    revision: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    activate: bool = False
    on_conflict: OnConflict = "rename"


_MEMBER = {
    "type": "object",
    "required": ["feature_idx", "strength"],
    "properties": {
        "feature_idx": {"type": "integer", "minimum": 0},
        "strength": {"type": "number", "minimum": -300, "maximum": 300},
        "sign": {"enum": [1, -1, None]},
        "label": {"type": ["string", "null"]},
        "max_activation": {"type": ["number", "null"]},
    },
}
_DEFINITION = {
    "type": "object",
    "description": "A cluster definition. Unknown keys are kept.",
    "required": ["name", "members"],
    "properties": {
        "kind": {"const": rules.DEFINITION},
        "schema_version": {"const": "1"},
        "name": {"type": "string", "minLength": 1, "maxLength": rules.NAME_MAXIMUM},
        "members": {"type": "array", "minItems": 1, "maxItems": 20, "items": _MEMBER},
    },
}
_BUNDLE = {
    "type": "object",
    "required": ["kind", "definitions"],
    "properties": {
        "kind": {"const": rules.BUNDLE},
        "definitions": {
            "type": "array",
            "minItems": 1,
            "maxItems": BUNDLE_DEFINITIONS,
            "items": _DEFINITION,
        },
    },
}
_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"anyOf": [_DEFINITION, _BUNDLE]}}},
    }
}


def summary(row: Any, active_id: str | None, configured: Range) -> ClusterSummary:
    """A cluster in the form in which the list answers it. `strength` of a member is its value at intensity 1."""
    facts = row.cluster
    dial = find_limits(facts.declared_range, configured)
    return ClusterSummary(
        id=row.id,
        name=row.name,
        description=row.description,
        model_id=row.model_id,
        sae_id=row.sae_id,
        layer=row.layer,
        is_active=row.id == active_id,
        intensity=row.intensity,
        sensing_enabled=row.sensing_enabled,
        member_count=len(facts.members),
        members=[(m.feature_idx, m.label, m.value) for m in facts.members[:MEMBERS_SHOWN]],
        display_token=facts.display_token,
        bound=row.sae_id is not None,
        warnings=row.warnings,
        hub_ref=row.hub_ref,
        intensity_range=facts.declared_range,
        dial_range=(dial.lowest, dial.highest),
        budget_b=facts.budget_b,
        formula_id=facts.formula_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


NOTED = 8
"""Most ids that the line of an import names. The line always has their number."""


def _result(items: Sequence[ImportedItem]) -> ClusterImport:
    errors = sum(item.status == "error" for item in items)
    return ClusterImport(items, imported=len(items) - errors, blocked=0, errors=errors)


def router(clusters: Clusters, packs: ClusterPacks, serving: Serving) -> APIRouter:
    routes = APIRouter(prefix="/api/clusters", tags=["clusters"])
    # one page at a time, so that many requests for large pages take the memory of one
    listing = asyncio.Lock()

    @routes.get("", response_model=Answer[ClusterList])
    async def list_clusters(limit: PageLimit = PAGE_ROWS, offset: PageOffset = 0) -> Response:
        """Imported clusters, oldest first. `total` counts all of them."""
        async with listing:
            rows, total = await clusters.page(limit, offset)
            active = await serving.active()
            active_id = active.id if active is not None and active.cluster is not None else None

            def answer() -> Response:
                listed = [summary(row, active_id, serving.configured) for row in rows]
                return success(ClusterList(listed, total, active_id))

            return await asyncio.to_thread(answer)

    @routes.post(
        "/import", response_model=Answer[ClusterImport] | RefusedAnswer, openapi_extra=_DOCUMENT
    )
    async def import_clusters(
        request: Request,
        on_conflict: OnConflict = "rename",
        activate: Annotated[bool, Query(description="for a single definition")] = False,
    ) -> Response:
        """Import a cluster definition or a bundle. A document that does not fit its contract is refused with status 200
        and `success: false`."""
        body = await import_body(request)
        items = await clusters.add_body(body, ImportOptions(on_conflict, activate))
        ids = [item.profile_id for item in items if item.profile_id]
        note_object(clusters=len(ids), cluster_ids=ids[:NOTED])
        return success(_result(items))

    @routes.get("/hub/search", response_model=Answer[list[OfferedPack]])
    async def search_hub(
        q: Annotated[str, Query(max_length=200)] = "",
        base_model: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=50)] = 30,
    ) -> Response:
        """Public packs of clusters on the model hub."""
        return success(await packs.search(q, base_model, limit))

    @routes.get("/hub/{repo_id:path}/definitions", response_model=Answer[list[PackedDefinition]])
    async def list_definitions(
        repo_id: str,
        revision: Annotated[str | None, Query(min_length=1, max_length=100)] = None,
    ) -> Response:
        """The cluster definitions of a repository of the model hub."""
        return success(await packs.definitions(repo_id, revision))

    @routes.post("/hub/import", response_model=Answer[ImportedItem] | RefusedAnswer)
    async def import_from_hub(body: HubImport) -> Response:
        """Import one definition of a repository. A file that does not fit the contract of cluster definitions is
        refused with status 200 and `success: false`."""
        options = ImportOptions(body.on_conflict, body.activate)
        item = await packs.add(body.repo_id, body.filename, body.revision, options)
        note_object(cluster_id=item.profile_id)
        return success(item)

    @routes.put("/active/intensity", response_model=Answer[IntensityReport] | RefusedAnswer)
    async def set_active_intensity(body: ClusterIntensity) -> Response:
        """Set the intensity of the cluster that serves. Without one, the answer has status 200 and `success: false`."""
        note_object(intensity=body.intensity)
        report = await clusters.set_active_intensity(body.intensity, reapply=body.reapply)
        return success(report)

    @routes.put("/{cluster_id}/intensity", response_model=Answer[IntensityReport] | RefusedAnswer)
    async def set_intensity(cluster_id: str, body: ClusterIntensity) -> Response:
        note_object(intensity=body.intensity)
        return success(
            await clusters.set_intensity(cluster_id, body.intensity, reapply=body.reapply)
        )

    @routes.post("/{cluster_id}/activate", response_model=Answer[ActivatedCluster] | RefusedAnswer)
    async def activate_cluster(cluster_id: str) -> Response:
        """Steer by a cluster. Every check comes before the live values change."""
        done = await clusters.activate(cluster_id)
        return success(ActivatedCluster(**structs.asdict(done)))

    @routes.post("/{cluster_id}/deactivate", response_model=Answer[DeactivatedProfile])
    async def deactivate_cluster(cluster_id: str) -> Response:
        cleared = await clusters.deactivate(cluster_id)
        return success(DeactivatedProfile(cluster_id, cleared))

    @routes.delete("/{cluster_id}", response_model=Answer[DeletedProfile])
    async def delete_cluster(cluster_id: str) -> Response:
        was_active = await clusters.remove(cluster_id)
        return success(DeletedProfile(cluster_id, was_active))

    @routes.get("/{cluster_id}/export", response_model=Answer[ClusterDocument])
    async def export_cluster(cluster_id: str) -> Response:
        """The document as it was imported, with all of its keys."""
        return stored(await clusters.document(cluster_id))

    return routes
