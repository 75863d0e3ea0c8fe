"""/api/models/{id}/lease: pinning the resident model for a limited time.

The lease id is a secret. Only the answer to the grant has it, and the client sends it back in a header. No path, no
other answer and no log line has it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Body, Header
from pydantic import WithJsonSchema
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import ModelId, success
from steerserve.control.residency.conductor import Conductor
from steerserve.nouns.models.owner import Models
from steerserve.rules.residency import lease as rules
from steerserve.rules.residency.lease_status import (
    EndedLeaseStatus,
    GrantedLease,
    LeaseState,
    LeaseStatus,
    ended_status,
    status,
)

LeaseHeader = Annotated[str | None, Header(alias=rules.HEADER)]
TTL = {"type": "integer", "minimum": 1, "description": "seconds; at most LEASE_MAX_TTL_SECONDS"}
TEXT = {"type": "string", "minLength": 1}
# these schemas only document the bodies: `rules/residency/lease` refuses wrong values with a code of its own
GrantBody = Annotated[
    object,
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"holder": TEXT, "reason": TEXT, "ttl_seconds": TTL},
            "required": ["holder", "reason"],
            "additionalProperties": False,
        }
    ),
    Body(),
]
RenewBody = Annotated[
    object,
    WithJsonSchema(
        {"type": "object", "properties": {"ttl_seconds": TTL}, "additionalProperties": False}
    ),
    Body(),
]


def router(models: Models, conductor: Conductor) -> APIRouter:
    routes = APIRouter(prefix="/api/models/{model_id}/lease", tags=["models"])
    leases = conductor.leases

    @routes.post("", response_model=Answer[GrantedLease], status_code=201)
    async def grant_lease(model_id: ModelId, body: GrantBody = None) -> Response:
        terms = rules.terms(body, leases.limits)
        granted = conductor.lease(await models.get(model_id), terms)
        shown = asdict(status(granted.lease, granted.lease.acquired_at))
        response = success(GrantedLease(lease_id=granted.lease_id, **shown), 201)
        response.headers["Cache-Control"] = "no-store"
        return response

    @routes.get("", response_model=Answer[LeaseState])
    async def get_lease(model_id: ModelId) -> Response:
        await models.get(model_id)
        return success(LeaseState(leases.status(model_id), leases.last_ended(model_id)))

    @routes.post("/renew", response_model=Answer[LeaseStatus])
    async def renew_lease(
        model_id: ModelId, body: RenewBody = None, lease: LeaseHeader = None
    ) -> Response:
        lease_id = rules.required_id(lease)
        renewed = leases.renew(model_id, lease_id, rules.renewal(body, leases.limits))
        return success(status(renewed, leases.now()))

    @routes.delete("", response_model=Answer[EndedLeaseStatus])
    async def release_lease(model_id: ModelId, lease: LeaseHeader = None) -> Response:
        return success(ended_status(leases.release(model_id, rules.required_id(lease))))

    return routes
