"""Random management writes, and the book of what was acknowledged: what a killed service must still know.

The one write that was under way at the kill may have happened or not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

HEADER = "X-Service-Lease"
LEAST_NAMED, MOST_NAMED = 1, 4
"""Models and profiles at once: enough to load and to delete, few enough for folders of their own."""
PASSING = {"loading", "downloading"}
"""Statuses that end with the process."""

Found = dict[Any, Any]


@dataclass(slots=True)
class Ledger:
    """What was acknowledged: models and profiles by id, every lease id ever granted with its model.

    One who `is_patient` also waits for loads, so that there is something to lease.
    """

    folders: list[Path]
    draw: random.Random
    models: Found = field(default_factory=dict)
    profiles: Found = field(default_factory=dict)
    leases: list[tuple[int, str]] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    unsure: tuple[str, Any] | None = None
    is_patient: bool = True
    _names: int = 0

    # ------------------------------------------------------------- writing

    def write(self, http: httpx2.Client) -> None:
        """One random write, entered when it is acknowledged.

        Raises:
            httpx2.TransportError: the service is gone; `unsure` says what was under way.
        """
        writes: list[Callable[[httpx2.Client], None]] = [
            self._add_model,
            self._delete_model,
            self._add_profile,
            self._add_profile,
            self._delete_profile,
            self._switch,
            self._switch,
            self._lease,
            self._change_lease,
        ]
        self.draw.choice(writes)(http)

    def prepare(self, http: httpx2.Client) -> None:
        """Have a model loading, or for the patient one that is loaded and leased."""
        if not self.models:
            self._add_model(http)
        tail = "load?wait=true" if self.is_patient else "load"
        self._send(http, "POST", f"/api/models/{self.draw.choice(list(self.models))}/{tail}")
        if self.is_patient:
            self._lease(http)

    def _send(self, http: httpx2.Client, method: str, path: str, **fields: Any) -> Any:
        """The data of an answer, None for a refusal."""
        answer = http.request(method, path, **fields)
        assert answer.status_code < 500, f"{method} {path}: {answer.text}"
        self.statuses[f"{method} {answer.status_code}"] += 1
        return answer.json()["data"] if answer.is_success else None

    def _name(self) -> str:
        self._names += 1
        return f"named {self._names}"

    def _add_model(self, http: httpx2.Client) -> None:
        taken = {model["local_path"] for model in self.models.values()}
        free = [folder for folder in self.folders if str(folder) not in taken]
        if not free:
            return
        body = {"source": "local", "local_path": str(free[0]), "custom_name": self._name()}
        self.unsure = ("add model", body)
        made = self._send(http, "POST", "/api/models", json=body)
        self.models[made["id"]] = _kept(made, body)
        self.unsure = None

    def _delete_model(self, http: httpx2.Client) -> None:
        if len(self.models) > LEAST_NAMED:
            self._delete(http, "model", self.models)

    def _add_profile(self, http: httpx2.Client) -> None:
        if len(self.profiles) == MOST_NAMED:
            return
        values = {str(index): self.draw.uniform(-200, 200) for index in range(200)}
        body = {"name": self._name(), "steering": values}
        self.unsure = ("add profile", body)
        made = self._send(http, "POST", "/api/profiles", json=body)
        self.profiles[made["id"]] = _kept(made, body)
        self.unsure = None

    def _delete_profile(self, http: httpx2.Client) -> None:
        if self.profiles:
            self._delete(http, "profile", self.profiles)

    def _delete(self, http: httpx2.Client, noun: str, book: Found) -> None:
        chosen = self.draw.choice(list(book))
        self.unsure = (f"delete {noun}", chosen)
        if self._send(http, "DELETE", f"/api/{noun}s/{chosen}") is not None:
            del book[chosen]
        self.unsure = None

    def _switch(self, http: httpx2.Client) -> None:
        """A write that changes what is live only."""
        if self.models:
            model_id = self.draw.choice(list(self.models))
            load = "load?wait=true" if self.is_patient else "load"
            action = self.draw.choice([load, load, "unload", "lock", "unlock"])
            self._send(http, "POST", f"/api/models/{model_id}/{action}")

    def _lease(self, http: httpx2.Client) -> None:
        body = {"holder": "soak", "reason": "to be forgotten"}
        for model_id in self.models:
            granted = self._send(http, "POST", f"/api/models/{model_id}/lease", json=body)
            if granted is not None:
                self.leases.append((model_id, granted["lease_id"]))

    def _change_lease(self, http: httpx2.Client) -> None:
        if self.leases:
            model_id, lease_id = self.leases[-1]
            method, tail = self.draw.choice([("POST", "/renew"), ("DELETE", ""), ("DELETE", "")])
            path = f"/api/models/{model_id}/lease{tail}"
            self._send(http, method, path, headers={HEADER: lease_id})

    # ------------------------------------------------------------- comparing

    def compare(self, http: httpx2.Client) -> None:
        """What a service that was killed and started again must still know, and must have forgotten."""
        models = {m["id"]: m for m in http.get("/api/models").json()["data"]["models"]}
        profiles = {p["id"]: p for p in http.get("/api/profiles").json()["data"]["profiles"]}
        for noun, book, found in (
            ("model", self.models, models),
            ("profile", self.profiles, profiles),
        ):
            self._settle(noun, book, found)
            assert set(found) == set(book), f"{noun}s: {found} are there, {book} were acknowledged"
            for key, kept in book.items():
                assert {name: found[key][name] for name in kept} == kept
        self.unsure = None
        assert {model["status"] for model in models.values()}.isdisjoint(PASSING | {"loaded"})
        self._compare_leases(http, models)

    def _settle(self, noun: str, book: Found, found: Found) -> None:
        """Take the write that was under way as it came out."""
        kind, what = self.unsure or ("", None)
        if kind == f"delete {noun}" and what not in found:
            del book[what]
        if kind == f"add {noun}":
            for key in set(found) - set(book):
                book[key] = _kept(found[key], what)
                assert {name: found[key][name] for name in book[key]} == book[key]

    def _compare_leases(self, http: httpx2.Client, models: Found) -> None:
        assert http.get("/api/health/detailed").json()["data"]["lease"] is None
        for model_id in models:
            assert http.get(f"/api/models/{model_id}/lease").json()["data"]["lease"] is None
        for model_id, lease_id in self.leases:
            for method, tail in (("POST", "/renew"), ("DELETE", "")):
                path = f"/api/models/{model_id}/lease{tail}"
                answer = http.request(method, path, headers={HEADER: lease_id})
                error = answer.json()["error"]
                has_ended = error["code"] == "LEASE_EXPIRED" and answer.status_code == 409
                is_unknown = error["code"] == "LEASE_NOT_FOUND" and answer.status_code == 404
                assert is_unknown or (has_ended and error["details"]["end_reason"] == "restart")


def _kept(made: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """What a record must still say after a restart: what was asked for, as the record writes it."""
    asked = {"name": body.get("custom_name") or body.get("name")}
    for name in ("local_path", "steering"):
        if name in body:
            asked[name] = body[name]
    return asked
