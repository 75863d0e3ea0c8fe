"""/api/monitoring: the activations of the features of the first attached SAE while the model writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from msgspec import UNSET, UnsetType, structs
from pydantic import Field
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, encoded, success
from steerserve.control.metrics import note_object
from steerserve.control.saes.example_views import ExamplesOf
from steerserve.nouns.monitoring import rules
from steerserve.nouns.monitoring.form import (
    Cleared,
    Counted,
    FeatureActivation,
    FeatureContexts,
    Metric,
    MonitoredToken,
    MonitoringHistory,
    MonitoringReport,
    MonitoringStatistics,
    TopFeatures,
    figures,
)
from steerserve.nouns.monitoring.owner import Monitoring
from steerserve.nouns.monitoring.rules import Record
from steerserve.rules.bounds import HISTORY_RECORDS, MONITORING_ANSWER_BYTES
from steerserve.rules.form import Form
from steerserve.rules.sensing.ranking import Rank

LabelsOf = Callable[[str], Awaitable[Mapping[int, str]]]
"""An SAE's id -> the labels of its features."""
Labels = Mapping[int, str]


class Configure(RequestBody):
    """The whole configuration; a field that is left out takes its default. Without `features`, or with an empty list,
    all features are monitored, and the state shows an empty list."""

    enabled: bool = True
    features: list[int] | None = None
    history_size: Annotated[int, Field(ge=1, le=HISTORY_RECORDS)] = rules.HISTORY_DEFAULT
    top_k: Annotated[int, Field(ge=1, le=rules.TOP_K_MAXIMUM)] = rules.TOP_K_DEFAULT


class Enable(RequestBody):
    enabled: bool


class Top(RequestBody):
    """Asks for the features with the largest values of one figure: as they are, in units of the features' own largest
    activations over corpora (`share`), or times how rare the features are (`rarity`). With `examples` each feature has
    its strongest example in the newest corpus."""

    k: Annotated[int, Field(ge=1, le=rules.BEST_MAXIMUM)] = rules.BEST_DEFAULT
    metric: Metric = "mean"
    rank: Rank = "value"
    examples: bool = False


