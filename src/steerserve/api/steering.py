"""/api/saes/steering: the live values of the first attached SAE, and of all where they are cleared. Every route answers the
state."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.responses import Response

from steerserve.api.envelope import Envelope, RequestBody, RowId, success, unambiguous
from steerserve.control.interventions.steering import Steering
from steerserve.errors import Refusal
from steerserve.rules.steering import BATCH_MAXIMUM, MAXIMUM, MINIMUM

Value = Annotated[float, Field(ge=MINIMUM, le=MAXIMUM, allow_inf_nan=False)]
_INDEX = re.compile(r"0|-?[1-9][0-9]{0,63}")
"""An index, written one way only; one that no SAE has is refused by its number."""


class OneFeature(RequestBody):
    """One feature and its value."""

    feature_idx: int
    value: Value


class ManyFeatures(RequestBody):
    """Feature index -> value, merged into what is set."""

    steering: Annotated[dict[str, Value], Field(max_length=BATCH_MAXIMUM)]


def router(steering: Steering) -> APIRouter:
    routes = APIRouter(
        prefix="/api/saes/steering", tags=["steering"], dependencies=[Depends(unambiguous)]
    )

    def state() -> Response:
        enabled, values = steering.state()
        others = {key: _told(found) for key, found in steering.others().items()}
        more = {"others": others} if others else {}
        return success({"enabled": enabled, "values": _told(values), **more})

    @routes.get("", response_model=Envelope)
    async def get_steering() -> Response:
        return state()

    @routes.post("", response_model=Envelope)
    async def set_feature(body: OneFeature) -> Response:
        await steering.set_values({body.feature_idx: body.value})
        return state()

    @routes.post("/batch", response_model=Envelope)
    async def set_features(body: ManyFeatures) -> Response:
        await steering.set_values(indices(body.steering))
        return state()

    @routes.post("/enable", response_model=Envelope)
    async def enable(enabled: bool = True) -> Response:
        """`enabled=false` disables, as older clients ask for it."""
        await (steering.enable() if enabled else steering.disable())
        return state()

    @routes.post("/disable", response_model=Envelope)
    async def disable() -> Response:
        await steering.disable()
        return state()

    @routes.delete("/{index}", response_model=Envelope)
    async def remove_feature(index: RowId) -> Response:
        await steering.remove(index)
        return state()

    @routes.delete("", response_model=Envelope)
    async def clear() -> Response:
        """Forget all values of every SAE, also those that wait for their model to be loaded again."""
        await steering.clear()
        return success({"enabled": False, "values": {}})

    return routes


def indices(values: dict[str, float]) -> dict[int, float]:
    """The map with integer keys.

    Raises:
        Refusal: VALIDATION_ERROR naming the keys that are no integers.
    """
    bad = [key for key in values if not _INDEX.fullmatch(key)]
    if bad:
        raise Refusal(
            "VALIDATION_ERROR",
            f"feature indices must be integers: {', '.join(bad[:10])}",
            errors=[
                {"loc": ["body", "steering", key], "msg": "not an integer"} for key in bad[:10]
            ],
        )
    return {int(key): value for key, value in values.items()}


def _told(values: dict[int, float]) -> dict[str, float]:
    return {str(index): value for index, value in sorted(values.items())}
