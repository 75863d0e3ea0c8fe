"""32 requests at once, with what makes this server special: steering in requests, profiles, sensing, monitoring."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from benchmarks import loads, saes, servers, service
from benchmarks.loads import Load
from benchmarks.plans import Plan
from benchmarks.servers import Server
from benchmarks.streams import Request, at_once, words

REQUESTS = 32
TIMES = 2
"""Rounds for each round of the plan: the ratios that are aimed at are close to 1."""
CUT_SECONDS, MOST_SECONDS = 60.0, 300.0
FEATURES, MEMBERS, TOP_K = 3, 20, 10
EDITS = 8
CHATS = "/v1/chat/completions"
Asked = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the requests of one kind have, and what holds while they run."""

    fields: Callable[[int], Mapping[str, Any]] = lambda number: {}
    state: Callable[[], AbstractAsyncContextManager[None]] | None = None


PLAIN = Kind()


@dataclass(frozen=True, slots=True)
class Pair:
    """Requests of one kind, and plain ones directly before or after them. The speed of a machine that others use too
    differs less between the two than over a whole round."""

    load: Load
    plain: Load


def _edited(edits: Callable[[int], list[dict[str, Any]]]) -> Kind:
    """Requests with edits of their own."""
    return Kind(lambda number: {"interventions": {"edits": edits(number)}})


def _clamp(number: int) -> dict[str, Any]:
    """An edit that sets a feature of the SAE."""
    return {"op": "set", "feature": {"index": number}, "value": 1.0}


def _gate(number: int) -> dict[str, Any]:
    """The condition that another feature is on."""
    return {"when": {"feature": {"index": REQUESTS + number}, "above": 0.0}}


def _chat(turn: int, number: int) -> Asked:
    """A chat with a prompt that no other turn and request has."""
    return CHATS, {"messages": [{"role": "user", "content": words(12, (turn, number))}]}


