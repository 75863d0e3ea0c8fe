"""Everything at once for minutes: seeds, long prompts, schemas, steering that changes, clients that leave, engines that
are killed. SOAK_SECONDS is how long; `SOAK_SECONDS=3600 make soak` runs for an hour."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from steerserve import demo
from tests.processes import serving
from tests.soak import schedule, watching
from tests.soak.schedule import SEEDED, Book, Gate, Said, Schedule, said
from tests.soak.watching import Process, Usage, in_ms, slope

pytestmark = pytest.mark.soak
SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
WAVES = 10
"""After each wave of requests all clients pause, and what is held is measured. Engines are killed in every other wave."""
KILLS = 4
CLIENTS, SLOTS, PENDING = 20, 8, 10
SEED = 14
STEERING_SECONDS = 1.0
"""Between two changes of the steering, at most."""
IDLE_SECONDS = 10.0
"""No row is stuck: within this time after the last answer nothing waits or runs."""
MOST_MORE = {"files": 12, "threads": 12, "files_of_all": 60, "processes": 6}
"""How many more there may be than after the second wave: the pool of the database opens connections up to its size, and
the processes that render, tokenize and check are started when they are needed. One that stayed behind after each kill
would be more."""
GROWTH_MB, ENGINE_GROWTH = 2.0, 1.15
"""MiB of the control plane for each wave; the greatest memory of an engine after a wave, over the least."""

STATES: schedule.States = {
    "off": {},
    "one": {"14": 40.0},
    "three": {"14": -25.0, "90": 30.0, "400": 15.0},
}


@dataclass(frozen=True, slots=True)
class Rest:
    """What is held between two waves: by the service, and by its engine in MiB."""

    usage: Usage
    engine_mb: float


async def steer(http: httpx2.AsyncClient, values: dict[str, float]) -> None:
    """Replace the live values, and ask again as long as the engine is away."""
    asked = {"model": demo.MODEL_NAME, "prompt": "a", "max_tokens": 1}
    steering = "/api/saes/steering"
    while True:
        calls: list[tuple[str, str, Any]] = [
            ("POST", schedule.TEXT, asked),
            ("DELETE", steering, None),
        ]
        if values:
            calls.append(("POST", f"{steering}/batch", {"steering": values}))
        for method, path, body in calls:
            answer = await http.request(method, path, json=body)
            if not answer.is_success:
                code = answer.json()["error"]["code"].lower()
                assert code in schedule.REFUSALS | {"sae_not_attached"}, answer.text
                break
        else:
            return


async def known_texts(
    http: httpx2.AsyncClient, states: schedule.States
) -> dict[tuple[str, str], Said]:
    """What each seeded request says under each steering when nothing else runs."""
    known = {}
    for state, values in states.items():
        await steer(http, values)
        for kind, (path, fields) in SEEDED.items():
            answer = await http.post(path, json={"model": demo.MODEL_NAME, **fields})
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-service-seed"].endswith("scope=request")
            known[kind, state] = said([answer.json()])
    return known


async def change_steering(http: httpx2.AsyncClient, gate: Gate, draw: random.Random) -> None:
    """Change the steering again and again."""
    while True:
        await asyncio.sleep(draw.uniform(0, STEERING_SECONDS))
        state = draw.choice(list(STATES))
        async with gate.changing():
            await steer(http, STATES[state])
            gate.state = state


async def kill_engines(
    served: Process, http: httpx2.AsyncClient, seconds: float, draw: random.Random, book: Book
) -> None:
    """Kill the engine a few times within these seconds, each time at another moment of its work.

    Only an engine that serves is killed: after the end of one that loads, an operator has to load the model again.
    """
    for _ in range(KILLS):
        await asyncio.sleep(draw.uniform(0.5, 1.0) * seconds / (KILLS + 1))
        while not (await http.get("/api/health/detailed")).json()["data"]["model_loaded"]:
            await asyncio.sleep(0.05)
        for engine in watching.engines(served):
            with suppress(psutil.NoSuchProcess):
                engine.kill()
                book.outcomes["engines killed"] += 1


async def wave(
    served: Process, number: int, gate: Gate, known: dict[tuple[str, str], Said], book: Book
) -> None:
    """Let all clients ask for a while, beside changes of the steering and, in odd waves, kills."""
    seconds = SECONDS / WAVES
    draw = random.Random(f"{SEED} {number}")
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=served.url, limits=limits, timeout=None) as http:
        until = time.monotonic() + seconds
        clients = [
            Schedule(f"{SEED} {number} {client}", http, gate, known, book)
            for client in range(CLIENTS)
        ]
        beside = [asyncio.create_task(change_steering(http, gate, draw))]
        if number % 2:
            beside.append(asyncio.create_task(kill_engines(served, http, seconds, draw, book)))
        try:
            await asyncio.gather(*(client.run(until) for client in clients))
        finally:
            for task in beside:
                task.cancel()
            ends = await asyncio.gather(*beside, return_exceptions=True)
        book.wrong += [repr(end) for end in ends if isinstance(end, Exception)]
        # a change that was cut off may have been carried out
        await steer(http, STATES[gate.state])
        again = await known_texts(http, {gate.state: STATES[gate.state]})
        book.wrong += [f"alone, {key}" for key, text in again.items() if text != known[key]]


@contextmanager
def demonstrated(home: Path) -> Iterator[Process]:
    """A service with the demo model and one of its SAEs."""
    room = {"max_concurrent_requests": SLOTS, "max_pending_requests": PENDING}
    with serving(home, torch_threads=1, kv_cache_mb=32, **room) as served:
        try:
            served.load_demo()
            sae = demo.saes()[1]
            added = served.http.post("/api/saes/download", json={"local_path": str(sae.path)})
            path = f"/api/saes/{added.json()['data']['sae_id']}/attach"
            attached = served.http.post(path, json={"layer": sae.layer})
            assert attached.status_code == 200, attached.text
            yield served
        finally:
            watching.end(served)


def rest(served: Process) -> Rest:
    (engine,) = watching.engines(served)
    return Rest(watching.usage(served), engine.memory_info().rss / (1 << 20))


def check_growth(rests: list[Rest]) -> None:
    """Nothing is held more from wave to wave. The first wave fills pools and allocators."""
    usages = [one.usage for one in rests[1:]]
    growth = slope([one.rss_mb for one in usages])
    calm = [one.engine_mb for one in rests[2::2]]
    print(
        f"control plane {growth:+.2f} MiB for each wave; {usages[0]} -> {usages[-1]}; "
        f"engine after waves without kills: {', '.join(f'{mb:.0f}' for mb in calm)} MiB"
    )
    assert growth < GROWTH_MB
    assert max(calm) < ENGINE_GROWTH * min(calm)
    for name, more in MOST_MORE.items():
        values = [getattr(one, name) for one in usages]
        assert max(values) <= values[0] + more, (name, values)


@pytest.mark.timeout(2 * SECONDS + 300)
def test_a_mix_of_everything_stays_right_and_small(tmp_path: Path) -> None:
    book, rests = Book(), []
    with demonstrated(tmp_path / "home") as served:

        async def solo() -> dict[tuple[str, str], Said]:
            async with httpx2.AsyncClient(base_url=served.url, timeout=60) as http:
                known = await known_texts(http, STATES)
                assert await known_texts(http, STATES) == known
                return known

        known = asyncio.run(solo())
        assert len({known[kind, state] for kind in SEEDED for state in STATES}) > 2 * len(SEEDED)
        state = next(reversed(STATES))
        for number in range(WAVES):
            gate = Gate(state)
            asyncio.run(wave(served, number, gate, known, book))
            state = gate.state
            watching.until_idle(served.http, IDLE_SECONDS)
            rests.append(rest(served))
            assert book.wrong == [], (
                f"seed {SEED}, wave {number}: {len(book.wrong)} wrong, {book.outcomes}"
            )
        print(f"{SECONDS:.0f} s: {dict(book.outcomes)}; {in_ms(book.durations)}")
        check_growth(rests)
        for kind in SEEDED:
            assert book.outcomes[f"seeded {kind}"], kind
        assert book.outcomes["engines killed"]
        assert watching.zombies(served) == []
        assert not [line for line in watching.complaints(served) if "Traceback" in line]
        watching.stop(served)
