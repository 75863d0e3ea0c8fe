"""The rules of monitoring: the configuration and its bounds, the ring of records, and the reading of queries."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from steerserve.rules.bounds import HISTORY_ACTIVATIONS
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.sensing.ranking import Rank, Scales, best
from steerserve.rules.steering.live import check_index

HISTORY_DEFAULT = 100
TOP_K_MAXIMUM = 1000
TOP_K_DEFAULT = 10
LIMIT_DEFAULT = 50
BEST_MAXIMUM = 100
BEST_DEFAULT = 10
ReadPoint = Literal["pre_steering"]
READ_POINT: ReadPoint = "pre_steering"
"""Monitored activations are read before the SAE's own steering is added."""

_INDEX = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_NAMED = 10
"""The most wrong values that a refusal names."""

Activation = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration that an operator chose. `features` None means all features of the SAE."""

    enabled: bool = False
    features: tuple[int, ...] | None = None
    history_size: int = HISTORY_DEFAULT
    top_k: int = TOP_K_DEFAULT


@dataclass(frozen=True, slots=True)
class Record:
    """The features that were active at the last token of one choice, the largest first. `position` counts the tokens of
    prompt and completion. `fired` counts all active features (not 0); `activations` may list fewer. `features` are the
    features that were monitored, None for all of them. `weights` are the numbers that rank `top_k`, none where it is
    ranked by value."""

    timestamp: datetime
    request_id: str
    sae_id: str
    layer: int
    choice: int
    position: int
    token: int
    activations: tuple[Activation, ...]
    top_k: tuple[Activation, ...]
    fired: int
    features: tuple[int, ...] | None = None
    weights: tuple[float, ...] = ()

    def values_of(self, wanted: Iterable[int]) -> tuple[Activation, ...]:
        """The activations of these features in their order: 0 for a feature that was not active. A feature is left out
        where its activation is not known: it was not monitored, or more features were active than are listed."""
        values = dict(self.activations)
        is_whole = self.features is None and self.fired <= len(values)
        return tuple(
            (index, values.get(index, 0.0)) for index in wanted if is_whole or index in values
        )

    def ranked(self, rank: Rank, scales: Scales) -> Record:
        """The record with its first features ranked, of all activations that are listed."""
        count = len(self.top_k)
        first = tuple(best(self.activations, rank, scales, count))
        weights = tuple(scales.weight(rank, *one) for one in first)
        return replace(self, top_k=first, weights=weights)

    @property
    def weight(self) -> int:
        """How many activations the record has, and one for itself."""
        return 1 + len(self.activations) + len(self.top_k)


class Ring:
    """The newest records, at most `size` of them, and of those at most as many as have
    HISTORY_ACTIVATIONS activations."""

    def __init__(self, size: int = HISTORY_DEFAULT) -> None:
        self._records: deque[Record] = deque()
        self._size = size
        self._weight = 0

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._weight += record.weight
        self._forget_oldest()

    def resize(self, size: int) -> None:
        """Change the size. The newest records are kept, at most `size` of them."""
        self._size = size
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._records) > self._size or self._weight > HISTORY_ACTIVATIONS:
            self._weight -= self._records.popleft().weight

    def newest(self, limit: int, request_id: str | None = None) -> list[Record]:
        """The newest records first; with `request_id`, only the records of that request."""
        matching = (
            record
            for record in reversed(self._records)
            if request_id is None or record.request_id == request_id
        )
        return [record for record, _ in zip(matching, range(limit), strict=False)]

    def clear(self) -> int:
        """Delete all records, and return how many there were."""
        count = len(self._records)
        self._records.clear()
        self._weight = 0
        return count


def chosen(features: Iterable[int], d_sae: int) -> tuple[int, ...]:
    """The features that a client named, each once and in order.

    Raises:
        Refusal: INVALID_FEATURE_INDEX naming the first index outside [0, d_sae).
    """
    named = list(features)
    for index in named:
        check_index(index, d_sae)
    return tuple(sorted(set(named)))


def parse_features(text: str | None) -> tuple[int, ...] | None:
    """The indices of a query such as `1,2,3`; None without a query.

    Raises:
        Refusal: VALIDATION_ERROR naming the parts of the query that are not indices.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    bad = [part for part in parts if not _INDEX.fullmatch(part)]
    if bad:
        shown = ", ".join(repr(part[:50]) for part in bad[:_NAMED])
        message = f"features: feature indices separated by commas, not {shown}"
        raise refuse_value(["query", "features"], "not a feature index", message)
    return tuple(int(part) for part in parts)


def place_of(key: str) -> tuple[str, int]:
    """The id of the SAE and the layer in the key of an attachment."""
    sae_id, _, layer = key.rpartition("@")
    return sae_id, int(layer)


def typical_strength(residual_norm: float, decoder_norm: float) -> float | None:
    """A usual value for steering one feature: the vector that it adds is half as long as a usual residual. None
    for a decoder row of length 0.

    At about half the residual norm, steering changes the text and the text is still fluent.
    """
    return 0.5 * residual_norm / decoder_norm if decoder_norm > 0 else None


def activations(pairs: Sequence[Sequence[float]]) -> tuple[Activation, ...]:
    """Activations from [index, value] pairs, the form in which the engine sends them."""
    return tuple((int(index), float(value)) for index, value in pairs)
