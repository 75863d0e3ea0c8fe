"""Requests on a card: with seeds that share passes, with quantized weights, and beside a corpus that is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2

from benchmarks import beside_corpus, beside_jobs, loads, servers, service
from benchmarks.loads import Load
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import at_once, words

CUT_SECONDS = 60.0
SEEDED = (8, 32)
"""How many requests with seeds there are at once."""
QUANTIZED = (1, 32)
"""How many requests there are at once at each precision."""
PRECISIONS = ("FP16", "Q8", "Q4")
CORPUS_TOKENS, ALONE_SECONDS = 200_000, 8.0
PART_SECONDS = 45.0
"""No further round begins after this time."""


async def _load(
    plan: Plan, server: Server, count: int, tokens: int, turn: object, fields: Mapping[str, Any]
) -> tuple[Load, list[str]]:
    """The figures and the texts of so many requests at once. With a seed, each request has one of its own."""
    requests = [
        server.request(
            words(12, (turn, number)),
            tokens,
            **{name: value + number for name, value in fields.items()},
        )
        for number in range(count)
    ]
    texts: list[str] = []

    async def asked() -> Any:
        answers = await at_once(requests, CUT_SECONDS)
        texts.extend(answer.text for answer in answers)
        return answers

    load = await loads.measured(asked())
    plan.say(f"  {count} at once{', seeds' * bool(fields)}: {load.tokens_per_s:.0f} tokens/s")
    return load, texts


async def seeds(plan: Plan, size: str) -> dict[str, Any]:
    """Tokens per second of requests with seeds over those without, where seeded rows share passes with others, and how
    many texts a repetition with the same seeds gives again."""
    speeds: dict[str, list[float]] = {}
    same = dict.fromkeys(map(str, SEEDED), 0)
    asked = dict.fromkeys(same, 0)
    home = plan.scratch / f"{size}-seeds"
    async with servers.ours(home, plan.checkpoint(size), SEEDED_ROWS="shared") as server:
        await server.warm()
        for count in SEEDED:
            await _load(plan, server, count, 8, "warm", {"seed": 1})
        for turn in plan.turns(PART_SECONDS):
            for count in SEEDED:
                both: dict[str, tuple[Load, list[str]]] = {}
                kinds = [("without", {}), ("with", {"seed": 1}), ("again", {"seed": 1})]
                for name, fields in kinds if turn % 2 else [*kinds[1:], kinds[0]]:
                    prompts = turn, bool(fields)
                    made = await _load(plan, server, count, plan.tokens, prompts, fields)
                    both[name] = made
                    speeds.setdefault(f"{count} {name}", []).append(made[0].tokens_per_s)
                pairs = zip(both["with"][1], both["again"][1], strict=True)
                same[str(count)] += sum(one == other for one, other in pairs)
                asked[str(count)] += count
    ratios = {
        f"{count} with seeds over {count} without": (
            speeds[f"{count} with"],
            speeds[f"{count} without"],
        )
        for count in SEEDED
    }
    return {
        "tokens": plan.tokens,
        "ratios": loads.ratios(ratios),
        "asked_again": asked,
        "same_again": same,
    }


async def precisions(plan: Plan, size: str) -> dict[str, Any]:
    """Tokens per second at each precision, and over those at 16 bits."""
    folder = plan.checkpoint(size)
    speeds: dict[tuple[str, int], list[float]] = {}
    cells: dict[str, dict[str, Any]] = {}
    states = {}
    limits = {"MAX_CONCURRENT_REQUESTS": str(QUANTIZED[-1])}
    async with service.running(plan.scratch / f"{size}-precisions", **limits) as client:
        for precision in PRECISIONS:
            name = f"{folder.name}-{precision.lower()}"
            await service.load(client, folder, name, quantization=precision)
            states[precision] = await decoding(client)
            server = servers.served(client, name)
            await server.warm()
            measured: dict[int, list[Load]] = {count: [] for count in QUANTIZED}
            plan.say(f"  {precision}")
            for turn in range(-1, plan.rounds):
                for count in QUANTIZED:
                    tokens = plan.tokens if turn >= 0 else 8
                    load, _ = await _load(plan, server, count, tokens, (precision, turn), {})
                    if turn >= 0:
                        measured[count].append(load)
            speeds |= {(precision, count): loads.speeds(made) for count, made in measured.items()}
            cells[precision] = {str(count): loads.cell(made) for count, made in measured.items()}
    ratios = {
        f"{count} at once, {precision} over 16 bits": (
            speeds[precision, count],
            speeds["FP16", count],
        )
        for precision in PRECISIONS[1:]
        for count in QUANTIZED
    }
    return {
        "tokens": plan.tokens,
        "cells": cells,
        "ratios": loads.ratios(ratios),
        "decoding": states,
    }


async def corpus(plan: Plan) -> dict[str, Any]:
    """Live streams of the demo model before, beside and after a corpus that is read."""
    tokens = beside_corpus.QUICK_TOKENS if plan.is_quick else CORPUS_TOKENS
    file = plan.scratch / "corpus.jsonl"
    file.write_text("".join(json.dumps({"text": one}) + "\n" for one in beside_jobs.texts()))
    body = {
        "source": "local",
        "local_path": str(file),
        "max_tokens": tokens,
        "name": "beside live streams",
    }
    reading = beside_corpus.Reading(plan, plan.scratch / "beside-corpus", body)
    async with reading.served(is_new=True) as (client, server):
        await reading.alone(server, 0, ALONE_SECONDS)
        await reading.beside(client, server, 1, until=1.0)
        await reading.alone(server, 2, ALONE_SECONDS)
    return {
        "streams": beside_corpus.STREAMS,
        "tokens": tokens,
        "seconds": reading.seconds,
        "tokens_per_s": tokens / reading.seconds,
        "alone": loads.cell(reading.loads_alone),
        "beside": loads.cell(reading.loads_beside),
        "ratios": beside_corpus.ratios(reading.loads_beside, reading.loads_alone),
    }


async def decoding(client: httpx2.AsyncClient) -> Any:
    """How the service says that decode passes are run."""
    health = (await client.get("/api/health/inference")).raise_for_status().json()
    return health["data"].get("cuda_graphs")
