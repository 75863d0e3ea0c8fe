"""Patch sweeps on the resident model: what the values of one text do in another. The cells are parts of a job."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from steerserve import messages as m
from steerserve.control.inference.generate import fingerprint
from steerserve.control.inference.spelling import Speller
from steerserve.control.inference.texts import TextReader
from steerserve.control.inference.views import TokenizedText
from steerserve.control.jobs import Job, Jobs, Report
from steerserve.control.models.served import check_layered
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Resident
from steerserve.errors import Refusal
from steerserve.messages.prompts import max_tokens
from steerserve.nouns.patches import rules
from steerserve.nouns.patches.rules import Cell, Direction, Metric, MetricKind, Patches, Sweep
from steerserve.rules.inference.prompts import Conversation
from steerserve.settings import Settings

KIND = "patches"
FIRST_PRODUCTS = 10**12
"""The products of two numbers in whole passes over the cells of the first part of a sweep."""
PART_SECONDS, BESIDE_SHARE = 16.0, 32
"""While no request runs, the engine works about so many seconds for a part of a sweep. Beside requests, this time is
divided by the share. Each part reads both texts again, so that short parts take longer in all."""


@dataclass(frozen=True, slots=True)
class PatchesRequest:
    """A sweep as it is asked for. The tokens of the metric are ids, or texts that are one token. `client` names who
    asks."""

    clean: str | Conversation
    corrupt: str | Conversation
    align: Sequence[tuple[int, int]] | None
    sites: Sequence[str]
    layers: Sequence[int] | Literal["all"]
    positions: Sequence[int] | Sequence[Sequence[int]] | Literal["each", "all"]
    has_heads: bool
    direction: Direction
    kind: MetricKind
    target: int | str | None
    against: int | str | None
    noise_repeats: int
    client: str


@dataclass(frozen=True, slots=True)
class _Begun:
    """A sweep of the resident model: its cells, those that are patched with the text's own values, the text that is
    patched, and the other one."""

    asked: PatchesRequest
    resident: Resident
    metric: Metric
    cells: Sequence[Cell]
    noise: Sequence[Cell]
    pairs: Mapping[int, int]
    base: TokenizedText
    source: TokenizedText

    def request(self, cells: Sequence[Cell], noise: Sequence[Cell]) -> m.Request:
        goal = m.Patch(
            source=list(self.source.ids),
            cells=list(cells),
            noise=list(noise),
            metric=self.metric,
            pairs={at: other for at, other in self.pairs.items() if at != other},
            is_noise=self.asked.direction == "noise",
        )
        return m.Request(goal=goal, prompts=[m.Tokens(list(self.base.ids))], client=KIND)


class PatchSweeps:
    """Starts patch sweeps on the resident model; it never loads one."""

    def __init__(
        self,
        settings: Settings,
        conductor: Conductor,
        reader: TextReader,
        speller: Speller,
        jobs: Jobs,
    ) -> None:
        self._settings = settings
        self._conductor = conductor
        self._reader = reader
        self._speller = speller
        self._jobs = jobs

    async def start(self, asked: PatchesRequest) -> Job:
        """Begin a sweep. Its job is refused SAE_INCOMPATIBLE for a layer that lacks a site, NON_FINITE_LOGITS where a
        patch breaks the model, and MODEL_NOT_LOADED when the model goes meanwhile.

        Raises:
            Refusal: MODEL_NOT_LOADED, TOO_MANY_JOBS, CONTEXT_LENGTH_EXCEEDED; INVALID_PARAMETER for a GGUF model, a
                model that can only embed, and where `nouns/patches/rules.py` says so; those of the tokenizer, with
                the name of the text.
        """
        resident = self._conductor.loaded()
        check_layered(resident.row)
        _, facts = resident.running()
        clean = await self._spell("clean", asked.clean, asked.client, facts.context_length)
        corrupt = await self._spell("corrupt", asked.corrupt, asked.client, facts.context_length)
        metric = await self._metric(asked, facts.vocabulary)
        pairs = rules.paired(clean.count, corrupt.count, asked.align, asked.direction)
        base, source = (corrupt, clean) if asked.direction == "denoise" else (clean, corrupt)
        sweep = Sweep(
            asked.sites, asked.layers, asked.positions, asked.has_heads, pairs, base.count
        )
        rules.check_sweep(sweep, facts.layers, facts.sites, self._settings.patches_max_tokens)
        cells = await asyncio.to_thread(rules.cells_of, sweep, facts.sites)
        noise = rules.noise_cells(cells, asked.noise_repeats)
        begun = _Begun(asked, resident, metric, cells, noise, pairs, base, source)
        return self._jobs.start(KIND, partial(self._run, begun))

    # ------------------------------------------------------------- inside

    async def _spell(
        self, name: str, text: str | Conversation, client: str, context: int
    ) -> TokenizedText:
        """The tokens of a text. A refusal has its name."""
        try:
            spelled = await self._speller.spell(text, client=client)
            max_tokens(m.Sampling(max_tokens=0), spelled.count, context)
            if not spelled.ids:
                raise Refusal("INVALID_PARAMETER", "the text has no tokens")
        except Refusal as refusal:
            why = f"{name}: {refusal.message}"
            raise Refusal(refusal.code, why, param=name, **refusal.details) from None
        return spelled

    async def _metric(self, asked: PatchesRequest, vocabulary: int) -> Metric:
        ids = [
            None if token is None else await self._speller.token(f"metric.{name}", token)
            for name, token in (("target_token", asked.target), ("against_token", asked.against))
        ]
        metric = Metric(asked.kind, *ids)
        rules.check_metric(metric, vocabulary)
        return metric

    async def _run(self, begun: _Begun, report: Report) -> Patches:
        cells, tokens = begun.cells, begun.base.count
        # runs that begin with the same position are read together
        order = sorted(range(len(cells)), key=lambda at: cells[at].start[1], reverse=True)
        values = [math.nan] * len(cells)
        noise: list[float] = []
        _, facts = begun.resident.running()
        products = FIRST_PRODUCTS // (BESIDE_SHARE if self._reader.is_used else 1)
        size, done = max(1, products // max(1, facts.parameters) // tokens), 0
        ends = 0.0, 0.0
        while done < len(order):
            places = order[done : done + size]
            request = begun.request([cells[at] for at in places], begun.noise if done == 0 else ())
            turn = await self._reader.turn(
                begun.resident,
                partial(_patched, begun, request),
                check=begun.resident.running,
                is_gentle=True,
            )
            (read,) = turn.read
            for at, value in zip(places, read.cells, strict=True):
                values[at] = value
            if done == 0:
                ends, noise = (read.clean, read.corrupt), read.noise
            done += len(places)
            report(done / len(order), f"{done} of {len(order)} cells are computed")
            size = _next_size(size, read.seconds, is_beside=self._reader.is_used)
            if turn.is_paced or done < len(order):
                await asyncio.sleep(turn.pause)
        clean, corrupt = ends
        own = clean if begun.asked.direction == "noise" else corrupt
        floor = max((abs(value - own) for value in noise), default=0.0)
        return Patches(
            model=begun.resident.row.name,
            system_fingerprint=fingerprint(begun.resident),
            direction=begun.asked.direction,
            metric=begun.metric.kind,
            clean=clean,
            corrupt=corrupt,
            noise_floor=floor,
            cells=[
                rules.described(cell, value, clean, corrupt, floor)
                for cell, value in zip(cells, values, strict=True)
            ],
            tokens=begun.base.pieces,
        )


def _next_size(size: int, seconds: float, *, is_beside: bool) -> int:
    """The number of cells of the next part, after one of `size` cells for which the engine worked so long."""
    wanted = PART_SECONDS / BESIDE_SHARE if is_beside else PART_SECONDS
    return max(1, int(size * min(2.0, wanted / max(seconds, 1e-3))))


async def _patched(begun: _Begun, request: m.Request) -> list[m.Patched]:
    """Raises:
    Refusal: those of the engine; one of a site names the site.
    """
    found: list[m.Patched] = []
    try:
        async with aclosing(begun.resident.held().run(request)) as events:
            async for event in events:
                if isinstance(event, m.Patched):
                    found.append(event)
    except Refusal as refusal:
        site = str(refusal.details.get("site"))
        if refusal.code != "SAE_INCOMPATIBLE" or site not in begun.asked.sites:
            raise
        where = f"sites[{list(begun.asked.sites).index(site)}]"
        why = f"{where}: {refusal.message}"
        raise Refusal(refusal.code, why, param=where, **refusal.details) from None
    return found
