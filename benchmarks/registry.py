"""Measures a service with hundreds of registered models, SAEs and profiles: `python -m benchmarks.registry`.

A database is filled directly, without files. Then a service starts on it, and the requests that read the registry are
measured: alone, and beside probes of liveness while several clients repeat them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks.kept import Kept
from benchmarks.probe import probing
from benchmarks.service import running
from steerserve.database.catalog import Catalog
from steerserve.database.db import Database
from steerserve.nouns.labels.store import Labels
from steerserve.nouns.profiles.store import ProfileStore
from steerserve.settings import Settings

MODELS, SAES, PROFILES = 500, 500, 200
UNITS = 99
"""The SAEs of each repository that is registered as a whole."""
LABELLED, LABELS = 10, 16_384
FEATURES = 200
"""The features of each profile."""
ALONE = 20
CLIENTS, BESIDE_SECONDS = 4, 1.5


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is measured, and the status that it must have."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    status: int = 200

    async def send(self, client: httpx2.AsyncClient) -> int:
        """The size of the answer in bytes."""
        answer = await client.request(self.method, self.path, json=self.body)
        assert answer.status_code == self.status, answer.text[:500]
        return len(answer.content)


CLAIMS = {
    "format": "gemma-scope",
    "architecture": "jumprelu",
    "d_in": 2304,
    "d_sae": LABELS,
    "dtype": "float32",
    "hook_name": None,
    "site": "resid_post",
    "layer": 1,
    "model_name": None,
    "l0": 71.0,
    "size_bytes": 302_000_000,
    "warnings": ["the files name no model"],
    "tensors": {
        "W_enc": [2304, LABELS],
        "W_dec": [LABELS, 2304],
        "b_enc": [LABELS],
        "b_dec": [2304],
    },
}
CHAT = {"messages": [{"role": "user", "content": "a"}]}
REQUESTS = {
    "list models": Request("GET", "/api/models"),
    "list models of /v1": Request("GET", "/v1/models"),
    "list SAEs": Request("GET", "/api/saes"),
    "list profiles": Request("GET", "/api/profiles"),
    "one repository of SAEs": Request("GET", "/api/saes/sae_000000000000"),
    "one model": Request("GET", "/api/models/250"),
    "export a profile": Request("GET", "/api/profiles/prof_000000000100/export"),
    "a page of labels": Request("GET", "/api/saes/sae_000000000001/labels"),
    "labels with a word": Request("GET", "/api/saes/sae_000000000001/labels?query=label%20777"),
    "labels of ten SAEs in turn": Request("GET", "/api/saes/TURN/labels"),
    "resolve a name": Request(
        "POST", "/v1/chat/completions", CHAT | {"model": "model-0100", "n": 99}, 400
    ),
    "resolve an unknown name": Request(
        "POST", "/v1/chat/completions", CHAT | {"model": "unknown"}, 404
    ),
    "readiness": Request("GET", "/api/health/ready"),
    "detailed health": Request("GET", "/api/health/detailed"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write; by default benchmarks/results")
    kept = Kept("registry", parser.parse_args().out)
    with tempfile.TemporaryDirectory() as folder:
        registry = asyncio.run(measure(Path(folder)))
    for name, times in registry["requests"].items():
        print(
            f"{name:30} {times['alone_ms']:8.1f} ms, processor {times['processor_ms']:8.1f} ms, "
            f"liveness {times['liveness_p99_ms']:8.1f} ms"
        )
    print(f"starts: {registry['start_seconds']}, memory: {registry['resident_mib']} MiB")
    kept.end({"registry": registry})


async def measure(scratch: Path) -> dict[str, Any]:
    empty, full = scratch / "empty", scratch / "full"
    await fill(full)
    starts, resident = {}, {}
    for name, home in (("empty", empty), ("full", full)):
        since = time.perf_counter()
        async with running(home) as client:
            (await client.get("/api/health/ready")).raise_for_status()
            starts[name] = round(time.perf_counter() - since, 2)
            resident[name] = await memory_mib(client)
            if name == "full":
                for request in REQUESTS.values():
                    await _turned(request, 0).send(client)
                requests = {key: await times(client, REQUESTS[key]) for key in REQUESTS}
                resident["after the requests"] = await memory_mib(client)
    return {
        "models": MODELS,
        "saes": SAES,
        "profiles": PROFILES,
        "labels": LABELLED * LABELS,
        "start_seconds": starts,
        "resident_mib": resident,
        "requests": requests,
    }


async def fill(home: Path) -> None:
    """Write a registry of hundreds of records, without files."""
    settings = Settings(_env_file=None, steerserve_home=home)  # type: ignore[call-arg]
    database = Database(settings.database_url)
    await database.open()
    catalog = Catalog(database)
    for number in range(MODELS):
        # two quantizations of each repository, so that bare names are ambiguous
        await catalog.add_model(
            name=f"model-{number // 2:04}",
            source="huggingface",
            repo_id=f"owner/model-{number // 2:04}",
            revision="a" * 40,
            local_path=f"/models/{number}",
            quantization=("FP16", "Q8")[number % 2],
            engine="checkpoint",
            trust_remote_code=False,
            status="ready",
        )
    for number in range(SAES):
        await catalog.add_sae(**_sae(number))
    documents = ProfileStore(database, new_id=(f"prof_{n:012}" for n in range(PROFILES)).__next__)
    for number in range(PROFILES):
        await documents.add_profile(
            name=f"profile {number}",
            sae_id=f"sae_{number:012}",
            steering={feature * 7: feature / 3 for feature in range(FEATURES)},
        )
    labels = Labels(database)
    for number in range(1, LABELLED + 1):
        texts = {i: f"label {i} of a feature that fires on some words" for i in range(LABELS)}
        await labels.put(f"sae_{number:012}", texts)
    await database.close()


def _sae(number: int) -> dict[str, Any]:
    repository, unit = divmod(number, UNITS + 1)
    is_unit = unit > 0
    return {
        "id": f"sae_{number:012}",
        "repository_id": f"owner/saes-{repository}",
        "revision": "b" * 40,
        "file_path": f"layer_{unit}/width_16k" if is_unit else None,
        "local_path": f"/saes/{number}" if is_unit else None,
        "name": f"owner/saes-{repository}/layer_{unit}/width_16k",
        "format": "gemma-scope" if is_unit else "repository",
        "architecture": "jumprelu",
        "d_in": 2304 if is_unit else None,
        "d_sae": LABELS if is_unit else None,
        "status": "cached",
        "claims": CLAIMS if is_unit else None,
    }


async def memory_mib(client: httpx2.AsyncClient) -> float:
    text = (await client.get("/api/health/metrics/prometheus")).text
    line = next(x for x in text.splitlines() if 'resident_memory_bytes{process="control"}' in x)
    return round(float(line.split()[-1]) / 2**20, 1)


async def times(client: httpx2.AsyncClient, request: Request) -> dict[str, float]:
    """Milliseconds of a request alone, of the processor for it, and of liveness while CLIENTS clients repeat it."""
    (service,) = psutil.Process().children()
    size, alone, before = 0, [], sum(service.cpu_times()[:2])
    for turn in range(ALONE):
        since = time.perf_counter()
        size = await _turned(request, turn).send(client)
        alone.append(time.perf_counter() - since)
    spent = sum(service.cpu_times()[:2]) - before
    async with probing(client.base_url.port or 0) as probes:
        until = time.perf_counter() + BESIDE_SECONDS

        async def repeat(first: int) -> None:
            turn = first
            while time.perf_counter() < until:
                await _turned(request, turn).send(client)
                turn += 1

        await asyncio.gather(*(repeat(number * 3) for number in range(CLIENTS)))
    return {
        "bytes": size,
        "processor_ms": round(spent / ALONE * 1000, 2),
        "alone_ms": round(statistics.median(alone) * 1000, 2),
        "alone_slowest_ms": round(max(alone) * 1000, 2),
        "liveness_p99_ms": round(sorted(probes)[int(len(probes) * 0.99)] * 1000, 2),
        "liveness_slowest_ms": round(max(probes) * 1000, 2),
    }


def _turned(request: Request, turn: int) -> Request:
    """The request, about another SAE in each turn if its path says so."""
    path = request.path.replace("TURN", f"sae_{1 + turn % LABELLED:012}")
    return Request(request.method, path, request.body, request.status)


if __name__ == "__main__":
    main()
