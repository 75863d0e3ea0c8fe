"""/api/saes/steering: the live values of one attached SAE.

A request may name the SAE; otherwise it concerns the SAE that was attached first. Every route answers the state after
the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from msgspec import UNSET
from pydantic import Field
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, RowId, success
from steerserve.control.metrics import note_object
from steerserve.control.steering.steering import Steering
from steerserve.control.steering.views import SteeringState
from steerserve.rules.bounds import STEERED_FEATURES
from steerserve.rules.saes.attachment import FIRST_SAE, SaeChoice
from steerserve.rules.steering.live import plain_indices
from steerserve.rules.steering.placed import MAXIMUM, MINIMUM

NOTED = 8
"""Most values that the line of a change names. The line always has their number."""
LARGEST_LAYER = 2**31 - 1
Value = Annotated[float, Field(ge=MINIMUM, le=MAXIMUM, allow_inf_nan=False)]
SaeId = Annotated[str, Field(min_length=1, max_length=100)]
Layer = Annotated[int, Field(ge=0, le=LARGEST_LAYER)]


class SaeBody(RequestBody):
    """Names an attached SAE. A body that names none means the SAE that was attached first."""

    sae_id: SaeId | None = None
    layer: Layer | None = None

    @property
    def choice(self) -> SaeChoice:
        return SaeChoice(self.sae_id, self.layer)


class OneFeature(SaeBody):
    """One feature and its value."""

    feature_idx: int
    value: Value


class ManyFeatures(SaeBody):
    """Values to set, as feature index -> value. Values of other features stay."""

    steering: Annotated[dict[str, Value], Field(max_length=STEERED_FEATURES)]


def chosen(
    sae_id: Annotated[SaeId | None, Query()] = None, layer: Annotated[Layer | None, Query()] = None
) -> SaeChoice:
    """The attached SAE that the query of a request names."""
    return SaeChoice(sae_id, layer)


Chosen = Annotated[SaeChoice, Depends(chosen)]


def router(steering: Steering) -> APIRouter:
    routes = APIRouter(prefix="/api/saes/steering", tags=["steering"])

    def state(choice: SaeChoice = FIRST_SAE, warnings: Sequence[str] = ()) -> Response:
        enabled, values = steering.state(choice)
        others = {key: texts(values) for key, values in steering.others(choice).items()}
        return success(
            SteeringState(enabled, texts(values), others or UNSET, list(warnings) or UNSET)
        )

    @routes.get("", response_model=Answer[SteeringState])
    async def get_steering(choice: Chosen) -> Response:
        return state(choice)

    @routes.post("", response_model=Answer[SteeringState])
    async def set_feature(body: OneFeature) -> Response:
        values = {body.feature_idx: body.value}
        _note(values)
        await steering.set_values(values, body.choice)
        return state(body.choice)

    @routes.post("/batch", response_model=Answer[SteeringState])
    async def set_features(body: ManyFeatures) -> Response:
        values = plain_indices(body.steering, steering.attachment(body.choice).d_sae)
        _note(values)
        await steering.set_values(values, body.choice)
        return state(body.choice)

    @routes.post("/enable", response_model=Answer[SteeringState])
    async def enable(enabled: bool = True) -> Response:
        """Switch steering on for all SAEs. `enabled=false` switches it off, because older clients use this route for
        both."""
        note_object(enabled=enabled)
        await (steering.enable() if enabled else steering.disable())
        return state()

    @routes.post("/disable", response_model=Answer[SteeringState])
    async def disable() -> Response:
        await steering.disable()
        return state()

    @routes.delete("/{index}", response_model=Answer[SteeringState])
    async def remove_feature(index: RowId, choice: Chosen) -> Response:
        """Forget the value of one feature. `warnings` name the edits that still steer the feature."""
        await steering.remove(index, choice)
        return state(choice, steering.still_edited(choice, index))

    @routes.delete("", response_model=Answer[SteeringState])
    async def clear(choice: Chosen) -> Response:
        """Forget all values of every SAE, also the values that wait for their model to be loaded again after a crash.
        With `sae_id` or `layer`, forget only the values of that attached SAE."""
        if choice != FIRST_SAE:
            await steering.clear_one(choice)
            return state(choice, steering.still_edited(choice))
        await steering.clear()
        return success(SteeringState(False, {}))

    return routes


def _note(values: dict[int, float]) -> None:
    """Name the values of a request, at most NOTED of them, for the line of the log."""
    first = [f"{index}: {value:g}" for index, value in list(values.items())[:NOTED]]
    note_object(features=len(values), values=first)


def texts(values: Mapping[int, float]) -> dict[str, float]:
    """Values in the order of their features, which are texts in JSON."""
    return {str(index): value for index, value in sorted(values.items())}
