"""What many large requests at once take: `python -m benchmarks.large_requests [--only PARTS]`.

Each part sends its requests to the service at once, in several rounds, and takes the bytes of the answers, the largest
memory of the service process, and the seconds in which liveness answers meanwhile. The parts are the largest answers of
lists, and imports of 1 MiB that fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
from safetensors.numpy import save_file

from benchmarks import service
from benchmarks.kept import Kept
from benchmarks.machine import Spread, quantile
from benchmarks.probe import probing
from steerserve import demo
from steerserve.rules.bounds import DOCUMENT_BYTES

JSON = {"content-type": "application/json"}
ROUNDS = 5
IDLE_SECONDS = 5.0
"""Seconds for which liveness is measured without other requests."""

RECORDS = 1000
NAMED = 1000
WIDTH = 16_384
"""The features of the SAE whose statistics are asked for. All are active at every token."""
LABEL = "\U0001f40b" * 490
"""A label of almost the greatest length, of which each character takes four bytes."""
LABELS_AT_ONCE = 3500
"""The labels of one import: a body has at most 8 MB."""
CIRCUITS, CIRCUIT_BYTES = 500, 142_000
PROFILES, VALUES = 1000, 1000
PAGE = 200
"""The most rows of a list in one answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is sent so many times at once. A request with a body is an import that is refused."""

    at_once: int
    path: str
    body: bytes | None = None

    async def send(self, client: httpx2.AsyncClient) -> int:
        """The bytes of the answer."""
        if self.body is None:
            answer = (await client.get(self.path)).raise_for_status()
        else:
            answer = await client.post(self.path, content=self.body, headers=JSON)
            assert answer.json()["error"]["code"] == "VALIDATION_ERROR", answer.text
        return len(answer.content)


Part = Callable[[httpx2.AsyncClient, Path], Awaitable[Sequence[Request]]]
"""Prepares the service, and gives the requests to measure. The path is an empty folder."""


# ---------------------------------------------------------------------- what is sent


async def history(client: httpx2.AsyncClient, _: Path) -> Sequence[Request]:
    """Records of 1000 named features with long labels."""
    sae = demo.saes()[-1]
    await attach(client, sae.path, sae.layer, NAMED)
    await data(client, "POST", "/api/monitoring/configure", {"history_size": RECORDS})
    body = {"model": demo.MODEL_NAME, "prompt": ["One day"] * 100, "max_tokens": 1}
    for _ in range(RECORDS // 100):
        (await client.post("/v1/completions", json=body)).raise_for_status()
    features = ",".join(map(str, range(NAMED)))
    return [Request(2, f"/api/monitoring/history?limit={RECORDS}&features={features}")]


async def statistics(client: httpx2.AsyncClient, scratch: Path) -> Sequence[Request]:
    """Statistics of all features of a wide SAE with long labels."""
    await attach(client, wide_sae(scratch / "wide"), 1, WIDTH)
    await data(client, "POST", "/api/monitoring/configure", {})
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1}
    (await client.post("/v1/completions", json=body)).raise_for_status()
    return [Request(at_once, "/api/monitoring/statistics") for at_once in (2, 20)]


async def circuits(client: httpx2.AsyncClient, _: Path) -> Sequence[Request]:
    document = {"members": [member(0)], "saes": [{"layer": 0}]}
    document["more"] = "x" * (CIRCUIT_BYTES - len(json.dumps(document)) - 50)
    for number in range(CIRCUITS):
        body = document | {"name": f"circuit {number}"}
        await data(client, "POST", "/api/circuits/import", body)
    return [Request(20, f"/api/circuits?limit={PAGE}")]


async def profiles(client: httpx2.AsyncClient, _: Path) -> Sequence[Request]:
    steering = {str(index): index / 7 for index in range(VALUES)}
    for number in range(PROFILES):
        body = {"name": f"profile {number}", "steering": steering}
        await data(client, "POST", "/api/profiles", body)
    return [Request(20, f"/api/profiles?limit={PAGE}")]


async def imports(_: httpx2.AsyncClient, __: Path) -> Sequence[Request]:
    """Documents of 1 MiB of which each is refused after it was read whole."""
    circuit = {"name": "large", "saes": [{"layer": 1}]}
    return [
        Request(20, "/api/circuits/import", filled(circuit, "members", member(1))),
        Request(20, "/api/clusters/import", filled({"name": "large"}, "members", {})),
        Request(20, "/api/profiles/import", filled({"name": "large"}, "features", {})),
    ]


PARTS: dict[str, Part] = {
    one.__name__: one for one in (history, statistics, circuits, profiles, imports)
}


def member(layer: int) -> dict[str, Any]:
    return {"layer": layer, "feature": {"feature_idx": 1, "strength": 1}}


def filled(document: dict[str, Any], key: str, part: Any) -> bytes:
    """The document with a list under `key` that repeats `part` until the document has its largest size."""
    head, repeated = json.dumps(document)[:-1] + f', "{key}": [', json.dumps(part)
    times = (DOCUMENT_BYTES - len(head) - 2) // (len(repeated) + 1)
    return (head + ",".join([repeated] * times) + "]}").encode()


def wide_sae(folder: Path) -> Path:
    """A random SAE for the demo model in the form of SAELens."""
    folder.mkdir()
    hidden = json.loads((demo.MODEL_DIR / "config.json").read_text())["hidden_size"]
    rows = np.random.default_rng(0).normal(size=(WIDTH, hidden)).astype(np.float32)
    values = {
        "W_enc": np.ascontiguousarray(rows.T),
        "b_enc": np.full(WIDTH, 1e4, np.float32),
        "W_dec": rows,
        "b_dec": np.zeros(hidden, np.float32),
    }
    save_file(values, folder / "sae_weights.safetensors")
    claims = {
        "architecture": "standard",
        "d_in": hidden,
        "d_sae": WIDTH,
        "dtype": "float32",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "metadata": {"hook_name": "blocks.1.hook_resid_post"},
    }
    (folder / "cfg.json").write_text(json.dumps(claims))
    return folder


async def attach(client: httpx2.AsyncClient, folder: Path, layer: int, labelled: int) -> None:
    """Attach an SAE in the place of any other, with long labels for its first features."""
    added = await data(client, "POST", "/api/saes/download", {"local_path": str(folder)})
    for first in range(0, labelled, LABELS_AT_ONCE):
        last = min(labelled, first + LABELS_AT_ONCE)
        labels = {str(index): LABEL for index in range(first, last)}
        content = json.dumps(labels, ensure_ascii=False).encode()
        path = f"/api/saes/{added['sae_id']}/labels"
        (await client.post(path, content=content, headers=JSON)).raise_for_status()
    await data(client, "POST", f"/api/saes/{added['sae_id']}/attach", {"layer": layer})


async def data(client: httpx2.AsyncClient, method: str, path: str, body: Any) -> Any:
    answer = (await client.request(method, path, json=body)).json()
    assert answer["success"], answer["error"]
    return answer["data"]


# ---------------------------------------------------------------------- what is measured


async def measure(parts: Sequence[str], scratch: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with service.running(scratch / "home") as client:
        (process,) = psutil.Process().children()
        client.timeout = httpx2.Timeout(600)
        await service.load(client, demo.MODEL_DIR, demo.MODEL_NAME)
        found["idle"] = {"liveness_seconds": await idle(client)}
        say("idle", found["idle"])
        for part in parts:
            for request in await PARTS[part](client, scratch):
                name = f"{request.at_once} of {request.path.partition('?')[0]}"
                found[name] = await together(client, process.pid, request)
                say(name, found[name])
    return found


async def idle(client: httpx2.AsyncClient) -> dict[str, Any]:
    async with probing(client.base_url.port or 0) as seconds:
        await asyncio.sleep(IDLE_SECONDS)
    return liveness(seconds)


async def together(client: httpx2.AsyncClient, pid: int, request: Request) -> dict[str, Any]:
    """The figures of ROUNDS rounds of one request. Memory is in MiB and is that of the service process."""
    before = memory_mib(pid, "VmRSS")
    forget_peak(pid)
    sizes: list[int] = []
    took: list[float] = []
    async with probing(client.base_url.port or 0) as seconds:
        for _ in range(ROUNDS):
            since = time.perf_counter()
            sent = (request.send(client) for _ in range(request.at_once))
            sizes += await asyncio.gather(*sent)
            took.append(time.perf_counter() - since)
    return {
        "at_once": request.at_once,
        "body_bytes": len(request.body or b""),
        "answer_bytes": max(sizes),
        "round_seconds": asdict(Spread.of(took)),
        "memory_before_mib": before,
        "memory_peak_mib": memory_mib(pid, "VmHWM"),
        "liveness_seconds": liveness(seconds),
    }


def liveness(seconds: list[float]) -> dict[str, Any]:
    return asdict(Spread.of(seconds)) | {"p99": quantile(seconds, 0.99)}


def forget_peak(pid: int) -> None:
    """Let the kernel measure the largest memory (VmHWM) from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def memory_mib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1024


def say(name: str, figures: dict[str, Any]) -> None:
    live = figures["liveness_seconds"]
    text = f"liveness median {live['median']:.4f} s, greatest {live['greatest']:.3f} s"
    if "answer_bytes" in figures:
        text += (
            f"; answers of {figures['answer_bytes']:,} bytes in {figures['round_seconds']['median']:.1f} s; "
            f"memory {figures['memory_before_mib']} MiB, at most {figures['memory_peak_mib']} MiB"
        )
    print(f"{name}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--out", type=Path, help="where to write; by default benchmarks/results")
    given = parser.parse_args()
    kept = Kept("large-requests", given.out, rounds=ROUNDS)
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(measure(given.only, Path(scratch)))
    kept.end({"figures": found})


if __name__ == "__main__":
    main()