class Steered:
    """A service with an SAE. `asked` is what request `number` of a turn asks: a path, and the body without steering."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        server: Server,
        asked: Callable[[int, int], Asked] = _chat,
    ) -> None:
        self._client = client
        self._server = server
        self._asked = asked
        self._cluster = ""
        self._turn = 0
        self._layer = 0
        self._width = 0
        self.attach_s = 0.0

    async def prepare(self, folder: Path, config: dict[str, Any], d_sae: int) -> None:
        """`attach` an SAE of random weights in the middle of the model."""
        layer = config["num_hidden_layers"] // 2
        hook = f"blocks.{layer}.hook_resid_post"
        source = saes.written(folder, config["hidden_size"], hook, d_sae)
        await self.attach(source.path, layer, config["hidden_size"], d_sae)

    async def attach(self, path: str, layer: int, width: int, d_sae: int) -> None:
        """Attach an SAE, and save a profile for each request and a cluster."""
        self._layer, self._width = layer, width
        added = await self._post("/api/saes/download", {"local_path": path})
        since = time.perf_counter()
        await self._post(f"/api/saes/{added['sae_id']}/attach", {"layer": layer})
        self.attach_s = time.perf_counter() - since
        for number in range(REQUESTS):
            values = {str(one["index"]): one["value"] for one in _features(number)}
            await self._post("/api/profiles", {"name": f"profile {number}", "steering": values})
        step = d_sae // MEMBERS
        members = [
            {"feature_idx": n * step, "strength": 0.0, "max_activation": 0.01}
            for n in range(MEMBERS)
        ]
        document = {"name": "cluster", "members": members, "sensing": {"min_k": MEMBERS // 2}}
        imported = await self._post("/api/clusters/import", document)
        self._cluster = imported["results"][0]["profile_id"]

    def kinds(self) -> dict[str, Kind]:
        return {
            "32 profiles": Kind(lambda number: {"profile": f"profile {number}"}),
            "32 sae_steering": Kind(
                lambda number: {"sae_steering": {"features": _features(number)}}
            ),
            "32 clamps": _edited(lambda number: [_clamp(number)]),
            "32 ablations": _edited(lambda number: [self._ablation(number)]),
            "32 gated clamps": _edited(lambda number: [_clamp(number) | _gate(number)]),
            "8 edits each": _edited(
                lambda number: [
                    edit
                    for place in range(EDITS // 2)
                    for edit in (_clamp(number + place), self._ablation(EDITS * number + place))
                ]
            ),
            "a sensed cluster": Kind(state=self._sensed),
            "monitoring": Kind(state=self._monitored),
        }

    def _ablation(self, number: int) -> dict[str, Any]:
        """An edit that takes away a direction of its own, at the layer of the SAE."""
        numbers = np.random.default_rng(number).normal(size=self._width).astype("<f4")
        data = base64.b64encode(numbers.tobytes()).decode()
        return {"op": "ablate", "vector": {"layer": self._layer, "data": data}}

    async def load(self, kind: Kind, tokens: int, count: int = REQUESTS) -> Load:
        """So many requests at once, with prompts that no request had before."""
        self._turn += 1
        requests = [self._request(kind, number, tokens) for number in range(count)]
        if kind.state is None:
            return await loads.measured(at_once(requests, CUT_SECONDS))
        async with kind.state():
            return await loads.measured(at_once(requests, CUT_SECONDS))

    async def pair(self, kind: Kind, tokens: int, count: int = REQUESTS, *, is_first: bool) -> Pair:
        """`is_first` says whether the requests of the kind come before the plain ones."""
        if is_first:
            load = await self.load(kind, tokens, count)
            return Pair(load, await self.load(PLAIN, tokens, count))
        plain = await self.load(PLAIN, tokens, count)
        return Pair(await self.load(kind, tokens, count), plain)

    def _request(self, kind: Kind, number: int, tokens: int) -> Request:
        path, body = self._asked(self._turn, number)
        fields = {"max_tokens": tokens, **self._server.fields, **kind.fields(number)}
        return Request(self._server.port, path, body | fields)

    @asynccontextmanager
    async def _sensed(self) -> AsyncIterator[None]:
        await self._post(f"/api/clusters/{self._cluster}/activate")
        armed = await self._post(f"/api/sensing/{self._cluster}/enable")
        assert armed["armed"], armed
        yield
        await self._post(f"/api/sensing/{self._cluster}/disable")
        await self._post(f"/api/clusters/{self._cluster}/deactivate")

    @asynccontextmanager
    async def _monitored(self) -> AsyncIterator[None]:
        await self._post("/api/monitoring/configure", {"enabled": True, "top_k": TOP_K})
        yield
        await self._post("/api/monitoring/enable", {"enabled": False})

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = await self._client.post(path, json=body)
        whole = answer.json()
        assert answer.is_success, answer.text
        assert whole["success"], answer.text
        return whole["data"]

    async def events(self) -> int:
        """How often the cluster fired."""
        listed = await self._client.get("/api/sensing/events?limit=1")
        return int(listed.json()["data"]["total"])


def _features(number: int) -> list[dict[str, Any]]:
    return [{"index": FEATURES * number + i, "value": 1.0 + number / 8} for i in range(FEATURES)]


async def measure(
    plan: Plan,
    size: str,
    *,
    most_seconds: float = MOST_SECONDS,
    d_sae: int = saes.D_SAE,
    only: Collection[str] = (),
    **settings: str,
) -> dict[str, Any]:
    """Tokens per second of each kind, and their ratios to plain requests, pair by pair. `only` names some kinds."""
    folder = plan.checkpoint(size)
    config = json.loads((folder / "config.json").read_text())
    room = {"MAX_CONCURRENT_REQUESTS": str(REQUESTS)}
    home = plan.scratch / "-".join(("steered", size, str(d_sae), *settings.values()))
    async with service.running(home, **room | settings) as client:
        await service.load(client, folder, folder.name)
        steered = Steered(client, servers.served(client, folder.name))
        await steered.prepare(plan.scratch / f"sae-{d_sae}", config, d_sae)
        kinds = {name: kind for name, kind in steered.kinds().items() if name in (only or name)}
        pairs: dict[str, list[Pair]] = {name: [] for name in kinds}
        for kind in (PLAIN, *kinds.values()):
            await steered.load(kind, 4)
        for turn in plan.turns(most_seconds, TIMES):
            for name, kind in kinds.items():
                pair = await steered.pair(kind, plan.tokens, is_first=bool(turn % 2))
                pairs[name].append(pair)
                both = f"{pair.load.tokens_per_s:.1f} tokens/s, plain {pair.plain.tokens_per_s:.1f}"
                plan.say(f"  round {turn + 1}, {name}: {both}")
        fired = await steered.events()
    measured = {name: [pair.load for pair in made] for name, made in pairs.items()}
    plain = {name: [pair.plain for pair in made] for name, made in pairs.items()}
    every = [load for made in plain.values() for load in made]
    return {
        "size": size,
        "requests": REQUESTS,
        "tokens": plan.tokens,
        "d_sae": d_sae,
        "attach_s": steered.attach_s,
        "members": MEMBERS,
        "top_k": TOP_K,
        "firings_of_the_cluster": fired,
        "cells": {name: loads.cell(made) for name, made in ({"plain": every} | measured).items()},
        "ratios": loads.ratios(
            {name: (loads.speeds(measured[name]), loads.speeds(plain[name])) for name in kinds}
        ),
    }
