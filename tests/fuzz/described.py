"""Cases that schemathesis makes from the service's own description, aimed at what exists."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode

from tests.fuzz.bodies import tamed
from tests.fuzz.client import Request
from tests.fuzz.routes import GENERATING, MOST_TOKENS

COUNT = 25
"""Cases of one operation in one chunk."""
AIMED = 0.8
"""Share of the generated values that are replaced by the name of what exists."""
RARE = ("/load", "/unload", "/detach")
"""Operations that cost a load or an attach; they are asked in one of `RARE_EVERY` rounds."""
RARE_EVERY = 8
_DROPPED = frozenset({"user-agent", "accept-encoding", "connection", "content-length", "host"})


class Described:
    """Makes the cases of one description. Hypothesis runs in one thread at a time."""

    def __init__(self, document: dict[str, Any]) -> None:
        schema = schemathesis.openapi.from_dict(document)
        self._operations = [result.ok() for result in schema.get_all_operations()]
        self._lock = threading.Lock()
        self.routes = [(one.method.upper(), one.path) for one in self._operations]

    def requests(self, number: int, seed: str, world: Any) -> list[Request]:
        """The cases of one chunk: operations in turn, first as described, in the next round broken."""
        around, place = divmod(number, len(self._operations))
        operation = self._operations[place]
        if operation.path.endswith(RARE) and around % RARE_EVERY:
            return []
        mode = GenerationMode.NEGATIVE if around % 2 else GenerationMode.POSITIVE
        with self._lock:
            cases = _cases(operation, mode, hash_of(seed))
        draw = Random(seed)
        made = (_prepared(case, draw, world) for case in cases)
        return [request for request in made if request is not None]


def hash_of(seed: str) -> int:
    return int.from_bytes(seed.encode()[-16:], "big")


def _cases(operation: Any, mode: GenerationMode, seed: int) -> list[Case]:
    cases: list[Case] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=COUNT,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def collect(case: Case) -> None:
        cases.append(case)

    with suppress(Unsatisfiable):  # an operation without parameters cannot be broken
        collect()
    return cases


def _prepared(case: Case, draw: Random, world: Any) -> Request | None:
    """A case as a request; None for what cannot be written in HTTP."""
    _aim(case, draw, world)
    try:
        fields = case.as_transport_kwargs(base_url="http://localhost")
        for name in ("timeout", "verify", "cert", "proxies", "allow_redirects"):
            fields.pop(name, None)
        ready = requests.Request(**fields).prepare()
    except (ValueError, requests.RequestException, UnicodeError):
        return None
    body = ready.body.encode() if isinstance(ready.body, str) else ready.body
    headers = [
        (_text(name), _text(value))
        for name, value in ready.headers.items()
        if name.lower() not in _DROPPED
    ]
    return Request(str(ready.method), str(ready.path_url), body, tuple(headers))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _aim(case: Case, draw: Random, world: Any) -> None:
    """Let most ids and names of a case name what exists."""
    ids = world.ids()
    places: dict[str, Any] = {
        "model_id": ids["model"],
        "sae_id": ids["sae"],
        "profile_id": ids["profile"],
        "name": "huggingface" if "circuits" in case.path else ids["name"],
        "model_name": ids["name"],
        "index": 3,
    }
    for name in case.path_parameters or {}:
        if name in places and draw.random() < AIMED:
            case.path_parameters[name] = places[name]
    body = case.body
    if not isinstance(body, dict):
        return
    known: dict[str, Any] = {
        "model": ids["name"],
        "profile": "calm",
        "sae_id": ids["sae"],
        "layer": 2,
        "repo_id": "acme/tiny",
        "repository_id": "acme/sae",
        "local_path": ids["sae_folder"] if case.path.startswith("/api/saes") else ids["folder"],
    }
    for name, value in known.items():
        if name in body and draw.random() < AIMED:
            body[name] = value
    if case.path in GENERATING:
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            asked = body.get(name)
            if isinstance(asked, int) and 1 < asked < 10_000:
                body[name] = MOST_TOKENS
        tamed(body)
