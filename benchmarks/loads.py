"""Figures of many streamed answers: tokens per second, time to the first token, and gaps between tokens."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.machine import Spread, quantile
from benchmarks.streams import Answer

SHARES = {"p50": 0.5, "p99": 0.99}

Cell = dict[str, Any]
"""The figures of several rounds, as they stand in the JSON."""


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one round.

    Attributes:
        tokens_per_s: of all answers together, from the first request to the last piece of text.
        first_token: the seconds to the first piece of text of each answer that has one.
        gaps: the seconds between one piece of text and the next, of all answers.
        is_whole: whether every answer was read to its end.
        client_share: how much of one core the client took.
    """

    tokens_per_s: float
    first_token: list[float]
    gaps: list[float]
    is_whole: bool
    client_share: float

    @classmethod
    def of(cls, answers: Sequence[Answer], client_seconds: float = 0.0) -> Load:
        seconds = max(a.ended for a in answers) - min(a.began for a in answers)
        return cls(
            sum(a.tokens for a in answers) / seconds,
            [a.texts[0] - a.began for a in answers if a.texts],
            [gap for a in answers for _, gap in a.gaps],
            all(a.is_whole for a in answers),
            client_seconds / seconds,
        )


async def measured(work: Awaitable[list[Answer]]) -> Load:
    """The figures of what `work` asks, with the processor time of this process."""
    before = time.process_time()
    answers = await work
    return Load.of(answers, time.process_time() - before)


def cell(rounds: Sequence[Load]) -> Cell:
    """Medians of several rounds, with the least and the greatest."""
    return {
        "tokens_per_s": asdict(Spread.of(speeds(rounds))),
        "first_token_s": quantiles([one.first_token for one in rounds]),
        "gap_s": quantiles([one.gaps for one in rounds]),
        "rounds_cut": sum(not one.is_whole for one in rounds),
        "client_share_of_a_core": round(max(one.client_share for one in rounds), 3),
    }


def quantiles(
    rounds: Sequence[Sequence[float]], shares: Mapping[str, float] = SHARES
) -> dict[str, Any]:
    """The quantiles of each round, as medians over the rounds. A round without values does not count."""
    return {
        name: asdict(Spread.of([quantile(values, share) for values in rounds if values]))
        for name, share in shares.items()
        if any(rounds)
    }


def ratios(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, Any]:
    """The ratios of two figures under each name, round by round.

    Rounds without a second figure do not count, and a name without any round is left out.
    """
    of_rounds = {
        name: [a / b for a, b in zip(above, below, strict=False) if b]
        for name, (above, below) in pairs.items()
    }
    return {name: asdict(Spread.of(values)) for name, values in of_rounds.items() if values}


def speeds(rounds: Sequence[Load]) -> list[float]:
    return [one.tokens_per_s for one in rounds]
