"""Merges what several engines counted or kept into what one engine would have counted or kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from steerserve import messages as m


def merged(parts: Sequence[m.FeatureCount]) -> m.FeatureCount:
    """The figures of one feature over the tokens of all parts (Chan, Golub and LeVeque 1983)."""
    count, mean, squares, active = 0, 0.0, 0.0, 0
    for part in parts:
        if not part.count:
            continue
        total = count + part.count
        step = part.mean - mean
        squares += part.std * part.std * part.count + step * step * count * part.count / total
        mean += step * part.count / total
        active += active_tokens(part)
        count = total
    return m.FeatureCount(
        parts[0].feature_idx,
        count,
        mean,
        math.sqrt(squares / count) if count else 0.0,
        min(part.min for part in parts),
        max(part.max for part in parts),
        active / count if count else 0.0,
    )


def active_tokens(count: m.FeatureCount) -> int:
    """The number of tokens at which a feature was active."""
    return round(count.active_ratio * count.count)


def ranked(counts: Iterable[m.FeatureCount], metric: str | None, k: int) -> list[m.FeatureCount]:
    """The counts in the order of their indices; with a metric, the `k` with the largest metric, equals by index."""
    ordered = sorted(counts, key=lambda one: one.feature_idx)
    if metric is None:
        return ordered
    return sorted(ordered, key=lambda one: -_metric(one, metric))[:k]


def _metric(one: m.FeatureCount, metric: str) -> float:
    return {
        "mean": one.mean,
        "max": one.max,
        "active_ratio": one.active_ratio,
        "count": active_tokens(one),
    }[metric]


def by_feature(features: Iterable[m.FeatureCount]) -> dict[int, m.FeatureCount]:
    return {one.feature_idx: one for one in features}


def joined(tables: Sequence[Mapping[int, m.FeatureCount]]) -> list[m.FeatureCount]:
    """Each feature that is in one of the tables, merged over all of them."""
    indices = sorted(set().union(*tables))
    return [merged([table[i] for table in tables if i in table]) for i in indices]


def contexts(answers: Sequence[m.Contexts], k: int) -> m.Contexts:
    """The contexts with the `k` largest values by magnitude."""
    every = [one for answer in answers for one in answer.contexts]
    every.sort(key=lambda one: -abs(one.activation))
    return m.Contexts(0, sum(answer.kept for answer in answers), every[:k])


def measured(answers: Sequence[m.Measured], local: Sequence[m.Measured]) -> m.Measured:
    """The bytes of the cards of this host, summed over the engines on it; of the reserves, the largest of any engine,
    because an SAE has to fit beside every one."""
    devices: dict[str, tuple[int, int]] = {}
    for answer in local:
        for device, (allocated, reserved) in answer.devices.items():
            before = devices.get(device, (0, 0))
            devices[device] = before[0] + allocated, before[1] + reserved
    return m.Measured(
        0,
        devices,
        max((answer.kv_reserve for answer in answers), default=0),
        max((answer.working for answer in answers), default=0),
    )
