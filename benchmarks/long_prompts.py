"""Short requests beside long prompts: the gaps between their tokens while the long prompts are read, and afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from benchmarks import loads, servers
from benchmarks.machine import Spread, quantile
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Answer, Request, ask, gathered, repeated, words

SHORT, LONG_TOKENS = 16, 4000
LONGS = (0, 1, 4)
ALONE = "alone"
SETTLE_SECONDS = 2.0
"""Before anything is counted, so that the short requests run already."""
ALONE_SECONDS, DECODE_SECONDS, PREFILL_SECONDS = 8.0, 6.0, 240.0
MOST_SECONDS = 420.0
DECODED = 2000
"""More tokens than a long request gets to, so that all decode until the end of a measurement."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What the short requests met in a part of the time.

    Attributes:
        gaps: seconds between two pieces of text. A gap of which a part lies in the phase counts.
        tokens_per_s: of all short requests together.
    """

    gaps: list[float]
    tokens_per_s: float

    @classmethod
    def of(cls, answers: Sequence[Answer], since: float, until: float) -> Phase:
        gaps = [g for a in answers for when, g in a.gaps if since < when and when - g < until]
        pieces = sum(since < when <= until for a in answers for when in a.texts)
        return cls(gaps, pieces / (until - since))

    def __str__(self) -> str:
        p50, p99 = (f"{quantile(self.gaps or [0], q) * 1e3:.0f}" for q in (0.5, 0.99))
        return f"{self.tokens_per_s:.0f} tokens/s, gap p50 {p50} ms, p99 {p99} ms"


async def measure(plan: Plan, size: str) -> dict[str, Any]:
    """Each phase beside each number of long prompts, and ratios to the short requests alone, round by round."""
    phases: dict[str, list[Phase]] = {}
    first_tokens: dict[str, list[float]] = {}
    async with servers.ours(plan.scratch / "long", plan.checkpoint(size)) as server:
        await server.warm()
        for turn in plan.turns(MOST_SECONDS):
            counts = LONGS[:2] if plan.is_quick else LONGS
            for longs in counts if turn % 2 == 0 else reversed(counts):
                mix = Mix(plan, server, longs, turn)
                for name, phase in (await mix.phases()).items():
                    phases.setdefault(name, []).append(phase)
                    plan.say(f"  round {turn + 1}, {SHORT} short, {name}: {phase}")
                if longs:
                    first_tokens.setdefault(f"beside {longs}", []).append(mix.prefill_seconds)
                await server.warm()
    return {
        "size": size,
        "short": SHORT,
        "long_tokens": LONG_TOKENS,
        "phases": {
            name: {
                "tokens_per_s": asdict(Spread.of([one.tokens_per_s for one in rounds])),
                "gap_s": loads.quantiles([one.gaps for one in rounds]),
            }
            for name, rounds in phases.items()
        },
        "over_alone": {
            name: _over(rounds, phases[ALONE]) for name, rounds in phases.items() if name != ALONE
        },
        "first_token_of_the_last_long_s": {
            name: asdict(Spread.of(seconds)) for name, seconds in first_tokens.items()
        },
    }


class Mix:
    """Short requests again and again, and after a while so many long ones. All clients leave at the end."""

    def __init__(self, plan: Plan, server: Server, longs: int, turn: int) -> None:
        self._plan = plan
        self._server = server
        self._longs = longs
        self._turn = turn
        self._leaving = asyncio.Event()
        self._times: list[float] = []
        """When the long requests were sent, when each of them had had its first token, and when all clients left. The
        last time is missing where a long request had no token in time."""

    async def phases(self) -> dict[str, Phase]:
        answers, _ = await gathered(
            repeated(self._short, SHORT, self._leaving), self._until_the_end()
        )
        if not self._longs:
            return {ALONE: Phase.of(answers, *self._times)}
        name = f"beside {self._longs}"
        bounds = pairwise(self._times)
        kinds = (f"{name}, prefill", f"{name}, decode")
        return {kind: Phase.of(answers, *bound) for kind, bound in zip(kinds, bounds, strict=False)}

    @property
    def prefill_seconds(self) -> float:
        """Until the last long request had its first token, or until the clients left."""
        return self._times[1] - self._times[0]

    def _short(self, number: int) -> Request:
        return self._server.request(words(8, (self._turn, self._longs, number, "short")), 96)

    async def _until_the_end(self) -> None:
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            self._times.append(time.perf_counter())
            if self._longs:
                firsts = [asyncio.Event() for _ in range(self._longs)]
                await gathered(*map(self._long, range(self._longs), firsts), self._decode(firsts))
            else:
                await self._go_on(ALONE_SECONDS)
        finally:
            self._leaving.set()

    async def _long(self, number: int, first: asyncio.Event) -> None:
        prompt = words(LONG_TOKENS, (self._turn, self._longs, number))
        await ask(self._server.request(prompt, DECODED), self._leaving, first)

    async def _decode(self, firsts: list[asyncio.Event]) -> None:
        """Wait until every long request decodes, and a while longer."""
        try:
            async with asyncio.timeout(PREFILL_SECONDS):
                for first in firsts:
                    await first.wait()
        except TimeoutError:
            self._plan.say(f"  a long prompt had no token after {PREFILL_SECONDS:.0f} s")
            await self._go_on(0)
        else:
            self._times.append(time.perf_counter())
            await self._go_on(DECODE_SECONDS)

    async def _go_on(self, seconds: float) -> None:
        await asyncio.sleep(self._plan.seconds(seconds))
        self._times.append(time.perf_counter())
        self._leaving.set()


def _over(rounds: Sequence[Phase], alone: Sequence[Phase]) -> dict[str, Any]:
    """Ratios of the gaps, of the rounds in which both sides have gaps."""
    pairs = [(a.gaps, b.gaps) for a, b in zip(rounds, alone, strict=True) if a.gaps and b.gaps]
    return loads.ratios(
        {
            name: (
                [quantile(gaps, share) for gaps, _ in pairs],
                [quantile(gaps, share) for _, gaps in pairs],
            )
            for name, share in loads.SHARES.items()
        }
    )
