"""Calls in random order. After each call the state that the service shows is compared with what it acknowledged.

A sequence runs alone on the state: the requests beside it change nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.fuzz.client import Answer, Client, Request
from tests.fuzz.report import Chunk, Tally
from tests.fuzz.world import World

STEPS = 30
LEASE_SECONDS = 1.5
"""A lease that was granted longer ago may have ended by itself."""


class Wrong(Exception):
    """The service shows another state than it acknowledged."""


class Caller:
    """Calls of one chunk, counted and checked like every other request."""

    def __init__(self, client: Client, tally: Tally, chunk: Chunk) -> None:
        self._client = client
        self._tally = tally
        self._chunk = chunk
        self.last: tuple[Request, Answer] | None = None

    def call(self, method: str, path: str, body: Any = None, lease: str | None = None) -> Answer:
        headers = () if body is None else (("Content-Type", "application/json"),)
        if lease is not None:
            headers += (("X-Service-Lease", lease),)
        content = None if body is None else json.dumps(body).encode()
        request = Request(method, path, content, headers)
        answer = self._client.send(request)
        self._tally.take(self._chunk, request, answer)
        self.last = (request, answer)
        return answer

    def code(self, method: str, path: str, body: Any = None, lease: str | None = None) -> str:
        """The code of a refusal; `ok` for a success."""
        answer = self.call(method, path, body, lease)
        if answer.status < 300:
            return "ok"
        return str(json.loads(answer.body)["error"]["code"])

    def data(self, method: str, path: str, body: Any = None, lease: str | None = None) -> Any:
        """The data of a success."""
        answer = self.call(method, path, body, lease)
        if answer.status >= 300 or answer.status == 0:
            raise Wrong(f"{method} {path} was refused with {answer.status}: {answer.body[:300]!r}")
        return json.loads(answer.body)["data"]

    def wrong(self, what: str) -> None:
        request, answer = self.last or (None, None)
        self._tally.note(self._chunk, what, "state", request, answer)


@dataclass(slots=True)
class Expected:
    """What was acknowledged last."""

    resident: int | None = None
    is_locked: bool = False
    layer: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    is_enabled: bool = False
    profiles: dict[str, str] = field(default_factory=dict)
    """Id -> name of the profiles of this sequence."""
    is_monitoring: bool = False


class Sequence:
    """One walk."""

    def __init__(self, world: World, caller: Caller, draw: Random) -> None:
        self._ids = world.ids()
        self._caller = caller
        self._draw = draw
        self._now = Expected()

    def run(self) -> None:
        made: list[str] = []
        try:
            self._begin()
            for _ in range(STEPS):
                action: Callable[[], None] = self._draw.choices(*self._choices())[0]
                made.append(action.__name__.strip("_"))
                action()
                self._check()
        except Wrong as error:
            self._caller.wrong(f"{error} (after {', '.join(made[-4:])})")
        finally:
            for profile_id in self._now.profiles:
                self._caller.call("DELETE", f"/api/profiles/{profile_id}")

    def _choices(self) -> tuple[list[Callable[[], None]], list[float]]:
        """The actions and how likely each is."""
        if self._now.resident is None:
            return [self._load], [1]
        always = [
            (self._lock, 1),
            (self._unlock, 1),
            (self._lease, 1),
            (self._save, 2),
            (self._text, 2),
        ]
        always += [(self._unload, 0.2), (self._load, 0.2)]
        if self._now.layer is None:
            chosen = [*always, (self._attach, 4), (self._steer_nothing, 1)]
        else:
            chosen = [*always, (self._set, 3), (self._set_many, 3), (self._set_wrongly, 2)]
            chosen += [(self._remove, 2), (self._clear, 1), (self._switch, 2), (self._activate, 3)]
            chosen += [(self._monitor, 1), (self._detach, 0.5), (self._attach, 0.3)]
        return [action for action, _ in chosen], [weight for _, weight in chosen]

    # ------------------------------------------------------------- the state

    def _begin(self) -> None:
        """Begin with the base model loaded and nothing attached."""
        caller = self._caller
        models = caller.data("GET", "/api/models")
        if models["loaded_model_id"] is None:
            caller.data("POST", f"/api/models/{self._ids['model']}/load?wait=true")
        self._now.resident = caller.data("GET", "/api/models")["loaded_model_id"]
        while (attached := caller.data("GET", "/api/saes/attachment"))["is_attached"]:
            caller.data("POST", f"/api/saes/{attached['sae_id']}/detach")
        caller.data("POST", f"/api/models/{self._now.resident}/unlock")

    def _check(self) -> None:
        """Compare what the service shows with what it acknowledged."""
        now, caller = self._now, self._caller
        steering = caller.data("GET", "/api/saes/steering") if now.layer is not None else None
        if steering is not None:
            shown = {"enabled": steering["enabled"], "values": steering["values"]}
            _same("steering", shown, {"enabled": now.is_enabled, "values": now.values})
        attachment = caller.data("GET", "/api/saes/attachment")
        _same("the attached layer", attachment["layer"], now.layer)
        _same("steering_enabled", attachment["steering_enabled"], now.is_enabled)
        _same("monitoring_enabled", attachment["monitoring_enabled"], now.is_monitoring)
        models = caller.data("GET", "/api/models")
        _same("the loaded model", models["loaded_model_id"], now.resident)
        for row in models["models"]:
            is_resident = row["id"] == now.resident
            _same("locked", row["locked"], is_resident and now.is_locked)
            _same("the status", row["status"] == "loaded", is_resident)

    def _emptied(self) -> None:
        """Nothing is attached any more."""
        self._now.layer, self._now.values, self._now.is_enabled = None, {}, False
        self._now.is_monitoring = False

    # ------------------------------------------------------------- models

    def _load(self) -> None:
        if self._now.resident == self._ids["model"]:
            code = self._caller.code("POST", f"/api/models/{self._now.resident}/load?wait=true")
            _same("a second load", code, "MODEL_ALREADY_LOADED")
            return
        self._caller.data("POST", f"/api/models/{self._ids['model']}/load?wait=true")
        self._now.resident, self._now.is_locked = self._ids["model"], False
        self._emptied()

    def _unload(self) -> None:
        self._caller.data("POST", f"/api/models/{self._now.resident}/unload")
        self._now.resident, self._now.is_locked = None, False
        self._emptied()

    def _lock(self) -> None:
        self._caller.data("POST", f"/api/models/{self._now.resident}/lock")
        self._now.is_locked = True

    def _unlock(self) -> None:
        self._caller.data("POST", f"/api/models/{self._now.resident}/unlock")
        self._now.is_locked = False

    def _lease(self) -> None:
        """Take a lease, see it, be refused without its id, renew it, release it."""
        path, caller = f"/api/models/{self._now.resident}/lease", self._caller
        since = time.monotonic()
        lease = caller.data("POST", path, {"holder": "fuzz", "reason": "fuzz", "ttl_seconds": 2})
        shown = caller.data("GET", path)["lease"]
        codes = [
            caller.code("POST", f"/api/models/{self._now.resident}/unload")
            if time.monotonic() - since < LEASE_SECONDS
            else "MODEL_LEASED",
            caller.code("POST", path + "/renew", {"ttl_seconds": 2}, lease["lease_id"]),
            caller.code("DELETE", path, None, lease["lease_id"]),
            caller.code("DELETE", path, None, lease["lease_id"]),
        ]
        if time.monotonic() - since < LEASE_SECONDS:
            _same("the shown lease", shown and shown["holder"], "fuzz")
            _same("the steps of a lease", codes, ["MODEL_LEASED", "ok", "ok", "LEASE_EXPIRED"])
        elif codes[0] == "ok":
            raise Wrong("a leased model was unloaded")
        _same("the lease after its end", caller.data("GET", path)["lease"], None)

    def _text(self) -> None:
        body = {"model": "steerserve-demo", "prompt": "One day", "max_tokens": 2}
        answer = self._caller.call("POST", "/v1/completions", body)
        _same("the status of a completion", answer.status, 200)

    # ------------------------------------------------------------- SAEs and steering

    def _attach(self) -> None:
        layer = self._draw.choice((2, 3))
        code = self._caller.code(
            "POST", f"/api/saes/{self._ids['sae']}/attach", {"layer": layer, "check": False}
        )
        if layer == self._now.layer:
            _same("a second attach", code, "SAE_ALREADY_ATTACHED")
            return
        _same("an attach", code, "ok")
        self._emptied()
        self._now.layer, self._now.is_locked = layer, True

    def _detach(self) -> None:
        self._caller.data("POST", f"/api/saes/{self._ids['sae']}/detach")
        self._emptied()
        self._now.is_locked = False

    def _steer_nothing(self) -> None:
        code = self._caller.code("POST", "/api/saes/steering", {"feature_idx": 1, "value": 1.0})
        _same("steering without an SAE", code, "SAE_NOT_ATTACHED")

    def _value(self) -> float:
        return self._draw.choice((-200.0, -1.5, 0.25, 3.0, 200.0))

    def _set(self) -> None:
        feature, value = self._draw.randrange(6), self._value()
        self._caller.data("POST", "/api/saes/steering", {"feature_idx": feature, "value": value})
        self._now.values = self._now.values | {str(feature): value}
        self._now.is_enabled = True

    def _set_many(self) -> None:
        made = {str(self._draw.randrange(9)): self._value() for _ in range(3)}
        self._caller.data("POST", "/api/saes/steering/batch", {"steering": made})
        self._now.values = self._now.values | made
        self._now.is_enabled = True

    def _set_wrongly(self) -> None:
        """A batch with one fault changes nothing."""
        fault = self._draw.choice((("999999", 1.0), ("-1", 1.0), ("x", 1.0), ("2", 201.0)))
        steering = {str(self._draw.randrange(9)): self._value(), fault[0]: fault[1]}
        code = self._caller.code("POST", "/api/saes/steering/batch", {"steering": steering})
        if code == "ok":
            raise Wrong(f"a wrong batch was taken: {steering}")

    def _remove(self) -> None:
        if not self._now.values:
            return
        feature = self._draw.choice(sorted(self._now.values))
        self._caller.data("DELETE", f"/api/saes/steering/{feature}")
        self._now.values = {f: v for f, v in self._now.values.items() if f != feature}
        self._now.is_enabled = self._now.is_enabled and bool(self._now.values)

    def _clear(self) -> None:
        self._caller.data("DELETE", "/api/saes/steering")
        self._now.values, self._now.is_enabled = {}, False

    def _switch(self) -> None:
        self._now.is_enabled = self._draw.random() < 0.5
        self._caller.data(
            "POST", f"/api/saes/steering/{'enable' if self._now.is_enabled else 'disable'}"
        )

    def _monitor(self) -> None:
        self._now.is_monitoring = self._draw.random() < 0.5
        body = {"enabled": self._now.is_monitoring, "features": [1, 2], "top_k": 3}
        state = self._caller.data("POST", "/api/monitoring/configure", body)
        shown = self._caller.data("GET", "/api/monitoring")
        # texts of the requests beside this sequence may have been recorded meanwhile
        if shown["history_count"] > state["history_count"]:
            shown["history_count"] = state["history_count"]
        _same("monitoring", shown, state)

    # ------------------------------------------------------------- profiles

    def _save(self) -> None:
        name = f"own {self._draw.getrandbits(48):x}"
        steering = {str(self._draw.randrange(9)): self._value() for _ in range(2)}
        body = {"name": name, "steering": steering}
        record = self._caller.data("POST", "/api/profiles", body)
        self._now.profiles[record["id"]] = name
        _same("a saved profile", record["steering"], dict(sorted(steering.items())))
        _same("a profile", self._caller.data("GET", f"/api/profiles/{record['id']}"), record)
        _same(
            "a second profile of one name",
            self._caller.code("POST", "/api/profiles", body),
            "PROFILE_ALREADY_EXISTS",
        )

    def _activate(self) -> None:
        if not self._now.profiles:
            return
        profile_id = self._draw.choice(sorted(self._now.profiles))
        self._caller.data("POST", f"/api/profiles/{profile_id}/activate")
        record = self._caller.data("GET", f"/api/profiles/{profile_id}")
        self._now.values, self._now.is_enabled = record["steering"], True
        active = self._caller.data("GET", "/api/profiles/active")
        _same("the active profile", active and active["id"], profile_id)
        if self._draw.random() < 0.3:
            self._caller.data("DELETE", f"/api/profiles/{profile_id}")
            del self._now.profiles[profile_id]
            _same(
                "a deleted profile",
                self._caller.code("GET", f"/api/profiles/{profile_id}"),
                "PROFILE_NOT_FOUND",
            )
            self._now.values, self._now.is_enabled = {}, False


def _same(what: str, shown: Any, expected: Any) -> None:
    if shown != expected:
        raise Wrong(f"{what}: {shown!r}, not {expected!r}")
