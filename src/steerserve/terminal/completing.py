"""The names that a shell completes. A service that does not answer at once has none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from steerserve.client import Client, ServiceError

_PLAIN = re.compile(r"[\w./:@+][\w./:@+-]*")
"""Names that every shell takes as one word and expands to nothing. A name of somebody else could run a program."""
SECONDS = 1.0
"""How long a shell may wait for the names."""


def model_names(incomplete: str) -> list[str]:
    return _begun(incomplete, lambda client: [one.name for one in client.models.list()])


def sae_names(incomplete: str) -> list[str]:
    return _begun(incomplete, lambda client: [one.name for one in client.saes.list()])


def profile_names(incomplete: str) -> list[str]:
    # one page, because a shell does not wait for more
    return _begun(incomplete, lambda client: [one.name for one in client.profiles.list()])


def _begun(incomplete: str, ask: Callable[[Client], Iterable[str | None]]) -> list[str]:
    try:
        with Client(timeout=SECONDS, retries=0) as client:
            names = [name for name in ask(client) if name and name.startswith(incomplete)]
            return [name for name in names if _PLAIN.fullmatch(name)]
    except ServiceError:
        return []
