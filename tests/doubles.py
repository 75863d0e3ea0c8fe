"""The control plane on a scripted engine: real owners, a real SQLite file, and an engine that a test directs.

Nothing here waits for a duration.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from steerserve import messages as m
from steerserve.app.wiring import Owners, Surroundings
from steerserve.control.health.gpus import CardReadings
from steerserve.control.inference.asked import Asked
from steerserve.control.inference.generate import Run
from steerserve.control.residency.resident import Resident
from steerserve.database.catalog import Clock, ModelRow, SaeRow, utc_now
from steerserve.database.db import Database
from steerserve.engines.sandbox.schemas import Checker
from steerserve.errors import Refusal
from steerserve.hub import client as hub_client
from steerserve.hub.child import Downloaders
from steerserve.rules.events import Event
from steerserve.rules.models.breaker import BreakerStatus
from steerserve.rules.residency.gpus import Card
from steerserve.rules.residency.swap import Phase
from steerserve.settings import Settings
from tests import asking
from tests.blank import DATABASE, lay
from tests.scripted_answers import HIDDEN, WIDTH
from tests.scripted_engine import Launcher, Stream
from tests.waiting import Answer, Gate, soon, until


class Driver:
    """Stands for the driver of the cards. There are no cards until a test sets some."""

    def __init__(self) -> None:
        self.cards: list[Card] = []
        self.reason: str | None = "no driver"
        self.readings = 0

    def read(self) -> tuple[list[Card], str | None]:
        self.readings += 1
        return list(self.cards), self.reason


class Hub:
    """Stands for the hub. A test sets the state of its circuit breakers."""

    def __init__(self) -> None:
        self.states: list[BreakerStatus] = []

    def breakers(self) -> list[BreakerStatus]:
        return list(self.states)

    def reset(self, name: str) -> BreakerStatus:
        for place, state in enumerate(self.states):
            if state.name == name:
                self.states[place] = replace(state, state="closed", is_open=False, failure_count=0)
                return self.states[place]
        raise Refusal("BREAKER_NOT_FOUND", "no such breaker")


def breaker(**changes: Any) -> BreakerStatus:
    closed = BreakerStatus("huggingface", "closed", False, 0, 5, 60, 0.0, 0)
    return replace(closed, **changes)


def write_tensors(file: Path, header: Any, data: bytes = b"") -> None:
    """Write a safetensors file with this header, which is bytes or a value that is written as JSON."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def write_checkpoint(folder: Path) -> Path:
    """Write a model folder with one tensor of four numbers."""
    folder.mkdir(parents=True)
    config = {"architectures": ["TinyForCausalLM"], "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    write_tensors(folder / "model.safetensors", {"w": tensor}, bytes(16))
    return folder


class World(Owners):
    """Every owner of the control plane, composed as in the service, with engines, cards and a clock that the test
    controls."""

    launcher: Launcher  # type: ignore[assignment]

    def __init__(
        self, home: Path, settings: Settings, now: Clock, seconds: Callable[[], float]
    ) -> None:
        self.home = home
        self.driver = Driver()
        self.breakers = Hub()
        self.events: list[Event] = []
        self.free_mb: int | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        launcher: Any = Launcher()
        downloaders = Downloaders(settings.model_cache_dir)
        super().__init__(
            settings,
            Surroundings(
                database=Database(settings.database_url, home=settings.steerserve_home),
                launcher=launcher,
                downloaders=downloaders,
                hub=hub_client.Hub(settings, downloaders),
                cluster_hub=hub_client.cluster_hub(settings, downloaders),
                breakers=self.breakers,
                cards=CardReadings(self.driver.read, torch_version="2.13.0"),
                checker=Checker(),
                now=now,
                seconds=seconds,
                read_free=self._read_free,
            ),
        )

    async def _read_free(self, _: Resident) -> int | None:
        return self.free_mb

    # ------------------------------------------------------------- making

    async def model(self, name: str = "a", **changes: Any) -> ModelRow:
        """Register a model with a folder of its own."""
        folder = write_checkpoint(self.home / name)
        row = await self.models.add(
            str(folder), quantization="FP16", custom_name=name, trust_remote_code=False
        )
        return await self.catalog.change_model(row.id, **changes) if changes else row

    async def loaded(self, name: str = "a") -> ModelRow:
        """Register a model and load it."""
        row = await self.model(name)
        await soon((await self.conductor.load(row)).ready)
        return row

    async def sae(self, sae_id: str = "sae_a", **claims: Any) -> SaeRow:
        """Register an SAE."""
        folder = self.home / sae_id
        folder.mkdir()
        claimed = {
            "d_in": HIDDEN,
            "d_sae": WIDTH,
            "site": "resid_post",
            "trained_layer": None,
            "trained_on": None,
        } | claims
        return await self.catalog.add_sae(
            id=sae_id,
            local_path=str(folder),
            name=sae_id,
            format="saelens",
            architecture="standard",
            dtype="float32",
            status="cached",
            **claimed,
        )

    async def attached(self) -> SaeRow:
        """Load a model and attach an SAE at layer 1."""
        await self.loaded()
        sae = await self.sae()
        await self.attachments.attach(sae, 1)
        return sae

    # ------------------------------------------------------------- doing

    async def held(self, step: str, work: Awaitable[Answer]) -> tuple[asyncio.Future[Answer], Gate]:
        """Begin `work`, and wait until it comes to this step of the engine, which a gate holds."""
        gate = self.launcher.hold(step)
        begun = self.begin(work)
        await soon(gate.reached.wait())
        return begun, gate

    async def reaching(self, step: str, work: Awaitable[Answer]) -> tuple[Answer, Gate]:
        """The result of `work`, once the engine has come to this step, which goes on after `work` and which a gate
        holds."""
        gate = self.launcher.hold(step)
        result = await work
        await soon(gate.reached.wait())
        return result, gate

    async def unloading(self, work: Awaitable[Answer]) -> asyncio.Future[Answer]:
        """Begin `work`, and wait until it unloads the model."""
        begun = self.begin(work)
        await until(lambda: self.phase is Phase.UNLOADING)
        return begun

    async def crash(self) -> None:
        """The engine ends by itself, and the slot is vacated."""
        self.launcher.engine.die()
        await until(lambda: self.conductor.resident is None)

    def begin(self, work: Awaitable[Answer]) -> asyncio.Future[Answer]:
        """Run `work` in the background. If it still runs at the end of the test, it is cancelled."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.append(task)
        return task

    async def ask(self, model: str = "a", *, n: int = 1, seed: int | None = None) -> str:
        """Send a request and read it to its end. Returns the text of its choices."""
        asked = asking.to_write(sampling=m.Sampling(seed=seed), n=n)
        async with self.opened(asked, model) as run:
            return "".join([e.text async for e in run.events if isinstance(e, m.Piece)])

    @asynccontextmanager
    async def opened(self, asked: Asked, model: str = "a") -> AsyncIterator[Run]:
        """A running request for the model with this name."""
        async with self.generation.open(asked, await self.served.resolve(model)) as run:
            yield run

    async def in_flight(self, model: str = "a") -> tuple[asyncio.Future[str], Stream]:
        """Send a request that holds the model and a slot. Returns its task, and its stream in the engine."""
        asked = self.begin(self.ask(model))
        return asked, await self.launcher.stream()

    async def answered(self, model: str = "a") -> None:
        """Send a request, which the engine answers at once."""
        asked, stream = await self.in_flight(model)
        stream.complete()
        assert await soon(asked) == "done"

    # ------------------------------------------------------------- seeing

    @property
    def resident(self) -> Resident:
        assert self.conductor.resident is not None
        return self.conductor.resident

    @property
    def phase(self) -> Phase:
        return self.conductor.view().phase

    @property
    def is_idle(self) -> bool:
        """Whether no request is in the queue, or under way."""
        counts = self.queue.counts()
        return (counts.pending, counts.holding, self.generation.active) == (0, 0, 0)

    def published(self, kind: type[Answer]) -> list[Answer]:
        return [event for event in self.events if isinstance(event, kind)]

    async def status(self, model: ModelRow) -> tuple[str, str | None]:
        """The status and the error message in the record of a model."""
        row = await self.catalog.model(model.id)
        return row.status, row.error_message

    async def sae_status(self, sae: SaeRow) -> str:
        return (await self.catalog.sae(sae.id)).status

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.close()


@asynccontextmanager
async def world(
    home: Path, *, now: Clock = utc_now, seconds: Callable[[], float] | None = None, **changes: Any
) -> AsyncIterator[World]:
    """The control plane with the data folder `data` in the folder `home`. `now` is the time of day, and `seconds` the seconds that pass. Without
    `seconds`, nobody sets the clock of the machine, and both pass alike."""
    data = home / "data"
    settings = Settings(_env_file=None, steerserve_home=data, **changes)  # type: ignore[call-arg]
    if "database_url" not in changes:
        lay(data / DATABASE)
    made = World(home, settings, now, seconds or (lambda: now().timestamp()))
    await made.database.open()
    made.bus.subscribe(made.events.append)
    try:
        yield made
    finally:
        await soon(made.end())