def router(monitoring: Monitoring, labels_of: LabelsOf, examples_of: ExamplesOf) -> APIRouter:
    routes = APIRouter(tags=["monitoring"])
    # one large answer of a kind at a time, so that many requests take the memory of one; records can be read while
    # statistics wait for the engine
    listing, counting = asyncio.Lock(), asyncio.Lock()

    @routes.get("/api/monitoring", response_model=Answer[MonitoringReport])
    async def get_state() -> Response:
        return success(monitoring.state())

    @routes.post("/api/saes/monitoring", response_model=Answer[MonitoringReport])
    @routes.post("/api/monitoring/configure", response_model=Answer[MonitoringReport])
    async def configure(body: Configure) -> Response:
        features = len(body.features) if body.features else "all"
        note_object(enabled=body.enabled, features=features)
        made = await monitoring.configure(
            enabled=body.enabled,
            features=body.features or None,
            history_size=body.history_size,
            top_k=body.top_k,
        )
        return success(made)

    @routes.post("/api/monitoring/enable", response_model=Answer[MonitoringReport])
    async def enable(body: Enable) -> Response:
        note_object(enabled=body.enabled)
        return success(await monitoring.enable(body.enabled))

    @routes.get("/api/monitoring/history", response_model=Answer[MonitoringHistory])
    async def history(
        limit: Annotated[int, Query(ge=1, le=HISTORY_RECORDS)] = rules.LIMIT_DEFAULT,
        request_id: Annotated[str | None, Query(max_length=200)] = None,
        features: Annotated[str | None, Query()] = None,
        rank: Rank = "value",
    ) -> Response:
        """With `features`, such as `1,2,3`, the records have the activations of these features only, zeros
        included. `rank` is the order in which `top_k` is chosen and listed. `left_out`, where it is there, counts the
        older records for which an answer of 16 MiB has no room."""
        wanted = monitoring.chosen(rules.parse_features(features))
        records = monitoring.history(limit, request_id)
        if rank != "value":
            first, scales = monitoring.place(), await monitoring.scales()
            records = [
                one.ranked(rank, scales) if (one.sae_id, one.layer) == first else one
                for one in records
            ]
        labels = {sae_id: await labels_of(sae_id) for sae_id in {one.sae_id for one in records}}

        def bodies() -> Iterator[MonitoredToken]:
            for one in records:
                values = one.activations if wanted is None else one.values_of(wanted)
                yield record(replace(one, activations=values), labels[one.sae_id])

        def answer() -> Response:
            found, left_out = within(bodies(), len(records))
            return success(MonitoringHistory(found, len(found), left_out))

        async with listing:
            return await asyncio.to_thread(answer)

    @routes.get("/api/monitoring/contexts", response_model=Answer[FeatureContexts])
    async def contexts(
        feature: Annotated[int, Query(description="Index of the feature.")],
        limit: Annotated[int, Query(ge=1, le=rules.BEST_MAXIMUM)] = rules.BEST_DEFAULT,
    ) -> Response:
        """The texts in which the feature was strongest, of the tokens that were monitored last."""
        return success(await monitoring.contexts(feature, limit))

    @routes.delete("/api/monitoring/history", response_model=Answer[Cleared])
    async def clear_history() -> Response:
        cleared = monitoring.clear_history()
        return success(Cleared(cleared, "the records are forgotten"))

    @routes.get("/api/monitoring/statistics", response_model=Answer[MonitoringStatistics])
    async def statistics(features: Annotated[str | None, Query()] = None) -> Response:
        """The features in the order of their indices. `left_out`, where it is there, counts the features with larger
        indices for which an answer of 16 MiB has no room; a request that names them in `features` has them."""
        asked = rules.parse_features(features)
        async with counting:
            counted = await monitoring.statistics(asked)
            labels = await labels_of(counted.sae_id)

            def answer() -> Response:
                made = (
                    figures(one, labels.get(one.feature_idx, UNSET)) for one in counted.features
                )
                found, left_out = within(made, len(counted.features))
                return success(
                    MonitoringStatistics(features=found, **totals(counted), left_out=left_out)
                )

            return await asyncio.to_thread(answer)

    @routes.delete("/api/monitoring/statistics", response_model=Answer[Cleared])
    async def reset_statistics() -> Response:
        cleared = await monitoring.reset_statistics()
        return success(Cleared(cleared, "the statistics begin anew"))

    @routes.post("/api/monitoring/statistics/top", response_model=Answer[TopFeatures])
    async def top(body: Top) -> Response:
        if body.rank == "value":
            counted = await monitoring.statistics(None, body.metric, body.k)
        else:
            counted = await monitoring.ranked(body.metric, body.k, body.rank)
        labels = await labels_of(counted.sae_id)
        weights = known(counted.weights, len(counted.features))
        made = [
            figures(one, labels.get(one.feature_idx, UNSET), weight)
            for one, weight in zip(counted.features, weights, strict=True)
        ]
        if body.examples:
            indices = [one.feature_idx for one in made]
            examples = await examples_of(counted.sae_id, indices)
            made = [structs.replace(one, example=examples.get(one.feature_idx)) for one in made]
        return success(TopFeatures(features=made, **totals(counted), metric=body.metric, k=body.k))

    return routes


def within(forms: Iterable[Form], count: int) -> tuple[list[Any], int | UnsetType]:
    """The first of `count` forms as JSON: at least one, and of more those that have at most
    MONITORING_ANSWER_BYTES in all. Beside
    it the number of the other forms, UNSET where there are none."""
    taken: list[Any] = []
    size = 0
    for form in forms:
        part = encoded(form)
        size += len(part)
        if taken and size > MONITORING_ANSWER_BYTES:
            break
        taken.append(msgspec.Raw(part))
    return taken, count - len(taken) or UNSET


def known(weights: Sequence[float], count: int) -> Sequence[float | UnsetType]:
    """The weights of `count` features, UNSET where they have none."""
    return weights or [UNSET] * count


def record(seen: Record, labels: Labels) -> MonitoredToken:
    weights = known(seen.weights, len(seen.top_k))
    return MonitoredToken(
        timestamp=seen.timestamp,
        request_id=seen.request_id,
        sae_id=seen.sae_id,
        layer=seen.layer,
        choice=seen.choice,
        token_position=seen.position,
        token_id=seen.token,
        activations=[activation(one, labels) for one in seen.activations],
        top_k=[
            activation(one, labels, weight) for one, weight in zip(seen.top_k, weights, strict=True)
        ],
        fired=seen.fired,
        read_point=rules.READ_POINT,
    )


def activation(
    pair: rules.Activation, labels: Labels, weight: float | UnsetType = UNSET
) -> FeatureActivation:
    index, value = pair
    return FeatureActivation(index, value, labels.get(index, UNSET), weight)


def totals(counted: Counted) -> dict[str, Any]:
    """The figures over all features."""
    return {
        "total_activations": counted.activations,
        "tokens": counted.tokens,
        "lost_requests": counted.lost_requests,
        "since": counted.since,
    }
