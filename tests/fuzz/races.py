"""Threads that change the same state at one moment. What they were told must fit together, and fit what is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from tests.fuzz.client import Client
from tests.fuzz.report import Chunk, Tally
from tests.fuzz.sequences import Caller, Wrong
from tests.fuzz.world import World

THREADS = 6

Racer = Callable[[int, Caller], Any]


class Race:
    """One race on the state, which nothing else changes meanwhile."""

    def __init__(self, world: World, tally: Tally, chunk: Chunk, draw: Random) -> None:
        self._world = world
        self._ids = world.ids()
        self._tally = tally
        self._chunk = chunk
        self._draw = draw
        self._client = Client(world.url)
        self._caller = Caller(self._client, tally, chunk)

    def run(self) -> None:
        races = (
            self._one_name,
            self._one_deletion,
            self._one_lease,
            self._one_attach,
            self._one_registration,
            self._whole_batches,
            self._own_features,
            self._loads,
        )
        race = races[self._chunk.number % len(races)]
        try:
            self._begin()
            race()
        except Wrong as error:
            self._caller.wrong(f"{race.__name__.strip('_')}: {error}")
        finally:
            self._client.close()

    def _begin(self) -> None:
        """The base model is loaded, with one SAE."""
        caller = self._caller
        if caller.data("GET", "/api/models")["loaded_model_id"] is None:
            caller.data("POST", f"/api/models/{self._ids['model']}/load?wait=true")
        if not caller.data("GET", "/api/saes/attachment")["is_attached"]:
            caller.data(
                "POST", f"/api/saes/{self._ids['sae']}/attach", {"layer": 2, "check": False}
            )

    def _at_once(self, racer: Racer, count: int = THREADS) -> list[Any]:
        """What each thread was told; all begin at the same moment."""
        gate = threading.Barrier(count)

        def run(number: int) -> Any:
            client = Client(self._world.url)
            caller = Caller(client, self._tally, self._chunk)
            try:
                gate.wait()
                return racer(number, caller)
            finally:
                client.close()

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))

    # ------------------------------------------------------------- exactly one succeeds

    def _one_name(self) -> None:
        body = {"name": f"race {self._draw.getrandbits(48):x}", "steering": {"1": 1.0}}
        codes = self._at_once(lambda _, caller: caller.code("POST", "/api/profiles", body))
        _one_of(codes, {"PROFILE_ALREADY_EXISTS"})
        rows = self._caller.data("GET", "/api/profiles")["profiles"]
        _count(sum(row["name"] == body["name"] for row in rows), 1, "profiles of one name")

    def _one_deletion(self) -> None:
        body = {"name": f"race {self._draw.getrandbits(48):x}"}
        path = f"/api/profiles/{self._caller.data('POST', '/api/profiles', body)['id']}"
        codes = self._at_once(lambda _, caller: caller.code("DELETE", path))
        _one_of(codes, {"PROFILE_NOT_FOUND"})

    def _one_lease(self) -> None:
        resident = self._caller.data("GET", "/api/models")["loaded_model_id"]
        path = f"/api/models/{resident}/lease"
        body = {"holder": "fuzz", "reason": "race", "ttl_seconds": 2}
        codes = self._at_once(lambda _, caller: caller.code("POST", path, body))
        _one_of(codes, {"MODEL_LEASED"})
        lease = self._caller.data("GET", path)["lease"]
        _count(int(lease is not None), 1, "leases")
        while self._caller.data("GET", path)["lease"] is not None:
            threading.Event().wait(0.1)

    def _one_attach(self) -> None:
        path = f"/api/saes/{self._ids['sae']}"
        self._caller.data("POST", f"{path}/detach")
        codes = self._at_once(
            lambda _, caller: caller.code("POST", f"{path}/attach", {"layer": 2, "check": False})
        )
        _one_of(codes, {"SAE_ALREADY_ATTACHED", "MODEL_BUSY"})
        attached = self._caller.data("GET", "/api/saes/attachments")["entries"]
        _count(len(attached), 1, "attached SAEs")

    def _one_registration(self) -> None:
        name = f"race {self._draw.getrandbits(48):x}"
        body = {"source": "local", "local_path": self._world.folders[2], "custom_name": name}
        codes = self._at_once(lambda _, caller: caller.code("POST", "/api/models", body))
        _one_of(codes, {"MODEL_ALREADY_EXISTS"})
        rows = [m for m in self._caller.data("GET", "/api/models")["models"] if m["name"] == name]
        _count(len(rows), 1, "models of one name")
        self._caller.data("DELETE", f"/api/models/{rows[0]['id']}")

    # ------------------------------------------------------------- nothing is mixed, nothing is lost

    def _whole_batches(self) -> None:
        """A batch is applied whole: no reader ever sees a part of one."""

        def race(number: int, caller: Caller) -> set[float]:
            values: set[float] = set()
            for turn in range(4):
                if number % 2:
                    shown = caller.data("GET", "/api/saes/steering")["values"]
                    values = {shown.get(str(feature), 0.0) for feature in (10, 11, 12)}
                    _count(len(values), 1, f"different values of one batch: {values}")
                else:
                    value = float(number * 10 + turn + 1)
                    batch = {str(feature): value for feature in (10, 11, 12)}
                    caller.data("POST", "/api/saes/steering/batch", {"steering": batch})
            return values

        self._caller.data("DELETE", "/api/saes/steering")
        self._at_once(race)
        self._caller.data("DELETE", "/api/saes/steering")

    def _own_features(self) -> None:
        """Each thread sets its own feature; the last value that each was told is there at the end."""

        def race(number: int, caller: Caller) -> tuple[str, float]:
            for turn in range(4):
                body = {"feature_idx": 20 + number, "value": float(turn + 1)}
                caller.data("POST", "/api/saes/steering", body)
            return str(20 + number), 4.0

        self._caller.data("DELETE", "/api/saes/steering")
        told = dict(self._at_once(race))
        shown = self._caller.data("GET", "/api/saes/steering")["values"]
        if shown != told:
            raise Wrong(f"the values are {shown!r}, and {told!r} were acknowledged")

    def _loads(self) -> None:
        """Loads and unloads of one model: the state at the end is one that was acknowledged."""
        model_id = self._ids["model"]

        def race(number: int, caller: Caller) -> str:
            if number % 2:
                return caller.code("POST", f"/api/models/{model_id}/unload")
            return caller.code("POST", f"/api/models/{model_id}/load?wait=true")

        allowed = {
            "ok",
            "MODEL_BUSY",
            "MODEL_ALREADY_LOADED",
            "MODEL_NOT_LOADED",
            "MODEL_NOT_RESIDENT",
        }
        codes = self._at_once(race)
        if not set(codes) <= allowed:
            raise Wrong(f"the answers are {codes}")
        shown = self._caller.data("GET", "/api/models")
        loaded = [row["id"] for row in shown["models"] if row["status"] == "loaded"]
        if loaded != [shown["loaded_model_id"]] and (loaded or shown["loaded_model_id"]):
            raise Wrong(f"{loaded} are loaded, and the loaded model is {shown['loaded_model_id']}")


def _one_of(codes: Sequence[str], others: set[str]) -> None:
    """Exactly one call succeeded, and the others were refused for that reason."""
    if codes.count("ok") != 1 or not set(codes) <= {"ok"} | others:
        raise Wrong(f"the answers are {codes}")


def _count(number: int, expected: int, what: str) -> None:
    if number != expected:
        raise Wrong(f"{what}: {number}, not {expected}")
